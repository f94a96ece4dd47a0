// Package managers has what the operators of controller-runtime's manager share: flags, rights and endpoints.
package managers

import (
	"encoding/json"
	"flag"
	"net/http"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/controllerkit/controllerkit/examples/website/api/v1"
)

// Name and Namespace are those of the Lease.
const (
	Name      = "website-operator"
	Namespace = "website-system"
)

// Flags are those of the operator of the game days.
type Flags struct {
	Kubeconfig, DNS, Listen, TLS, Pod string
}

// Parse parses the flags. With -rules it prints the rights and ends the process.
func Parse() (f Flags) {
	flag.StringVar(&f.DNS, "dns", "", "`URL` of the DNS service")
	flag.StringVar(&f.Listen, "listen", "127.0.0.1:0", "`address` of /metrics, /readyz and /livez")
	flag.StringVar(&f.TLS, "tls", "", "`folder` of tls.crt and tls.key")
	flag.StringVar(&f.Pod, "pod", "", "`name` of this replica in the Lease")
	flag.String("spans", "", "not used")
	rules := flag.Bool("rules", false, "print the rights that the operator needs, as JSON, and end")
	flag.Parse()
	f.Kubeconfig = flag.Lookup("kubeconfig").Value.String() // of controller-runtime
	if *rules {
		write := []string{"get", "list", "watch", "create", "update", "patch"}
		_ = json.NewEncoder(os.Stdout).Encode(map[string]any{
			"objects": []rbacv1.PolicyRule{
				{APIGroups: []string{v1.GroupVersion.Group}, Resources: []string{"websites", "websites/status", "websites/finalizers"}, Verbs: write},
				{APIGroups: []string{""}, Resources: []string{"configmaps", "services"}, Verbs: write},
				{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: write},
				{APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
			},
			"leases": []rbacv1.PolicyRule{{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: write}},
		})
		os.Exit(0)
	}
	return f
}

// Config returns the configuration of the cluster. The API server limits its clients itself.
func (f Flags) Config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", f.Kubeconfig)
	if err == nil {
		config.QPS = -1
	}
	return config, err
}

// Options returns the options of a manager: the scheme and the endpoints. The probes are those of the book.
func (f Flags) Options() (ctrl.Options, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(v1.GroupVersion, &v1.Website{}, &v1.WebsiteList{})
	metav1.AddToGroupVersion(scheme, v1.GroupVersion)
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return ctrl.Options{}, err
		}
	}
	ping := healthz.CheckHandler{Checker: healthz.Ping}
	return ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{
		BindAddress: f.Listen, SecureServing: true, CertDir: f.TLS, ExtraHandlers: map[string]http.Handler{"/livez": ping, "/readyz": ping},
	}}, nil
}

// Labels are on all children of a website.
func Labels(w *v1.Website) map[string]string {
	return map[string]string{"app.kubernetes.io/name": "website", "app.kubernetes.io/instance": w.Name}
}

// Ready is the condition of a website after a call.
func Ready(w *v1.Website, err error) metav1.Condition {
	c := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready", ObservedGeneration: w.Generation, Message: "all is as specified"}
	switch {
	case err != nil:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, "Failed", err.Error()
	case w.Status.ReadyReplicas != w.Spec.Replicas:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, "Progressing", "the Deployment is not ready"
	}
	return c
}
