// Command backup is an operator for backups: see its README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/examples/backup/controller"
	"github.com/controllerkit/controllerkit/examples/backup/store"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/preview"
	"github.com/controllerkit/controllerkit/shutdown"
)

func main() {
	o := operator.Options{Name: "backup-operator"}
	settings := types.NamespacedName{Name: "backup-settings"}
	kubeconfig := flag.String("kubeconfig", "", "`file` with the cluster; empty means that of the Pod")
	storeURL := flag.String("store", "http://127.0.0.1:8054", "`URL` of the store")
	flag.StringVar(&settings.Namespace, "settings-namespace", "backup-system", "`namespace` of the ConfigMap backup-settings")
	flag.StringVar(&o.LeaseNamespace, "lease-namespace", "", "`namespace` of the Lease; empty means no election")
	flag.StringVar(&o.Listen, "listen", "127.0.0.1:8080", "`address` of /metrics, /readyz and /livez")
	flag.BoolFunc("preview", "print what this version would change, and exit with 0 for nothing, 1 for an error, and 2 for changes", func(string) error {
		o.Preview = &preview.Preview{}
		return nil
	})
	flag.Parse()

	// The lines of this program, of the library and of client-go go to one log, whose level the
	// settings change.
	level := new(slog.LevelVar)
	logger := newLogger(os.Stderr, level)
	klog.SetSlogLogger(logger)

	ctx, cancel := shutdown.Context(context.Background())
	err := run(ctx, *kubeconfig, *storeURL, controller.Options{Operator: o, Settings: settings, Level: level})
	cancel()
	if err == nil && o.Preview != nil {
		report := o.Preview.Report()
		if err = report.WriteText(os.Stdout); err == nil {
			os.Exit(report.ExitCode())
		}
	}
	if err != nil {
		logger.Error("The operator ended", "err", err)
		os.Exit(1)
	}
}

// newLogger returns a logger that writes JSON.
func newLogger(w io.Writer, level *slog.LevelVar) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
}

// run runs the operator until ctx is done. kubeconfig is a file, or "" for the cluster of the Pod.
func run(ctx context.Context, kubeconfig, storeURL string, o controller.Options) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	if o.Store, err = store.NewClient(storeURL); err != nil {
		return fmt.Errorf("backup operator: %w", err)
	}
	o.VisibleAfter, o.Now = store.VisibleAfter, time.Now
	op, err := controller.New(config, o)
	if err != nil {
		return err
	}
	return op.Run(ctx)
}
