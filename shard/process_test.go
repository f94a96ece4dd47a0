package shard_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/controllerkit/controllerkit/internal/testprocess"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/shard"
)

// childVariable makes a copy of this test binary a replica. It holds a childReplica as
// JSON.
const childVariable = "SHARD_TEST_CHILD"

// A childReplica is a replica that is a process of its own.
type childReplica struct {
	Kubeconfig, Namespace, Identity string
	Recorder                        string // URL
}

// A childEffect is posted by a child for each effect.
type childEffect struct {
	Shard shard.Shard
	Began time.Time // the Check that allowed it
}

// processGroup returns a Group of the test's processes.
func processGroup(config *rest.Config, namespace, identity string) (*shard.Group, error) {
	client, err := coordinationv1client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &shard.Group{
		Leases: client.Leases(namespace), Namespace: namespace, Name: groupName, Identity: identity, Ranges: shard.Ranges{N: 4},
		LeaseDuration: 2 * time.Second, RenewDeadline: 1400 * time.Millisecond, RetryPeriod: 300 * time.Millisecond,
		StartTimeout: patience, DrainTimeout: patience,
	}, nil
}

// TestChildProcess is no test: it is the main function of the processes that the tests
// start.
func TestChildProcess(t *testing.T) {
	text := os.Getenv(childVariable)
	if text == "" {
		return
	}
	go func() { // the end of the parent is the end of the child
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	var c childReplica
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	group, err := processGroup(config, c.Namespace, c.Identity)
	if err != nil {
		t.Fatal(err)
	}
	err = group.Run(context.Background(), func(ctx context.Context, s shard.Shard) error {
		for {
			began := time.Now()
			if err := s.Check(ctx); err != nil {
				return err
			}
			body, err := json.Marshal(childEffect{s, began})
			if err != nil {
				return err
			}
			response, err := http.Post(c.Recorder, "application/json", bytes.NewReader(body))
			if err != nil {
				return err
			}
			response.Body.Close()
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestServerProcess: a process is frozen by SIGSTOP until another replica has its shards.
// After it goes on, no Check allows an effect in an earlier term, and it owns shards again.
// After SIGKILL the other replica has all shards.
//
// Proves SH1.
func TestServerProcess(t *testing.T) {
	t.Parallel()
	ns, log := testserver.Namespace(t), newLog(4)
	recorder := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var e childEffect
		if err := json.NewDecoder(r.Body).Decode(&e); err == nil {
			log.effect("child", e.Shard, e.Began)
		}
	}))
	defer recorder.Close()
	here, err := processGroup(testserver.Config(t), ns, "here")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- here.Run(ctx, log.work("here", 0, nil)) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	config, err := json.Marshal(childReplica{
		Kubeconfig: testprocess.Kubeconfig(t, testserver.Config(t)), Namespace: ns, Identity: "child", Recorder: recorder.URL,
	})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestChildProcess$", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), childVariable+"="+string(config))
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if _, err := cmd.StdinPipe(); err != nil { // it ends when this process does
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	kill := func() {
		if !killed {
			killed = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if strings.Contains(output.String(), "DATA RACE") {
				t.Errorf("the child has a data race:\n%s", &output)
			}
		}
	}
	defer kill()

	await := func(what string, after time.Time, by func(who []string) bool) {
		t.Helper()
		if err := log.awaitOwners(after, by); err != nil {
			t.Fatalf("%s: %v\n%s", what, err, &output)
		}
	}
	child := func(owners []string) bool {
		for _, who := range owners {
			if who == "child" {
				return true
			}
		}
		return false
	}
	all := func(owners []string) bool {
		for _, who := range owners {
			if who != "here" {
				return false
			}
		}
		return true
	}
	for range 3 {
		await("the child owns shards", time.Now(), child)
		if err := testprocess.Freeze(cmd.Process); errors.Is(err, errors.ErrUnsupported) {
			t.Skip("a process cannot be stopped on this system")
		} else if err != nil {
			t.Fatal(err)
		}
		await("the child is frozen", time.Now(), all)
		if err := testprocess.Thaw(cmd.Process); err != nil {
			t.Fatal(err)
		}
	}
	await("the child goes on", time.Now(), child)
	kill()
	await("the child is killed", time.Now(), all)
	log.mu.Lock()
	defer log.mu.Unlock()
	for _, o := range log.overlaps {
		t.Error(o)
	}
	t.Logf("%d terms, %d effects", log.terms, log.effects)
}
