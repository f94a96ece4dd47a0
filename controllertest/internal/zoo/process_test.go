package zoo_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/controllertest/internal/zoo"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// The environment of this test binary as a controller of the zoo: which one, and
// what controllertest.Process says.
const (
	childVariable     = "ZOO_CONTROLLER"
	kubeconfigVar     = "ZOO_KUBECONFIG"
	namespaceVariable = "ZOO_NAMESPACE"
	cloudVariable     = "ZOO_CLOUD"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(childVariable); name != "" {
		if err := controller(name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testserver.Main(m)
}

// controller runs a controller of the zoo as a process of its own.
func controller(name string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	s, ok := scenarios()[name]
	if !ok {
		return fmt.Errorf("there is no controller %q", name)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv(kubeconfigVar))
	if err != nil {
		return err
	}
	cfg.QPS = -1
	cfg.ContentType = runtime.ContentTypeJSON // so that operations can be told apart
	return s.Start(ctx, cfg, &controllertest.Env{Namespace: os.Getenv(namespaceVariable), Cloud: cloud.Connect(os.Getenv(cloudVariable))})
}

// scenarios are all of the zoo: "reference", "family", and "family/bug".
func scenarios() map[string]controllertest.Scenario {
	all := map[string]controllertest.Scenario{"reference": zoo.Reference()}
	for _, f := range zoo.Families() {
		all[f.Name] = f.Scenario("")
		for _, m := range f.Mutants {
			all[f.Name+"/"+m.Bug] = f.Scenario(m.Bug)
		}
	}
	return all
}

// asProcess is the same scenario with a real process.
func asProcess(t *testing.T, name string) controllertest.Scenario {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s, ok := scenarios()[name]
	if !ok {
		t.Fatalf("there is no controller %q", name)
	}
	s.Start = nil
	s.Command = func(p controllertest.Process) (*exec.Cmd, error) {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), childVariable+"="+name, kubeconfigVar+"="+p.Kubeconfig,
			namespaceVariable+"="+p.Namespace, cloudVariable+"="+p.CloudURL)
		return cmd, nil
	}
	return s
}

// TestProcess: a real process, killed by SIGKILL and frozen by SIGSTOP, comes to
// the same verdicts as an incarnation in this one.
func TestProcess(t *testing.T) {
	t.Parallel()
	const finalizer, account = "patch configmaps parent metadata.finalizers#1", "external create account-[uid configmaps]#1"
	plans := []string{
		"crash-before@" + finalizer,
		"crash-after@" + account,
		"lost-response@create configmaps parent-1#1",
		"drop-request@" + account,
		"500@delete configmaps parent-2#1",
		"commit-503@create configmaps parent-0#1",
		"truncated@create configmaps parent-0#1",
		"hold-relist(configmaps)@create configmaps parent-2#1",
		"time-travel(configmaps<start)@delete configmaps parent-2#1",
		"freeze@create configmaps parent-1#1",
		"user-delete(configmaps/parent)@" + account,
		"user-recreate(configmaps/parent)@create configmaps parent-0#1",
	}
	for _, s := range []controllertest.Scenario{zoo.Reference(), asProcess(t, "reference")} {
		report, err := controllertest.Run(t.Context(), s, controllertest.Options{Config: testserver.Config(t), KeepNamespaces: true, Plans: plans, Parallel: 4})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range report.Failures {
			t.Errorf("as a process: %v: %v", s.Start == nil, f)
		}
		if report.Valid != len(plans) {
			t.Errorf("as a process: %v: %d of %d plans are valid, not: %q", s.Start == nil, report.Valid, len(plans), report.Invalid)
		}
	}
}
