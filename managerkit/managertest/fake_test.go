package managertest_test

import (
	"context"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/managerkit/managertest"
	"github.com/controllerkit/controllerkit/owner"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/status"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestFake: packages that need a uid work with objects that have none in the test, and interceptors around the
// client see the requests.
func TestFake(t *testing.T) {
	ctx := t.Context()
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "a"}}
	c, live := managertest.Fake(fake.NewClientBuilder().WithStatusSubresource(deployment), deployment)
	if deployment.UID != "" {
		t.Error("Fake changed an object of the caller")
	}
	patches := 0
	c = interceptor.NewClient(c, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			patches++
			return c.Patch(ctx, obj, patch, opts...)
		},
	})
	deployments, err := managerkit.NewClient[*appsv1.Deployment](c, live)
	must(t, err)
	got := &appsv1.Deployment{}
	must(t, c.Get(ctx, client.ObjectKeyFromObject(deployment), got))
	held, alive, err := finalizer.Ensure(ctx, deployments.Namespace("a"), got, "example.com/x", func(context.Context, finalizer.Held[*appsv1.Deployment]) error { return nil })
	must(t, err)
	if !alive || held.Object().Kind != "Deployment" || patches != 1 {
		t.Errorf("alive %t, kind %q, %d patches", alive, held.Object().Kind, patches)
	}
	got = held.Object()
	got.Status.Replicas = 5 // in place
	version := got.ResourceVersion
	must(t, managerkit.UpdateStatus(ctx, deployments, got))
	if got.Status.Replicas != 5 || got.ResourceVersion == version {
		t.Errorf("the stored status is %+v", got.Status)
	}
	stored, err := status.Patch(ctx, deployments.Namespace("a"), got, func(d *appsv1.Deployment) { d.Status.Replicas = 6 })
	must(t, err)
	child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "child"}}
	must(t, owner.SetController(stored, appsv1.SchemeGroupVersion.WithKind("Deployment"), child))
	must(t, c.Create(ctx, child))
	if child.UID == "" {
		t.Error("a created object has no uid")
	}
	if err := c.Create(ctx, &corev1.ConfigMap{ObjectMeta: child.ObjectMeta}); err == nil {
		t.Error("a second object of the name was created")
	}
	again := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "child"}}
	if err := c.Create(ctx, again); err == nil || again.UID != "" {
		t.Errorf("Create = %v, and the uid is %q", err, again.UID)
	}

	maps, err := managerkit.NewClient[*corev1.ConfigMap](c, live)
	must(t, err)
	var uid string
	for n := range 2 {
		config := applycorev1.ConfigMap("m", "a").WithData(map[string]string{"k": "v"})
		applied, err := ssa.Apply(ctx, "x", maps.Namespace("a").Apply, any(config))
		must(t, err)
		if applied.UID == "" || n == 1 && string(applied.UID) != uid {
			t.Errorf("the applied object has the uid %q, and had %q", applied.UID, uid)
		}
		uid = string(applied.UID)
	}
	for _, want := range []bool{true, false} {
		var present corev1.ConfigMap
		must(t, c.Get(ctx, client.ObjectKey{Namespace: "a", Name: "m"}, &present))
		config := applycorev1.ConfigMap("m", "a").WithData(map[string]string{"k": "changed"})
		_, applied, err := ssa.ApplyChanged(ctx, "x", maps.Namespace("a").Apply, any(config), &present, func(live *corev1.ConfigMap, manager string) (any, error) {
			return applycorev1.ExtractConfigMap(live, manager)
		})
		if err != nil || applied != want {
			t.Errorf("ApplyChanged: applied %t, %v, want %t", applied, err, want)
		}
	}
	for _, name := range []string{"n", "m"} {
		config := applycorev1.ConfigMap(name, "a").WithData(map[string]string{"k": "w"})
		must(t, c.Apply(ctx, config, client.FieldOwner("y"), client.ForceOwnership))
		var found corev1.ConfigMap
		must(t, live.Get(ctx, client.ObjectKey{Namespace: "a", Name: name}, &found))
		if config.UID == nil || *config.UID != found.UID || found.Data["k"] != "w" {
			t.Errorf("the configuration has the uid %v, the object %q and %v", config.UID, found.UID, found.Data)
		}
	}
}

// TestFakeLastFinalizer: a patch that removes the last finalizer of a deleted object without a uid succeeds, and
// the object is gone. A patch gives no uid.
func TestFakeLastFinalizer(t *testing.T) {
	ctx := t.Context()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "a", Finalizers: []string{"example.com/x"}}}
	c, live := managertest.Fake(fake.NewClientBuilder().WithObjects(cm))
	must(t, c.Patch(ctx, cm, client.RawPatch(types.MergePatchType, []byte(`{"data":{"k":"v"}}`))))
	must(t, c.Delete(ctx, cm))
	must(t, live.Get(ctx, client.ObjectKeyFromObject(cm), cm))
	if cm.UID != "" || cm.DeletionTimestamp == nil {
		t.Errorf("the object has the uid %q and the deletionTimestamp %v", cm.UID, cm.DeletionTimestamp)
	}
	must(t, c.Patch(ctx, cm, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
	if err := live.Get(ctx, client.ObjectKeyFromObject(cm), cm); !apierrors.IsNotFound(err) {
		t.Errorf("after the last finalizer Get = %v, want NotFound", err)
	}

	applied := func() *applycorev1.ConfigMapApplyConfiguration { return applycorev1.ConfigMap("b", "a") }
	must(t, c.Apply(ctx, applied().WithFinalizers("example.com/x"), client.FieldOwner("x")))
	must(t, live.Get(ctx, client.ObjectKey{Namespace: "a", Name: "b"}, cm))
	must(t, c.Delete(ctx, cm))
	must(t, c.Apply(ctx, applied(), client.FieldOwner("x")))
	if err := live.Get(ctx, client.ObjectKeyFromObject(cm), cm); !apierrors.IsNotFound(err) {
		t.Errorf("after the last applied finalizer Get = %v, want NotFound", err)
	}
}
