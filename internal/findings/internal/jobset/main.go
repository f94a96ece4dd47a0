// Command jobset runs the controller of JobSets in one namespace. It is a module of its own,
// because package findings has another version of JobSet: go.mod has a release before that one, and
// next.mod the release after it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/jobset/pkg/controllers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "jobset:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	flags := flag.NewFlagSet("jobset", flag.ExitOnError) // controller-runtime registers a flag in that of the process
	kubeconfig := flags.String("kubeconfig", "", "`file` of the API server")
	namespace := flags.String("namespace", "", "`name` of the namespace")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return err
	}
	ctrl.SetLogger(klog.Background())
	cfg, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	cfg.ContentType = runtime.ContentTypeJSON // the explorer reads the requests
	types := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(types), v1alpha2.AddToScheme(types)); err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme:  types,
		Cache:   cache.Options{DefaultNamespaces: map[string]cache.Config{*namespace: {}}},
		Metrics: server.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	err = errors.Join(
		controllers.SetupJobSetIndexes(ctx, mgr.GetFieldIndexer()),
		controllers.NewJobSetReconciler(mgr.GetClient(), mgr.GetScheme(), mgr.GetEventRecorderFor("jobset")).SetupWithManager(mgr),
	)
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}
