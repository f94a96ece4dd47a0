package page

import (
	"context"
	"fmt"
	"log"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listerscorev1 "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/crd/crdtest"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/owner"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/shutdown"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/status"
)
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=websites
type Website struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   WebsiteSpec   `json:"spec,omitempty"`
	Status WebsiteStatus `json:"status,omitempty"`
}

type WebsiteSpec struct {
	Host string `json:"host"`
}

type WebsiteStatus struct {
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

var WebsiteKind = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Website"}

func Resource(name string) schema.GroupResource {
	return schema.GroupResource{Group: WebsiteKind.Group, Resource: name}
}
type reconciler struct {
	websites *crd.Client[*Website]
	lister   crd.Lister[*Website]
}

func (r *reconciler) reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	w, err := r.lister.Namespace(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, nil
	}
	if err != nil || w.DeletionTimestamp != nil { // its children are being deleted, too
		return reconcile.Result{}, err
	}
	_, err = status.Update(ctx, r.websites.Namespace(w.Namespace), w, func(w *Website) error {
		w.Status.ObservedGeneration = w.Generation
		return status.Set(&w.Status.Conditions, w.Generation, status.True("Ready", "Served", "https://"+w.Spec.Host))
	})
	return reconcile.Result{}, err
}

func run(config *rest.Config) error { // the clients of op.Config have no limit of their own
	ctx, cancel := shutdown.Context(context.Background())
	defer cancel()
	op, err := operator.New(config, operator.Options{Name: "websites"})
	if err != nil {
		return err
	}
	websites, err := crd.New[*Website](op.Config, WebsiteKind, "websites")
	if err != nil {
		return err
	}
	r := &reconciler{websites: websites}
	c := op.Controller("websites", r.reconcile)
	r.lister = operator.For(c, Resource("websites"), websites.Informer(0, nil)) // or of websites.Namespace("shop")
	op.Writes(Resource("websites/status"), "update")
	return op.Run(ctx)
}

func main() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG")) // in a Pod: that of its account
	if err == nil {
		err = run(config)
	}
	if err != nil {
		log.Fatal(err)
	}
}
type children struct {
	kube     kubernetes.Interface
	services listerscorev1.ServiceLister
}

func (c *children) register(op *operator.Operator, controller *operator.Controller) (err error) {
	if c.kube, err = kubernetes.NewForConfig(op.Config); err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(c.kube, 0)
	c.services = operator.Owns(controller, corev1.Resource("services"), factory.Core().V1().Services())
	op.Writes(corev1.Resource("services"), "get", "create", "patch")
	return nil
}

func (c *children) service(ctx context.Context, w *Website) error {
	live, err := c.services.Services(w.Namespace).Get(w.Name)
	if apierrors.IsNotFound(err) { // an object that the cache does not show yet must not be adopted
		if live, err = c.kube.CoreV1().Services(w.Namespace).Get(ctx, w.Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			live, err = nil, nil
		}
	}
	if err != nil {
		return err
	}
	if live != nil && !metav1.IsControlledBy(live, w) {
		// Its deletion queues no key of ours, so the key is tried again.
		return fmt.Errorf("the Service %s has another owner: %w", w.Name, reconcile.ErrRejected)
	}
	ref, err := owner.Controller(w, WebsiteKind)
	if err != nil {
		return err
	}
	_, _, err = ssa.ApplyChanged(ctx, "websites", c.kube.CoreV1().Services(w.Namespace).Apply,
		applycorev1.Service(w.Name, w.Namespace).WithOwnerReferences(ref).WithSpec(applycorev1.ServiceSpec().
			WithSelector(map[string]string{"website": w.Name}).WithPorts(applycorev1.ServicePort().WithPort(80))),
		live, applycorev1.ExtractService)
	return err
}
func TestReconcile(t *testing.T) {
	shop := &Website{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "shop"}, Spec: WebsiteSpec{Host: "shop.example.com"}}
	fake, err := crdtest.NewFake(WebsiteKind, "websites", shop)
	if err != nil {
		t.Fatal(err)
	}
	source := fake.Informer(0, nil)
	go source.Informer().RunWithContext(t.Context())
	if !cache.WaitForCacheSync(t.Context().Done(), source.Informer().HasSynced) {
		t.Fatal("the informer is not synced")
	}
	r := &reconciler{websites: fake.Client, lister: source.Lister()}
	if _, err := r.reconcile(t.Context(), types.NamespacedName{Namespace: "default", Name: "shop"}); err != nil {
		t.Fatal(err)
	}
	got, err := fake.Namespace(shop.Namespace).Get(t.Context(), shop.Name, metav1.GetOptions{})
	if err != nil || len(got.Status.Conditions) != 1 {
		t.Error(got, err)
	}
}
