// Command operator is the operator of the game days: the websites of examples/website, with everything that
// the documentation offers.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/go-logr/zerologr"
	"github.com/rs/zerolog"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/examples/website/api/v1"
	"github.com/controllerkit/controllerkit/examples/website/controller"
	"github.com/controllerkit/controllerkit/examples/website/dns"
	"github.com/controllerkit/controllerkit/internal/gamedays/asleep"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/serve"
	"github.com/controllerkit/controllerkit/shutdown"
	"github.com/controllerkit/controllerkit/tracing"
)

type options struct {
	operator.Options
	dnsURL string
	addr   string // of TLS
	tls    string // the folder of tls.crt and tls.key
	spans  string // the file of the spans
	pod    string // the name of the replica
	label  string // of the children, as of another version of the operator
	shows  bool   // see shown
}

func main() {
	o := options{Options: operator.Options{Name: "website-operator"}}
	kubeconfig := flag.String("kubeconfig", "", "`file` with the cluster")
	logs := flag.String("log", "slog", "logger: slog or zerolog")
	rules := flag.Bool("rules", false, "print the rights that the operator needs, as JSON, and end")
	flag.StringVar(&o.dnsURL, "dns", "http://127.0.0.1:8053", "`URL` of the DNS service")
	flag.StringVar(&o.LeaseNamespace, "lease-namespace", "website-system", "`namespace` of the Lease")
	flag.StringVar(&o.Debug, "debug", "127.0.0.1:0", "`address` of the debug page")
	flag.StringVar(&o.addr, "listen", "127.0.0.1:0", "`address` of /metrics, /readyz and /livez")
	flag.StringVar(&o.tls, "tls", "", "`folder` of tls.crt and tls.key")
	flag.StringVar(&o.spans, "spans", "", "`file` of the spans")
	flag.StringVar(&o.pod, "pod", "", "`name` of this replica in the Lease")
	flag.StringVar(&o.label, "label", "", "`value` of the label version of the ConfigMaps")
	flag.BoolVar(&o.shows, "shows", false, "the ConfigMaps have what the calls read as labels")
	flag.Parse()
	switch *logs {
	case "slog":
		klog.SetSlogLogger(slog.New(slog.NewJSONHandler(os.Stderr, nil)))
	case "zerolog":
		logger := zerolog.New(os.Stderr).Level(zerolog.InfoLevel).With().Timestamp().Logger()
		klog.SetLogger(zerologr.New(&logger))
	default:
		fmt.Fprintf(os.Stderr, "-log %q: use slog or zerolog\n", *logs)
		os.Exit(2)
	}
	if *rules {
		if err := printRules(o); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	ctx, cancel := shutdown.Context(context.Background())
	err := run(ctx, *kubeconfig, o)
	cancel()
	if err != nil {
		klog.Background().Error(err, "The operator ended")
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig string, o options) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	op, err := newOperator(config, o)
	if err != nil {
		return err
	}
	return op.Run(ctx)
}

func printRules(o options) error {
	op, err := newOperator(&rest.Config{Host: "https://no-request"}, o)
	if err != nil {
		return err
	}
	objects, leases := op.Rules()
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"objects": objects, "leases": leases})
}

func newOperator(config *rest.Config, o options) (*operator.Operator, error) {
	exporter, err := newExporter(o.spans)
	if err != nil {
		return nil, err
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter, sdktrace.WithBatchTimeout(time.Second)))
	config.Wrap(tracing.Transport)
	records, err := dns.NewClient(o.dnsURL)
	if err != nil {
		return nil, err
	}
	op, err := operator.New(config, o.Options)
	if err != nil {
		return nil, err
	}
	op.Group.Add("tracing", tracing.Flush(provider, 0))
	op.Elector.Identity = o.pod
	op.Elector.Metrics = tracing.Term(provider, op.Elector.Metrics)
	if err := secure(op, o); err != nil {
		return nil, err
	}

	r := &controller.Reconciler{DNS: records}
	c := operator.Kind(op, v1.GroupVersion.WithResource("websites"), operator.Reconciler[*v1.Website]{
		Reconcile: sleepy(r.Reconcile), Finalizer: controller.Finalizer, Cleanup: sleepyCleanup(r.Cleanup), Manager: "web.example.com/website-operator",
	})
	operator.Children(c, corev1.SchemeGroupVersion.WithResource("configmaps"), applycorev1.ExtractConfigMap)
	operator.Children(c, corev1.SchemeGroupVersion.WithResource("services"), applycorev1.ExtractService)
	operator.Children(c, appsv1.SchemeGroupVersion.WithResource("deployments"), applyappsv1.ExtractDeployment)
	var reads *shown
	if o.shows {
		reads = newShown(c)
	}
	r.Apply = func(ctx context.Context, children ...any) ([]operator.Child, error) {
		for _, child := range children {
			m, ok := child.(*applycorev1.ConfigMapApplyConfiguration)
			if ok && o.label != "" {
				m.WithLabels(map[string]string{"version": o.label})
			}
			if ok && reads != nil {
				shown, err := reads.labels(ctx, *m.Namespace)
				if err != nil {
					return nil, err
				}
				m.WithLabels(shown)
			}
		}
		return c.Apply(ctx, children...)
	}
	trace := &tracing.Controller[types.NamespacedName]{Name: "websites", Provider: provider, Ratio: 1}
	c.Loop.Hook = trace.Hook
	return op, addBundles(op, o.LeaseNamespace)
}

// sleepy returns a reconciler that does nothing while the operator is asleep.
func sleepy[T any](f func(context.Context, T) (reconcile.Result, error)) func(context.Context, T) (reconcile.Result, error) {
	return func(ctx context.Context, obj T) (reconcile.Result, error) {
		if asleep.Now() {
			return reconcile.Result{}, nil
		}
		return f(ctx, obj)
	}
}

func sleepyCleanup[T any](f func(context.Context, T) error) func(context.Context, T) error {
	return func(ctx context.Context, obj T) error {
		if asleep.Now() {
			return nil
		}
		return f(ctx, obj)
	}
}

// secure serves the operator's endpoints over TLS.
func secure(op *operator.Operator, o options) error {
	op.Writes(authenticationv1.Resource("tokenreviews"), "create")
	op.Writes(authorizationv1.Resource("subjectaccessreviews"), "create")
	if o.tls == "" {
		return nil // only the rules are wanted
	}
	kube, err := kubernetes.NewForConfig(op.Config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	server, err := serve.New(serve.Config{
		Addr:    o.addr,
		Handler: op.Mux,
		Open:    []string{"/readyz", "/livez"},
		Guard:   &serve.Guard{Tokens: kube.AuthenticationV1().TokenReviews(), Access: kube.AuthorizationV1().SubjectAccessReviews()},
		KeyPair: &serve.KeyPair{Cert: o.tls + "/tls.crt", Key: o.tls + "/tls.key"},
	})
	if err == nil {
		op.Group.Add("https", shutdown.Server(server))
	}
	return err
}
