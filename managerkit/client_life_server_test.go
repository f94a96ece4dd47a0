package managerkit_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/status"
)

// The test of lives counts the requests of a controller during the life of a ClientSite,
// as the row life/requests of module bench: it has a finalizer, a Deployment, a Service,
// two ConfigMaps and a status. The test calls the reconcile functions itself, each time
// with a cache that has caught up, so that the counts are the same in every run. They are
// the least of each controller: a cache that lags only adds requests.

const (
	lifeFinalizer = "client.example.com/outside"
	lifeLabel     = "client.example.com/site"
	lifeTouches   = 5 // changes of an annotation
	lifeResyncs   = 3
)

// lifeCounts are the requests of a life by phase.
type lifeCounts struct{ Creation, Steady, Deletion int }

func lifeKinds() []client.Object {
	return []client.Object{&clientSite{}, &appsv1.Deployment{}, &corev1.Service{}, &corev1.ConfigMap{}}
}

// lifeReconcile makes a reconcile function.
type lifeReconcile func(t *testing.T, mgr manager.Manager, namespace string) func(context.Context, types.NamespacedName) error

// playLife plays a life and returns the counts.
func playLife(t *testing.T, reconcileFor lifeReconcile) lifeCounts {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	namespace := testserver.Namespace(t)
	config, requests := recorder(testserver.Config(t))
	mgr := startClientManager(t, config, namespace, lifeKinds()...)
	events := make(chan struct{}, 1)
	for _, kind := range lifeKinds() {
		informer, err := mgr.GetCache().GetInformer(ctx, kind)
		if err != nil {
			t.Fatal(err)
		}
		signal := func() {
			select {
			case events <- struct{}{}:
			default:
			}
		}
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { signal() }, UpdateFunc: func(any, any) { signal() }, DeleteFunc: func(any) { signal() },
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	user := newUncached(t, testserver.Config(t))
	key := types.NamespacedName{Namespace: namespace, Name: "site"}
	// caughtUp waits until the cache has what the API server has. It returns the versions.
	caughtUp := func() map[string]string {
		for {
			want, got := lifeVersions(ctx, t, user, namespace), lifeVersions(ctx, t, mgr.GetClient(), namespace)
			if maps.Equal(want, got) {
				return got
			}
			select {
			case <-events:
			case <-ctx.Done():
				t.Fatalf("the cache has %v, the API server %v", got, want)
			}
		}
	}
	reconcile := reconcileFor(t, mgr, namespace)
	// run calls reconcile for one event, and again as long as its writes cause others.
	run := func() {
		for before := caughtUp(); ; {
			if err := reconcile(ctx, key); err != nil {
				t.Fatal(err)
			}
			after := caughtUp()
			if maps.Equal(before, after) {
				return
			}
			before = after
		}
	}
	count := func() int {
		n := 0
		for _, r := range requests() {
			if query, err := url.ParseQuery(r.Query); err != nil || !query.Has("watch") {
				n++
			}
		}
		return n
	}

	requests()
	site := &clientSite{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "site"}, Spec: clientSiteSpec{Host: "h"}}
	if err := user.Create(ctx, site); err != nil {
		t.Fatal(err)
	}
	run()
	counts := lifeCounts{Creation: count()}
	if err := user.Get(ctx, key, site); err != nil || !meta.IsStatusConditionTrue(site.Status.Conditions, "Ready") || !finalizer.Has(site, lifeFinalizer) {
		t.Errorf("after the creation: %+v, %v", site, err)
	}
	if got := len(lifeVersions(ctx, t, user, namespace)); got != 5 {
		t.Errorf("after the creation: %d objects, want 5", got)
	}
	for i := range lifeTouches {
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"touched":"%d"}}}`, i))
		if err := user.Patch(ctx, site, patch); err != nil {
			t.Fatal(err)
		}
		run()
	}
	for range lifeResyncs {
		run()
	}
	counts.Steady = count()
	if err := user.Delete(ctx, site); err != nil {
		t.Fatal(err)
	}
	run()
	counts.Deletion = count()
	if err := user.Get(ctx, key, site); !apierrors.IsNotFound(err) {
		t.Errorf("after the deletion: %v", err)
	}
	return counts
}

// lifeVersions returns the version of each object that the reader has.
func lifeVersions(ctx context.Context, t *testing.T, r client.Reader, namespace string) map[string]string {
	t.Helper()
	versions := map[string]string{}
	for _, list := range []client.ObjectList{&clientSiteList{}, &appsv1.DeploymentList{}, &corev1.ServiceList{}, &corev1.ConfigMapList{}} {
		if err := r.List(ctx, list, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		items, err := meta.ExtractList(list)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range items {
			obj := item.(client.Object)
			if _, isSite := item.(*clientSite); !isSite && obj.GetLabels()[lifeLabel] == "" {
				continue // of the cluster
			}
			versions[fmt.Sprintf("%T %s", item, obj.GetName())] = obj.GetResourceVersion()
		}
	}
	return versions
}

func lifeLabels(site *clientSite) map[string]string { return map[string]string{lifeLabel: site.Name} }

// lifeOurs reconciles through Clients.
func lifeOurs(t *testing.T, mgr manager.Manager, namespace string) func(context.Context, types.NamespacedName) error {
	t.Helper()
	all, err := managerkit.NewClient[*clientSite](mgr.GetClient(), mgr.GetAPIReader())
	deployments, deploymentsErr := managerkit.NewClient[*appsv1.Deployment](mgr.GetClient(), mgr.GetAPIReader())
	services, servicesErr := managerkit.NewClient[*corev1.Service](mgr.GetClient(), mgr.GetAPIReader())
	configMaps, configMapsErr := managerkit.NewClient[*corev1.ConfigMap](mgr.GetClient(), mgr.GetAPIReader())
	if err := errors.Join(err, deploymentsErr, servicesErr, configMapsErr); err != nil {
		t.Fatal(err)
	}
	sites := all.Namespace(namespace)
	return func(ctx context.Context, key types.NamespacedName) error {
		site := &clientSite{}
		if err := mgr.GetClient().Get(ctx, key, site); err != nil {
			return client.IgnoreNotFound(err)
		}
		held, alive, err := finalizer.Ensure(ctx, sites, site, lifeFinalizer, func(context.Context, finalizer.Held[*clientSite]) error { return nil })
		if err != nil || !alive {
			return err
		}
		site = held.Object()
		owner := applymetav1.OwnerReference().WithAPIVersion(clientSiteKind().GroupVersion().String()).WithKind(clientSiteKind().Kind).
			WithName(site.Name).WithUID(site.UID).WithController(true).WithBlockOwnerDeletion(true)
		deployment := applyappsv1.Deployment(site.Name, namespace).WithLabels(lifeLabels(site)).WithOwnerReferences(owner).
			WithSpec(applyappsv1.DeploymentSpec().WithReplicas(2).
				WithSelector(applymetav1.LabelSelector().WithMatchLabels(lifeLabels(site))).
				WithTemplate(applycorev1.PodTemplateSpec().WithLabels(lifeLabels(site)).
					WithSpec(applycorev1.PodSpec().WithContainers(applycorev1.Container().WithName("main").WithImage("example.com/image:1")))))
		service := applycorev1.Service(site.Name, namespace).WithLabels(lifeLabels(site)).WithOwnerReferences(owner).
			WithSpec(applycorev1.ServiceSpec().WithSelector(lifeLabels(site)).
				WithPorts(applycorev1.ServicePort().WithName("http").WithPort(80).WithProtocol(corev1.ProtocolTCP).WithTargetPort(intstr.FromInt32(8080))))
		err = errors.Join(
			lifeApply(ctx, mgr, deployments, &appsv1.Deployment{}, deployment, applyappsv1.ExtractDeployment),
			lifeApply(ctx, mgr, services, &corev1.Service{}, service, applycorev1.ExtractService),
		)
		for _, name := range []string{"first", "second"} {
			configMap := applycorev1.ConfigMap(site.Name+"-"+name, namespace).WithLabels(lifeLabels(site)).WithOwnerReferences(owner).
				WithData(map[string]string{"name": name})
			err = errors.Join(err, lifeApply(ctx, mgr, configMaps, &corev1.ConfigMap{}, configMap, applycorev1.ExtractConfigMap))
		}
		if err != nil {
			return err
		}
		_, err = status.Update(ctx, sites, site, func(site *clientSite) error {
			site.Status.Address = "10.0.0.1"
			return status.Set(&site.Status.Conditions, site.Generation, status.True("Ready", "Applied", "all children are there"))
		})
		return err
	}
}

// lifeApply applies a child. cached is an empty object.
func lifeApply[T client.Object, C interface {
	GetName() *string
	GetNamespace() *string
}](ctx context.Context, mgr manager.Manager, c *managerkit.Client[T], cached T, config C, extract func(T, string) (C, error)) error {
	key := types.NamespacedName{Namespace: *config.GetNamespace(), Name: *config.GetName()}
	if err := mgr.GetClient().Get(ctx, key, cached); apierrors.IsNotFound(err) {
		var none T
		cached = none
	} else if err != nil {
		return err
	}
	_, _, err := ssa.ApplyChanged(ctx, "client-test", c.Namespace(key.Namespace).Apply, any(config), cached,
		func(live T, fieldManager string) (any, error) { return extract(live, fieldManager) })
	return err
}

// lifeUsual reconciles as controller-runtime's book does.
func lifeUsual(_ *testing.T, mgr manager.Manager, namespace string) func(context.Context, types.NamespacedName) error {
	c := mgr.GetClient()
	return func(ctx context.Context, key types.NamespacedName) error {
		site := &clientSite{}
		if err := c.Get(ctx, key, site); err != nil {
			return client.IgnoreNotFound(err)
		}
		if !site.DeletionTimestamp.IsZero() {
			if controllerutil.RemoveFinalizer(site, lifeFinalizer) {
				return c.Update(ctx, site)
			}
			return nil
		}
		if controllerutil.AddFinalizer(site, lifeFinalizer) {
			if err := c.Update(ctx, site); err != nil {
				return err
			}
		}
		child := func(obj client.Object, mutate func()) error {
			obj.SetNamespace(namespace)
			_, err := controllerutil.CreateOrUpdate(ctx, c, obj, func() error {
				obj.SetLabels(lifeLabels(site))
				mutate()
				return controllerutil.SetControllerReference(site, obj, mgr.GetScheme())
			})
			return err
		}
		deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: site.Name}}
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: site.Name}}
		err := errors.Join(
			child(deployment, func() {
				deployment.Spec.Replicas = new(int32(2))
				deployment.Spec.Selector = &metav1.LabelSelector{MatchLabels: lifeLabels(site)}
				deployment.Spec.Template = corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: lifeLabels(site)},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/image:1"}}},
				}
			}),
			child(service, func() {
				service.Spec.Selector = lifeLabels(site)
				service.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}}
			}),
		)
		for _, name := range []string{"first", "second"} {
			configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: site.Name + "-" + name}}
			err = errors.Join(err, child(configMap, func() { configMap.Data = map[string]string{"name": name} }))
		}
		if err != nil {
			return err
		}
		site.Status.Address = "10.0.0.1"
		meta.SetStatusCondition(&site.Status.Conditions, metav1.Condition{
			Type: "Ready", Status: metav1.ConditionTrue, Reason: "Applied", Message: "all children are there", ObservedGeneration: site.Generation,
		})
		return c.Status().Update(ctx, site)
	}
}

// TestServerClientLife counts the requests of a life: 7 through Clients, which are the
// necessary ones, beside those of the usual controller.
func TestServerClientLife(t *testing.T) {
	installClientSites(t)
	ours, usual := playLife(t, lifeOurs), playLife(t, lifeUsual)
	t.Logf("requests in a life: %+v through Clients, %+v in the usual pattern", ours, usual)
	if want := (lifeCounts{Creation: 6, Deletion: 1}); ours != want {
		t.Errorf("through Clients: %+v, want %+v", ours, want)
	}
	// A Deployment has defaults that the mutate function removes, and a status is written
	// each time, so each reconcile of a steady object sends two requests. In a cluster
	// with more controllers there are more reconciles.
	if least := (lifeCounts{Creation: 8, Steady: 2 * (lifeTouches + lifeResyncs), Deletion: 1}); usual.Creation < least.Creation || usual.Steady < least.Steady || usual.Deletion < least.Deletion {
		t.Errorf("in the usual pattern: %+v, want at least %+v", usual, least)
	}
}
