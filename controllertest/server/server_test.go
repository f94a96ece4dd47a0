package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/controllerkit/controllerkit/controllertest/server"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// TestMain builds the controlplane if it is missing.
func TestMain(m *testing.M) {
	if testserver.SkipExamples(); testing.Short() {
		os.Exit(m.Run())
	}
	bin, err := testserver.Binary()
	if err != nil {
		panic(err)
	}
	if err := os.Setenv("CONTROLPLANE", bin); err != nil {
		panic(err)
	}
	if os.Getenv("SERVER_TEST_CHILD") != "" {
		child()
	}
	os.Exit(m.Run())
}

const definition = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: lamps.server.example.com}
spec:
  group: server.example.com
  scope: Namespaced
  names: {plural: lamps, singular: lamp, kind: Lamp, listKind: LampList}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
`

// Proves V1.
func TestServer(t *testing.T) {
	testserver.Needed(t)
	if os.Getenv("USE_EXISTING_CLUSTER") == "true" {
		t.Skip("Start would use the existing cluster")
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "lamps.yaml"), []byte(definition), 0o600); err != nil {
		t.Fatal(err)
	}
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	ctx, cancel := context.WithCancel(t.Context())
	s, err := server.Start(ctx, server.Options{CRDs: []string{folder}, Args: []string{"--runtime-config=autoscaling/v1=false"}})
	if err != nil {
		t.Fatal(err)
	}
	cancel() // it bounds the start alone
	lamps := dynamic.NewForConfigOrDie(s.Config()).Resource(schema.GroupVersionResource{Group: "server.example.com", Version: "v1", Resource: "lamps"})
	if _, err := lamps.List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("the definition is not served: %v", err)
	}
	admin := kubernetes.NewForConfigOrDie(s.Config())
	if _, err := admin.AutoscalingV1().HorizontalPodAutoscalers("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the flag is not set: a version that it removes is served: %v", err)
	}
	if _, err := os.Stat(s.Kubeconfig()); err != nil {
		t.Error(err)
	}

	rule := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps", "pods/log"}, Verbs: []string{"create"}}
	logs := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/log"}, Verbs: []string{"get"}}
	for _, namespace := range []string{"default", ""} {
		config, err := s.User(t.Context(), namespace, rule, logs)
		if err != nil {
			t.Fatal(err)
		}
		user := kubernetes.NewForConfigOrDie(config).CoreV1()
		for _, in := range []string{"default", "kube-system"} {
			_, err := user.ConfigMaps(in).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"}}, metav1.CreateOptions{})
			if allowed := namespace == "" || in == namespace; allowed && err != nil || !allowed && !apierrors.IsForbidden(err) {
				t.Errorf("a user of namespace %q creates in %q: %v", namespace, in, err)
			}
		}
		if _, err := user.ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("List() = %v, want forbidden, because no rule allows it", err)
		}
	}
	if _, err := s.User(t.Context(), "default", rbacv1.PolicyRule{Verbs: []string{"get"}}); err == nil || !strings.Contains(err.Error(), "set Verbs, and APIGroups") {
		t.Errorf("User() = %v, want an error about the empty rule", err)
	}

	for range 2 {
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := admin.Discovery().ServerVersion(); err == nil {
		t.Error("the server runs after Stop")
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// Proves V1.
func TestServerErrors(t *testing.T) {
	testserver.Needed(t)
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	within := func(d time.Duration) context.Context {
		ctx, cancel := context.WithTimeoutCause(t.Context(), d, errors.New("the test is over"))
		t.Cleanup(cancel)
		return ctx
	}
	for _, tt := range []struct {
		name string
		time time.Duration
		o    server.Options
		want string
	}{
		{"no file", time.Minute, server.Options{CRDs: []string{"missing.yaml"}}, "server: Options.CRDs: stat missing.yaml"},
		{"no definition", time.Minute, server.Options{CRDs: []string{"server.go"}}, "server: Options.CRDs: server.go"},
		{"unknown flag", time.Minute, server.Options{Args: []string{"--no-such-flag"}}, "no-such-flag"},
		{"no time", 100 * time.Millisecond, server.Options{}, "the test is over"},
		{"no time, with files", time.Second, server.Options{Args: []string{"--etcd-readycheck-timeout=1ns"}}, "the test is over"}, // never ready
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := server.Start(within(tt.time), tt.o)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Start() = %v, want an error with %q", err, tt.want)
			}
			if err == nil {
				_ = s.Stop()
			}
			if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// child starts a server, prints its kubeconfig and waits to be killed.
func child() {
	s, err := server.Start(context.Background(), server.Options{})
	if err != nil {
		panic(err)
	}
	fmt.Println(s.Kubeconfig())
	select {}
}

// The server of a process that was killed stops: a watch on it ends.
//
// Proves V2.
func TestServerOfKilledProcess(t *testing.T) {
	testserver.Needed(t)
	if os.Getenv("USE_EXISTING_CLUSTER") == "true" {
		t.Skip("Start would use the existing cluster")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "SERVER_TEST_CHILD=1", "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	w, err := kubernetes.NewForConfigOrDie(config).CoreV1().Namespaces().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	limit := time.After(time.Minute)
	for {
		select {
		case _, ok := <-w.ResultChan():
			if !ok {
				return
			}
		case <-limit:
			t.Fatal("the server runs a minute after its process was killed")
		}
	}
}
