// Command certmanager runs the controllers of cert-manager that issue certificates in one
// namespace or, with -cainjector, the controller that injects CAs. That of challenges is left out, because it needs
// the clients of many clouds. The command of cert-manager itself is a module that cannot be downloaded. This one
// is a module of its own too, because cert-manager needs an older Kubernetes than package
// findings does. With former.mod and the tag former it is the release before that of go.mod.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/acmeorders"
	"github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/acme"
	"github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	"github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	"github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/acme" // registers itself, as does the next
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "certmanager:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var options controller.ContextOptions
	flags := flag.NewFlagSet("certmanager", flag.ExitOnError) // controller-runtime registers a flag in that of the process
	flags.StringVar(&options.Kubeconfig, "kubeconfig", "", "`file` of the API server")
	flags.StringVar(&options.Namespace, "namespace", "", "`name` of the namespace")
	injects := flags.Bool("cainjector", false, "run the cainjector")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return err
	}
	if *injects {
		return inject(ctx, options.Kubeconfig, options.Namespace)
	}
	options.ClusterResourceNamespace = options.Namespace
	// The defaults are an hour and more: longer than an exploration waits.
	options.CertificateRequestMinimumBackoffDuration = time.Second
	limitBackoff(&options)

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	factory, err := controller.NewContextFactory(ctx, options)
	if err != nil {
		return err
	}
	names := []string{
		issuers.ControllerName, approver.ControllerName, selfsigned.CRControllerName, trigger.ControllerName, keymanager.ControllerName,
		acme.CRControllerName, acmeorders.ControllerName,
		requestmanager.ControllerName, issuing.ControllerName, readiness.ControllerName, revisionmanager.ControllerName,
	}
	done := make(chan error, len(names))
	for _, name := range names {
		c, err := controller.Known()[name](factory)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		go func() {
			err := c.Run(2, ctx)
			cancel(fmt.Errorf("%s ended", name))
			done <- err
		}()
	}
	shared, err := factory.Build()
	if err != nil {
		return err
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	for range names {
		err = errors.Join(err, <-done)
	}
	return err
}
