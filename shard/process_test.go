package shard_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
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

// childStopped is the exit code of a replica that was asked to stop.
const childStopped = 7

// A childReplica is a replica that is a process of its own.
type childReplica struct {
	Kubeconfig, Namespace, Identity string
	Recorder                        string // URL
	Shards                          int    // with the default timings; 0 means 4 with short ones
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
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // a byte is a signal to stop, and the end of the parent is the end of the child
		_, _ = os.Stdin.Read(make([]byte, 1))
		cancel()
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
	pause := 5 * time.Millisecond
	if c.Shards > 0 {
		group.Ranges.N, group.LeaseDuration, group.RenewDeadline, group.RetryPeriod = c.Shards, 0, 0, 0
		pause = 25 * time.Millisecond
	}
	err = group.Run(ctx, func(ctx context.Context, s shard.Shard) error {
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
			case <-time.After(pause):
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	os.Exit(childStopped) // a test may not exit with 0
}

// A childProcess is a running childReplica.
type childProcess struct {
	t      *testing.T
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	output bytes.Buffer
	ended  bool
}

// startChild starts a replica that the end of the test kills.
func startChild(t *testing.T, r childReplica) *childProcess {
	t.Helper()
	config, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &childProcess{t: t, name: r.Identity, cmd: exec.Command(self, "-test.run=^TestChildProcess$", "-test.timeout=0")}
	c.cmd.Env = append(os.Environ(), childVariable+"="+string(config))
	c.cmd.Stdout, c.cmd.Stderr = &c.output, &c.output
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.kill()
		if t.Failed() || strings.Contains(c.output.String(), "DATA RACE") {
			t.Errorf("%s:\n%s", c.name, &c.output)
		}
	})
	return c
}

func (c *childProcess) kill() {
	if !c.ended {
		c.ended = true
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
}

// stop asks the replica to stop, and waits for its end.
func (c *childProcess) stop() {
	c.t.Helper()
	c.ended = true
	if _, err := c.stdin.Write([]byte{0}); err != nil {
		c.t.Error(err)
	}
	if err := c.cmd.Wait(); c.cmd.ProcessState.ExitCode() != childStopped {
		c.t.Errorf("%s stops: %v", c.name, err)
	}
}

// For a night: go test -run '^TestServerRolling$' ./shard -rolls 20
var rolls = flag.Int("rolls", 1, "how often TestServerRolling replaces its replicas; if more than once, it also kills and freezes some, and no shard may wait longer than 1s in a graceful replacement")

// TestServerRolling: four processes with 16 shards are replaced one by one, as a Deployment
// does. No two owners of a shard overlap. Its log has the longest time that a shard waited for
// an owner. In explorations a process is killed and another one is frozen after that.
//
// Proves SH1 and SH2.
func TestServerRolling(t *testing.T) {
	t.Parallel()
	const shards = 16
	ns, log := testserver.Namespace(t), newLog(shards)
	recorder := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var e childEffect
		if err := json.NewDecoder(r.Body).Decode(&e); err == nil {
			log.effect(r.URL.Path, e.Shard, e.Began)
		}
	}))
	defer recorder.Close()
	kubeconfig, born := testprocess.Kubeconfig(t, testserver.Config(t)), 0
	start := func() *childProcess {
		t.Helper()
		born++
		name := fmt.Sprint("/r", born)
		return startChild(t, childReplica{Kubeconfig: kubeconfig, Namespace: ns, Identity: name, Recorder: recorder.URL + name, Shards: shards})
	}
	var replicas []*childProcess
	// balanced waits until each replica owns its share.
	balanced := func(what string, replicas ...*childProcess) {
		t.Helper()
		if err := log.awaitOwners(time.Now(), func(owners []string) bool {
			for _, c := range replicas {
				n := 0
				for _, who := range owners {
					if who == c.name {
						n++
					}
				}
				if n < shards/len(replicas) {
					return false
				}
			}
			return true
		}); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	for range 4 {
		replicas = append(replicas, start())
	}
	balanced("four replicas", replicas...)
	longest := func() time.Duration {
		log.mu.Lock()
		defer log.mu.Unlock()
		d := log.longest
		log.longest = 0
		return d
	}
	longest()
	for range *rolls {
		began := time.Now()
		for i, old := range replicas {
			replicas[i] = start()
			balanced("one joins", append(replicas[:4:4], old)...)
			old.stop()
		}
		balanced("all are replaced", replicas...)
		waited := longest()
		t.Logf("replaced in %v; a shard waited at most %v for an owner", time.Since(began).Round(time.Millisecond), waited.Round(time.Millisecond))
		if waited > time.Second && *rolls > 1 || waited > 10*time.Second {
			t.Errorf("a shard waited %v for an owner", waited)
		}
		if *rolls == 1 {
			break
		}
		replicas[0].kill()
		balanced("one is killed", replicas[1:]...)
		if err := testprocess.Freeze(replicas[1].cmd.Process); err != nil {
			t.Fatal(err)
		}
		replicas[0] = start()
		balanced("one is frozen", replicas[0], replicas[2], replicas[3])
		if err := testprocess.Thaw(replicas[1].cmd.Process); err != nil {
			t.Fatal(err)
		}
		balanced("it goes on", replicas...)
		t.Logf("after a crash and a freeze a shard waited at most %v", longest().Round(time.Millisecond))
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	for _, o := range log.overlaps {
		t.Error(o)
	}
	t.Logf("%d processes, %d terms, %d effects", born, log.terms, log.effects)
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

	c := startChild(t, childReplica{
		Kubeconfig: testprocess.Kubeconfig(t, testserver.Config(t)), Namespace: ns, Identity: "child", Recorder: recorder.URL,
	})

	await := func(what string, after time.Time, by func(who []string) bool) {
		t.Helper()
		if err := log.awaitOwners(after, by); err != nil {
			t.Fatalf("%s: %v", what, err)
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
		if err := testprocess.Freeze(c.cmd.Process); errors.Is(err, errors.ErrUnsupported) {
			t.Skip("a process cannot be stopped on this system")
		} else if err != nil {
			t.Fatal(err)
		}
		await("the child is frozen", time.Now(), all)
		if err := testprocess.Thaw(c.cmd.Process); err != nil {
			t.Fatal(err)
		}
	}
	await("the child goes on", time.Now(), child)
	c.kill()
	await("the child is killed", time.Now(), all)
	log.mu.Lock()
	defer log.mu.Unlock()
	for _, o := range log.overlaps {
		t.Error(o)
	}
	t.Logf("%d terms, %d effects", log.terms, log.effects)
}
