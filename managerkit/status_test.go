package managerkit_test

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/managerkit/managertest"
)

// TestUpdateStatus: a status that was changed in place is written once, from the cached object or the live one.
func TestUpdateStatus(t *testing.T) {
	ctx := t.Context()
	obj := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "a", Generation: 2}}
	stale, live := managertest.Fake(fake.NewClientBuilder().WithStatusSubresource(obj), obj)
	c := &lateCache{WithWatch: stale}
	deployments, err := managerkit.NewClient[*appsv1.Deployment](c, live)
	if err != nil {
		t.Fatal(err)
	}
	got := &appsv1.Deployment{}
	get := func() {
		t.Helper()
		if err := live.Get(ctx, client.ObjectKeyFromObject(obj), got); err != nil {
			t.Fatal(err)
		}
	}
	get()
	old := got.DeepCopy()
	if err := managerkit.UpdateStatus(ctx, deployments, got); err != nil || got.ResourceVersion != old.ResourceVersion {
		t.Errorf("an equal status is written: %v", err)
	}
	got.Status.Replicas, got.Spec.Paused = 3, true
	if err := managerkit.UpdateStatus(ctx, deployments, got); err != nil || got.Status.Replicas != 3 || got.Spec.Paused || got.ResourceVersion == old.ResourceVersion {
		t.Fatalf("stored %+v, %v", got, err)
	}
	// A second write in the call, while the cache is older than the object.
	c.old = old
	got.Status.Replicas = 4
	if err := managerkit.UpdateStatus(ctx, deployments, got); err != nil || got.Status.Replicas != 4 {
		t.Errorf("with an old cache: %+v, %v", got, err)
	}
	// The object has changed.
	old.Status.Replicas = 5
	c.old = nil
	if err := managerkit.UpdateStatus(ctx, deployments, old); !apierrors.IsConflict(err) || old.Status.Replicas != 5 {
		t.Errorf("an old object: %v, want a Conflict, and the object as it was: %+v", err, old.Status)
	}
	get()
	got.Status.ObservedGeneration = 3
	if err := managerkit.UpdateStatus(ctx, deployments, got); err == nil || !strings.Contains(err.Error(), "generation 3") {
		t.Errorf("a generation of the future: %v", err)
	}
	if err := managerkit.UpdateStatus(ctx, deployments, nil); err == nil || !strings.Contains(err.Error(), "the object is nil") {
		t.Errorf("no object: %v", err)
	}
	if err := managerkit.UpdateStatus(ctx, nil, got); err == nil || !strings.Contains(err.Error(), "the Client is nil") {
		t.Errorf("no client: %v", err)
	}

	untyped, err := managerkit.NewClientForKind[*unstructured.Unstructured](stale, live, appsv1.SchemeGroupVersion.WithKind("Deployment"))
	if err != nil {
		t.Fatal(err)
	}
	u, err := untyped.Namespace("a").Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := unstructured.SetNestedField(u.Object, int64(7), "status", "replicas"); err != nil {
		t.Fatal(err)
	}
	if err := managerkit.UpdateStatus(ctx, untyped, u); err != nil {
		t.Fatal(err)
	}
	if n, _, _ := unstructured.NestedInt64(u.Object, "status", "replicas"); n != 7 {
		t.Errorf("%d replicas, want 7", n)
	}
}

// TestUpdateStatusOfAnyKind: a reconciler of several kinds, whose T is an interface, writes the status of
// each. An object of another kind is rejected before a request.
func TestUpdateStatusOfAnyKind(t *testing.T) {
	ctx := t.Context()
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "a"}, Spec: appsv1.DeploymentSpec{Paused: true}}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "a"}}
	c, live := managertest.Fake(fake.NewClientBuilder().WithStatusSubresource(deployment, set), deployment, set)
	deployments, err := managerkit.NewClientForKind[client.Object](c, live, appsv1.SchemeGroupVersion.WithKind("Deployment"))
	if err != nil {
		t.Fatal(err)
	}
	sets, err := managerkit.NewClientForKind[client.Object](c, live, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))
	if err != nil {
		t.Fatal(err)
	}
	var read [2]client.Object
	for i, objects := range []*managerkit.Client[client.Object]{deployments, sets} {
		if read[i], err = objects.Namespace("a").Get(ctx, "a", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	read[0].(*appsv1.Deployment).Status.Replicas = 3
	read[1].(*appsv1.StatefulSet).Status.Replicas = 4
	for i, objects := range []*managerkit.Client[client.Object]{deployments, sets} {
		version := read[i].GetResourceVersion()
		if err := managerkit.UpdateStatus(ctx, objects, read[i]); err != nil || read[i].GetResourceVersion() == version {
			t.Errorf("stored %T %+[1]v, %v", read[i], err)
		}
	}
	if d := read[0].(*appsv1.Deployment); d.Status.Replicas != 3 || !d.Spec.Paused {
		t.Errorf("stored %+v", d)
	}
	if s := read[1].(*appsv1.StatefulSet); s.Status.Replicas != 4 {
		t.Errorf("stored %+v", s)
	}
	for want, obj := range map[string]client.Object{
		"the object is a *v1.StatefulSet, and apps/v1, Kind=Deployment is *v1.Deployment": read[1],
		"the object is nil: pass a *v1.Deployment":                                        nil,
	} {
		if err := managerkit.UpdateStatus(ctx, deployments, obj); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%T: %v, want %q", obj, err, want)
		}
	}
}

// lateCache is a client whose Get returns an old object.
type lateCache struct {
	client.WithWatch
	old *appsv1.Deployment
}

func (c *lateCache) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if c.old == nil {
		return c.WithWatch.Get(ctx, key, obj, opts...)
	}
	c.old.DeepCopyInto(obj.(*appsv1.Deployment))
	return nil
}

// TestNewElector: the Lease is that of the manager's own election.
func TestNewElector(t *testing.T) {
	config := &rest.Config{Host: "https://shop.example"}
	e, err := managerkit.NewElector(config, ctrl.Options{LeaderElectionID: "shop.example.com", LeaderElectionNamespace: "shop"})
	if err != nil || e.Name != "shop.example.com" || e.Namespace != "shop" || e.Leases == nil {
		t.Errorf("the Elector is %+v, %v", e, err)
	}
	options := ctrl.Options{LeaderElectionID: "shop.example.com", LeaderElectionNamespace: "shop"}
	if err := managerkit.Elect(&options, e); err != nil {
		t.Error(err)
	}
	for want, f := range map[string]func() (any, error){
		"config is nil":                    func() (any, error) { return managerkit.NewElector(nil, options) },
		"LeaderElectionID is empty":        func() (any, error) { return managerkit.NewElector(config, ctrl.Options{}) },
		"LeaderElectionNamespace is empty": func() (any, error) { return managerkit.NewElector(config, ctrl.Options{LeaderElectionID: "a"}) }, // no Pod
		"http://a b":                       func() (any, error) { return managerkit.NewElector(&rest.Config{Host: "http://a b"}, options) },
	} {
		if _, err := f(); err == nil || !strings.HasPrefix(err.Error(), "managerkit: NewElector: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
