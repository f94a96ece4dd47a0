// Package websites has two controllers with tracing, whose trace the tests compare.
package websites

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/enqueue"
	v1 "github.com/controllerkit/controllerkit/examples/website/api/v1"
	"github.com/controllerkit/controllerkit/finalizer"
	ckinformer "github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/status"
	"github.com/controllerkit/controllerkit/tracing"
)

// Kind returns the kind of a Website.
func Kind() schema.GroupVersionKind { return v1.GroupVersion.WithKind("Website") }

const manager ssa.FieldManager = "example.com/things"

// Websites are two controllers with tracing. One applies a Deployment for each Website, and
// writes the status of the Website when the Deployment is ready. The other one plays the
// controller of Deployments: it makes each one ready.
type Websites struct {
	kube        kubernetes.Interface
	sites       *crd.Client[*v1.Website]
	cached      crd.Lister[*v1.Website]
	deployments appslisters.DeploymentLister

	Synced []cache.DoneChecker // the informers

	// Tests set these functions before Run. nil means none.
	Seen    func(*v1.Website) // called with the object of each event, before it is queued
	Settled func()            // called at the end of a call that wrote a status
}

// New returns the operator of a namespace, and its reconcilers. If it is bare, the cache has
// no managedFields, and the controllers continue no trace.
func New(config *rest.Config, provider interface {
	trace.TracerProvider
	Shutdown(context.Context) error
}, namespace string, bare bool) (*operator.Operator, *Websites, error) {
	config = rest.CopyConfig(config)
	config.Wrap(tracing.Transport)
	op, err := operator.New(config, operator.Options{Name: "websites"})
	if err != nil {
		return nil, nil, err
	}
	op.Group.Add("tracing", tracing.Flush(provider, 0))
	r := &Websites{}
	if r.kube, err = kubernetes.NewForConfig(op.Config); err != nil {
		return nil, nil, err
	}
	if r.sites, err = crd.New[*v1.Website](op.Config, Kind(), "websites"); err != nil {
		return nil, nil, err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(r.kube, 0, informers.WithNamespace(namespace))

	informer := r.sites.Namespace(namespace).Informer(0, nil)
	r.Synced = []cache.DoneChecker{informer.Informer().HasSyncedChecker(), factory.Apps().V1().Deployments().Informer().HasSyncedChecker()}

	var window time.Duration
	if bare {
		window = -1
		if err := factory.Apps().V1().Deployments().Informer().SetTransform(ckinformer.Trim); err != nil {
			return nil, nil, err
		}
	}

	c := op.Controller("websites", r.reconcile)
	t := &tracing.Controller[types.NamespacedName]{Name: "websites", Provider: provider, Window: window}
	c.Loop.Hook = t.Hook
	r.cached = operator.For(c, v1.Resource("websites"), informer,
		func(e enqueue.Event[*v1.Website]) bool {
			if r.Seen != nil && !e.Deleted {
				r.Seen(e.New)
			}
			return true
		}, enqueue.GenerationChanged, tracing.Events(t, enqueue.KeyOf[*v1.Website]))
	r.deployments = operator.Owns(c, appsv1.Resource("deployments"), factory.Apps().V1().Deployments(),
		changesReadiness, tracing.Events(t, enqueue.ControllerOf[*appsv1.Deployment](Kind().GroupKind())))

	d := op.Controller("deployments", r.reconcileDeployment)
	td := &tracing.Controller[types.NamespacedName]{Name: "deployments", Provider: provider, Window: window}
	d.Loop.Hook = td.Hook
	operator.For(d, appsv1.Resource("deployments"), factory.Apps().V1().Deployments(),
		func(e enqueue.Event[*appsv1.Deployment]) bool { return !e.Deleted && enqueue.GenerationChanged(e) },
		tracing.Events(td, enqueue.KeyOf[*appsv1.Deployment]))
	return op, r, nil
}

// changesReadiness passes the events after which a Website has another status, or lacks its
// Deployment.
func changesReadiness(e enqueue.Event[*appsv1.Deployment]) bool {
	return e.Initial || e.Deleted || !e.Created && (e.Old.Status.ReadyReplicas != e.New.Status.ReadyReplicas ||
		e.Old.Status.ObservedGeneration != e.New.Status.ObservedGeneration || *e.Old.Spec.Replicas != *e.New.Spec.Replicas && !Ready(e.New))
}

// Ready reports whether the controller of Deployments has made d ready.
func Ready(d *appsv1.Deployment) bool {
	return d.Status.ObservedGeneration == d.Generation && d.Status.ReadyReplicas == *d.Spec.Replicas
}

func (r *Websites) reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	w, err := r.cached.Namespace(key.Namespace).Get(key.Name)
	if err != nil {
		return reconcile.Result{}, ignoreNotFound(err)
	}
	sites := r.sites.Namespace(key.Namespace)
	plan := finalizer.Plan[*v1.Website]{Client: sites, Steps: []finalizer.Step[*v1.Website]{tracing.Step(finalizer.Step[*v1.Website]{
		Name: "record", Run: func(context.Context, finalizer.Held[*v1.Website]) (finalizer.Progress, error) {
			return finalizer.Progress{Done: true}, nil
		},
	})}}
	held, live, err := finalizer.Ensure(ctx, sites, w, "example.com/record", plan.Run)
	if err != nil || !live {
		return reconcile.Result{}, err
	}
	w = held.Object()
	d, err := r.apply(ctx, w)
	if err != nil || !Ready(d) {
		return reconcile.Result{}, err // the event of the Deployment comes
	}
	_, err = status.Update(ctx, sites, w, func(w *v1.Website) error {
		w.Status.ObservedGeneration, w.Status.ReadyReplicas = w.Generation, d.Status.ReadyReplicas
		return nil
	})
	if r.Settled != nil {
		r.Settled()
	}
	return reconcile.Result{}, err
}

// apply applies the Deployment of a Website.
func (r *Websites) apply(ctx context.Context, w *v1.Website) (*appsv1.Deployment, error) {
	live, err := r.deployments.Deployments(w.Namespace).Get(w.Name)
	if ignoreNotFound(err) != nil {
		return nil, err
	}
	labels := map[string]string{"app": w.Name}
	client := r.kube.AppsV1().Deployments(w.Namespace)
	request, config := tracing.Carry(manager, client.Apply, applyappsv1.Deployment(w.Name, w.Namespace).
		WithOwnerReferences(applymetav1.OwnerReference().WithAPIVersion(Kind().GroupVersion().String()).WithKind(Kind().Kind).
			WithName(w.Name).WithUID(w.UID).WithController(true).WithBlockOwnerDeletion(true)).
		WithSpec(applyappsv1.DeploymentSpec().WithReplicas(w.Spec.Replicas).
			WithSelector(applymetav1.LabelSelector().WithMatchLabels(labels)).
			WithTemplate(applycorev1.PodTemplateSpec().WithLabels(labels).WithSpec(applycorev1.PodSpec().
				WithContainers(applycorev1.Container().WithName("website").WithImage(w.Spec.Image))))), live)
	d, _, err := ssa.ApplyChanged(ctx, manager, request, config, live, applyappsv1.ExtractDeployment)
	return d, err
}

func (r *Websites) reconcileDeployment(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	d, err := r.deployments.Deployments(key.Namespace).Get(key.Name)
	if err != nil {
		return reconcile.Result{}, ignoreNotFound(err)
	}
	_, err = status.Update(ctx, r.kube.AppsV1().Deployments(key.Namespace), d, func(d *appsv1.Deployment) {
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: *d.Spec.Replicas, ReadyReplicas: *d.Spec.Replicas,
			Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue}}}
	})
	return reconcile.Result{}, ignoreNotFound(err)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// NewSite returns a Website that carries the trace of ctx.
func NewSite(ctx context.Context) *v1.Website {
	w := &v1.Website{ObjectMeta: metav1.ObjectMeta{Name: "blog"}, Spec: v1.WebsiteSpec{Image: "blog:1", Host: "blog.example.com", Replicas: 2}}
	tracing.Inject(ctx, w)
	return w
}
