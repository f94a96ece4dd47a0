package managerkit_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/informer/compact"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestServerCompact runs a manager with compact caches: For, Owns, an index, a Gate, and reads
// whose results the caller changes.
func TestServerCompact(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	config := testserver.Config(t)
	options := ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}, Cache: cache.Options{
		NewInformer:                  compact.NewInformer,
		DefaultUnsafeDisableDeepCopy: new(true),
		DefaultNamespaces:            map[string]cache.Config{namespace: {}},
	}}
	writes := managerkit.NewWrites(consistency.Config{})
	if err := writes.Install(config, &options); err != nil {
		t.Fatal(err)
	}
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		t.Fatal(err)
	}
	if err := mgr.GetFieldIndexer().IndexField(t.Context(), &corev1.Secret{}, "owner", func(o client.Object) []string {
		if c := metav1.GetControllerOf(o); c != nil {
			return []string{c.Name}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	made, back := make(chan string, 100), make(chan string, 100)
	c := mgr.GetClient()
	f := crreconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
		cm := &corev1.ConfigMap{}
		if err := c.Get(ctx, req.NamespacedName, cm); err != nil || cm.Labels["pair"] == "" {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
		if cm.Labels["pair"] != "yes" {
			return ctrl.Result{}, fmt.Errorf("the cache has the label %q", cm.Labels["pair"])
		}
		var secrets corev1.SecretList
		if err := c.List(ctx, &secrets, client.InNamespace(req.Namespace), client.MatchingFields{"owner": cm.Name}); err != nil {
			return ctrl.Result{}, err
		}
		for i := range secrets.Items {
			secrets.Items[i].Labels, secrets.Items[i].OwnerReferences = nil, nil // they are the caller's
		}
		if len(secrets.Items) > 0 {
			cm.Labels["pair"] = "changed"
			back <- cm.Name
			return ctrl.Result{}, nil
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: cm.Namespace, GenerateName: "pair-"}}
		if err := controllerutil.SetControllerReference(cm, secret, mgr.GetScheme()); err != nil {
			return ctrl.Result{}, err
		}
		if err := c.Create(ctx, secret); err != nil {
			return ctrl.Result{}, err
		}
		made <- cm.Name
		cm.Labels["pair"] = "changed" // the cache does not change
		return ctrl.Result{RequeueAfter: time.Nanosecond}, nil
	})
	b := ctrl.NewControllerManagedBy(mgr).Named("mk-compact").For(&corev1.ConfigMap{}).Owns(&corev1.Secret{})
	loop := &reconcile.Controller[ctrl.Request]{Workers: 4, Gate: writes.Gate()}
	if err := managerkit.Complete(b, f, loop, controller.Options{}); err != nil {
		t.Fatal(err)
	}
	startManager(t, mgr)
	kube := kubernetes.NewForConfigOrDie(testserver.Config(t))
	const n = 20
	for i := range n {
		if _, err := kube.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprint("one-", i), Labels: map[string]string{"pair": "yes"},
		}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for range n {
		receive(t, made, "a new Secret")
		receive(t, back, "a reconcile that reads it")
	}
	secrets, err := kube.CoreV1().Secrets(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(secrets.Items) != n {
		t.Fatalf("%d Secrets for %d ConfigMaps: %v", len(secrets.Items), n, err)
	}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "absent"}, &corev1.Secret{}); !apierrors.IsNotFound(err) {
		t.Errorf("Get of an absent Secret: %v", err)
	}
	if err := kube.CoreV1().Secrets(namespace).Delete(t.Context(), secrets.Items[0].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	receive(t, made, "a Secret in place of the deleted one")
}
