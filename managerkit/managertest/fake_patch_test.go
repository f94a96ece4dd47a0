package managertest_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/controllerkit/controllerkit/external"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/managerkit/managertest"
	"github.com/controllerkit/controllerkit/status"
)

const accountFinalizer = "example.com/account"

func deleted(t *testing.T, c client.Client) *corev1.Service {
	t.Helper()
	got := &corev1.Service{}
	key := client.ObjectKey{Namespace: "a", Name: "a"}
	must(t, c.Get(t.Context(), key, got))
	must(t, c.Delete(t.Context(), got))
	must(t, c.Get(t.Context(), key, got))
	return got
}

func service(finalizers ...string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "a", Finalizers: finalizers}}
}

// TestFakePlan: a Plan runs its steps on the client of Fake. On a fake that ignores dry runs Ensure returns an error
// and keeps the finalizer: the response without a uid is not an object without the finalizer.
func TestFakePlan(t *testing.T) {
	cleanUp := func(t *testing.T, c client.Client, live client.Reader) (steps string, err error) {
		services, err := managerkit.NewClient[*corev1.Service](c, live)
		must(t, err)
		step := func(name string) finalizer.Step[*corev1.Service] {
			return finalizer.Step[*corev1.Service]{Name: name, Run: func(context.Context, finalizer.Held[*corev1.Service]) (finalizer.Progress, error) {
				steps += name
				return finalizer.Progress{Done: true}, nil
			}}
		}
		plan := finalizer.Plan[*corev1.Service]{Client: services.Namespace("a"), Steps: []finalizer.Step[*corev1.Service]{step("1"), step("2")}}
		_, _, err = finalizer.Ensure(t.Context(), services.Namespace("a"), deleted(t, c), accountFinalizer, plan.Run)
		return steps, err
	}
	c, live := managertest.Fake(fake.NewClientBuilder(), service(accountFinalizer))
	if steps, err := cleanUp(t, c, live); steps != "12" || err != nil {
		t.Errorf("steps %q, %v, want 12", steps, err)
	}
	if err := live.Get(t.Context(), client.ObjectKey{Namespace: "a", Name: "a"}, service()); !apierrors.IsNotFound(err) {
		t.Errorf("after the cleanup Get = %v, want NotFound", err)
	}

	s := service(accountFinalizer)
	s.UID = "u"
	c = fake.NewClientBuilder().WithObjects(s).Build()
	if steps, err := cleanUp(t, c, struct{ client.Reader }{c}); steps != "" || err == nil || !strings.Contains(err.Error(), `metadata.uid ""`) {
		t.Errorf("on a fake that ignores dry runs: steps %q, %v", steps, err)
	}
	must(t, c.Get(t.Context(), client.ObjectKey{Namespace: "a", Name: "a"}, s))
}

// TestFakeTests: a patch that only tests makes no new version, so the caller's copy can be written afterwards.
func TestFakeTests(t *testing.T) {
	ctx := t.Context()
	c, live := managertest.Fake(fake.NewClientBuilder().WithStatusSubresource(service()), service())
	services, err := managerkit.NewClient[*corev1.Service](c, live)
	must(t, err)
	state, id := external.Current, ""
	resource := external.Resource{
		Annotation: accountFinalizer,
		Find:       func(context.Context, string) (string, bool, error) { return id, id != "", nil },
		Create:     func(context.Context, string) (string, error) { id = "id"; return id, nil },
		Observe:    func(context.Context, string) (external.State, error) { return state, nil },
		Update:     func(context.Context, string) error { state = external.Current; return nil },
	}
	read := func() *corev1.Service {
		got, err := services.Namespace("a").Get(ctx, "a", metav1.GetOptions{})
		must(t, err)
		return got
	}
	_, err = external.Ensure(ctx, services.Namespace("a"), read(), resource)
	must(t, err)
	state = external.Different
	copied := read()
	if _, err := external.Ensure(ctx, services.Namespace("a"), copied, resource); err != nil || state != external.Current {
		t.Errorf("Ensure of a Different thing: %v, and it is %s", err, state)
	}
	_, err = status.Update(ctx, services.Namespace("a"), copied, func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "h"}}
	})
	must(t, err)
}

// TestFakeStale: a failed test of a patch is a Conflict, so Remove reads the live object and keeps another's finalizer.
func TestFakeStale(t *testing.T) {
	ctx := t.Context()
	change := func(context.Context, client.Client) {}
	c, live := managertest.Fake(fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			change(ctx, c) // between the test of Fake and that of the fake
			return c.Patch(ctx, obj, patch, opts...)
		},
	}), service(accountFinalizer))
	services, err := managerkit.NewClient[*corev1.Service](c, live)
	must(t, err)
	stale, err := services.Namespace("a").Get(ctx, "a", metav1.GetOptions{})
	must(t, err)
	add := func(ctx context.Context, c client.Client, name string) {
		got := &corev1.Service{}
		must(t, c.Get(ctx, client.ObjectKeyFromObject(stale), got))
		got.Finalizers = append(got.Finalizers, name)
		must(t, c.Update(ctx, got))
	}
	add(ctx, c, "example.com/other")
	if _, err := finalizer.Add(ctx, services.Namespace("a"), stale, "example.com/third"); !apierrors.IsConflict(err) {
		t.Errorf("Add with a stale copy: %v, want a Conflict", err)
	}
	left, err := finalizer.Remove(ctx, services.Namespace("a"), stale, accountFinalizer)
	if err != nil || len(left.Finalizers) != 1 || left.Finalizers[0] != "example.com/other" {
		t.Errorf("Remove = %v, %v, want the other finalizer", left, err)
	}
	change = func(ctx context.Context, c client.Client) { add(ctx, c, "example.com/late") }
	if _, err := finalizer.Add(ctx, services.Namespace("a"), left, accountFinalizer); !apierrors.IsConflict(err) {
		t.Errorf("Add while the object changes: %v, want a Conflict", err)
	}
}

// TestFakeJSONPatch: the responses to JSON patches, for each kind of object.
func TestFakeJSONPatch(t *testing.T) {
	ctx := t.Context()
	c, _ := managertest.Fake(fake.NewClientBuilder(), service())
	patch := func(obj client.Object, data string, opts ...client.PatchOption) error {
		obj.SetNamespace("a")
		obj.SetName("a")
		return c.Patch(ctx, obj, client.RawPatch(types.JSONPatchType, []byte(data)), opts...)
	}
	kind := corev1.SchemeGroupVersion.WithKind("Service")
	untyped, meta := &unstructured.Unstructured{}, &metav1.PartialObjectMetadata{}
	untyped.SetGroupVersionKind(kind)
	meta.SetGroupVersionKind(kind)
	for _, obj := range []client.Object{&corev1.Service{}, untyped, meta} {
		must(t, patch(obj, `[{"op":"add","path":"/metadata/labels","value":{"k":"v"}}]`, client.DryRunAll))
		if obj.GetUID() == "" || obj.GetLabels()["k"] != "v" {
			t.Errorf("%T: a dry run returned %v", obj, obj)
		}
		version := obj.GetResourceVersion()
		must(t, patch(obj, `[{"op":"test","path":"/metadata/labels","value":null},{"op":"test","path":"/status","value":{"loadBalancer":{}}}]`))
		if obj.GetResourceVersion() != version || obj.GetLabels() != nil {
			t.Errorf("%T: a patch that only tests returned version %s and labels %v, want %s and none", obj, obj.GetResourceVersion(), obj.GetLabels(), version)
		}
	}
	for data, want := range map[string]func(error) bool{
		`[{"op":"remove","path":"/metadata/labels"}]`:       apierrors.IsInvalid,
		`{"op":"remove","path":"/metadata/labels"}`:         apierrors.IsBadRequest,
		`[{"op":"test","path":"/metadata/uid","value":""}]`: apierrors.IsInvalid,
	} {
		if err := patch(&corev1.Service{}, data); !want(err) {
			t.Errorf("%s: %v", data, err)
		}
	}
	must(t, c.DeleteAllOf(ctx, service(), client.InNamespace("a")))
	if err := patch(&corev1.Service{}, `[]`); !apierrors.IsNotFound(err) {
		t.Errorf("of an absent object: %v, want NotFound", err)
	}
	if err := patch(&unstructured.Unstructured{}, `[]`); err == nil {
		t.Error("an object without a kind was patched")
	}
	failed := errors.New("no data")
	if err := c.Patch(ctx, service(), noData{failed}); !errors.Is(err, failed) {
		t.Errorf("a patch without data: %v", err)
	}
}

type noData struct{ error }

func (noData) Type() types.PatchType                { return types.JSONPatchType }
func (n noData) Data(client.Object) ([]byte, error) { return nil, n.error }
