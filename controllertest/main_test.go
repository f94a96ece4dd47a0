package controllertest_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// processVariable makes the test binary a controller: what Scenario.Command
// starts.
const processVariable = "CONTROLLERTEST_TEST_PROCESS"

func TestMain(m *testing.M) {
	if kubeconfig := os.Getenv(processVariable); kubeconfig != "" {
		if err := process(kubeconfig, os.Getenv("NAMESPACE")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testserver.SkipExamples()
	testserver.Main(m)
}

// process is the copier's main function. It prints when it has been stopped for a
// while.
func process(kubeconfig, namespace string) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		last := time.Now()
		for range time.Tick(10 * time.Millisecond) {
			if time.Since(last) > 500*time.Millisecond {
				fmt.Println("stood still for some time")
			}
			last = time.Now()
		}
	}()
	return (&copier{}).start(ctx, cfg, &controllertest.Env{Namespace: namespace})
}
