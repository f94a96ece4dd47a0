package finalizer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

var configMapResource = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

type server struct {
	typedcorev1.ConfigMapInterface
	client    kubernetes.Interface
	namespace string
	requests  *atomic.Int64
}

func newServer(t *testing.T) server {
	t.Helper()
	config, n := testserver.Counted(t)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	namespace := testserver.Namespace(t)
	return server{ConfigMapInterface: client.CoreV1().ConfigMaps(namespace), client: client, namespace: namespace, requests: n}
}

// create makes an object and takes its finalizers off when the test ends, so that
// the namespace can go.
func (s server) create(t *testing.T, name string, finalizers ...string) *corev1.ConfigMap {
	t.Helper()
	obj, err := s.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: finalizers}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, err := s.Patch(context.Background(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("clean up %s: %v", name, err)
		}
	})
	return obj
}

func (s server) get(t *testing.T, name string) *corev1.ConfigMap {
	t.Helper()
	obj, err := s.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

func (s server) delete(t *testing.T, name string) {
	t.Helper()
	if err := s.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (s server) mustAdd(t *testing.T, obj *corev1.ConfigMap, name string) *corev1.ConfigMap {
	t.Helper()
	h, err := finalizer.Add(t.Context(), s, obj, name)
	if err != nil {
		t.Fatal(err)
	}
	return h.Object()
}

// The whole life of an object, with the requests each step costs.
//
// Proves F1, F5.
func TestServerEnsure(t *testing.T) {
	s := newServer(t)
	obj := s.create(t, "one")
	cleanups := 0
	ensure := func(obj *corev1.ConfigMap, cleanup error) (held, bool, int64, error) {
		before := s.requests.Load()
		h, live, err := finalizer.Ensure(t.Context(), s, obj, name, func(context.Context, held) error {
			cleanups++
			return cleanup
		})
		return h, live, s.requests.Load() - before, err
	}

	h, live, requests, err := ensure(obj, nil)
	if err != nil || !live || !h.Valid() || requests != 1 {
		t.Fatalf("first: held %v, live %v, error %v, %d requests", h.Valid(), live, err, requests)
	}
	stored := s.get(t, "one")
	if !finalizer.Has(stored, name) || stored.ResourceVersion != h.Object().ResourceVersion {
		t.Errorf("stored finalizers %q at %s, held is at %s", stored.Finalizers, stored.ResourceVersion, h.Object().ResourceVersion)
	}
	if h, live, requests, err = ensure(stored, nil); err != nil || !live || !h.Valid() || requests != 0 {
		t.Errorf("again: held %v, live %v, error %v, %d requests", h.Valid(), live, err, requests)
	}

	s.delete(t, "one")
	deleting := s.get(t, "one")
	if _, live, _, err = ensure(deleting, errBoom); !errors.Is(err, errBoom) || live || cleanups != 1 {
		t.Errorf("failing cleanup: live %v, error %v, %d cleanups", live, err, cleanups)
	}
	if !finalizer.Has(s.get(t, "one"), name) {
		t.Error("the finalizer went although cleanup failed")
	}
	if h, live, requests, err = ensure(deleting, nil); err != nil || live || h.Valid() || requests != 1 || cleanups != 2 {
		t.Errorf("cleanup: held %v, live %v, error %v, %d requests, %d cleanups", h.Valid(), live, err, requests, cleanups)
	}
	if _, err := s.Get(t.Context(), "one", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the last finalizer went: %v, want NotFound", err)
	}
	// A stale copy brings cleanup once more, and no error.
	if _, live, _, err = ensure(deleting, nil); err != nil || live || cleanups != 3 {
		t.Errorf("stale after the end: live %v, error %v, %d cleanups", live, err, cleanups)
	}
}

// A stale copy never costs a neighbour its finalizer. The empty list is the case
// that an unguarded "add" replaces.
//
// Proves F3.
func TestServerAddStale(t *testing.T) {
	tests := []struct {
		name  string
		first []string // the list that the caller has
		then  func(t *testing.T, s server, obj *corev1.ConfigMap)
	}{
		{name: "the list was empty", then: func(t *testing.T, s server, obj *corev1.ConfigMap) { s.mustAdd(t, obj, "x.example.com/1") }},
		{name: "the list was shorter", first: []string{"x.example.com/1"}, then: func(t *testing.T, s server, obj *corev1.ConfigMap) { s.mustAdd(t, obj, "x.example.com/2") }},
		{name: "the list is empty now", first: []string{"x.example.com/1"}, then: func(t *testing.T, s server, obj *corev1.ConfigMap) {
			if _, err := finalizer.Remove(t.Context(), s, obj, "x.example.com/1"); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "deleting", first: []string{"x.example.com/1"}, then: func(t *testing.T, s server, _ *corev1.ConfigMap) { s.delete(t, "one") }},
		{name: "replaced", then: func(t *testing.T, s server, _ *corev1.ConfigMap) {
			s.delete(t, "one")
			s.create(t, "one")
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(t)
			obj := s.create(t, "one", tt.first...)
			tt.then(t, s, obj)
			before := s.get(t, "one")
			h, err := finalizer.Add(t.Context(), s, obj, name)
			if !apierrors.IsConflict(err) || h.Valid() {
				t.Errorf("error = %v, held = %v, want a Conflict and none", err, h.Valid())
			}
			if after := s.get(t, "one"); after.ResourceVersion != before.ResourceVersion {
				t.Errorf("finalizers %q became %q", before.Finalizers, after.Finalizers)
			}
		})
	}
	t.Run("gone", func(t *testing.T) {
		s := newServer(t)
		obj := s.create(t, "one")
		s.delete(t, "one")
		if _, err := finalizer.Add(t.Context(), s, obj, name); !apierrors.IsNotFound(err) {
			t.Errorf("error = %v, want NotFound", err)
		}
	})
}

// Without the test on deletionTimestamp the server answers 422 Invalid, and so
// does validation in general. Those must stay what they are.
//
// Proves F6.
func TestServerGenuineInvalid(t *testing.T) {
	s := newServer(t)
	obj := s.create(t, "one", "x.example.com/1")
	s.delete(t, "one")
	_, err := s.Patch(t.Context(), "one", types.JSONPatchType, []byte(`[{"op":"add","path":"/metadata/finalizers/-","value":"example.com/late"}]`), metav1.PatchOptions{})
	if !apierrors.IsInvalid(err) {
		t.Fatalf("a late finalizer is answered %v, want Invalid: the model of this package is wrong", err)
	}
	_, err = finalizer.Add(t.Context(), &answering{err: err}, obj, name)
	if !apierrors.IsInvalid(err) || apierrors.IsConflict(err) {
		t.Errorf("error = %v, want Invalid", err)
	}

	// A policy's denial is 422 Invalid as well.
	fail := admissionv1.Fail
	policies := s.client.AdmissionregistrationV1()
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: s.namespace},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admissionv1.MatchResources{
				ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Update},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
				}}},
			},
			Validations: []admissionv1.Validation{{Expression: "!('" + name + "' in object.metadata.?finalizers.orValue([]))"}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: s.namespace},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName:        s.namespace,
			ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			MatchResources:    &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": s.namespace}}},
		},
	}
	if _, err := policies.ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		policies.ValidatingAdmissionPolicyBindings().Delete(context.Background(), s.namespace, metav1.DeleteOptions{})
		policies.ValidatingAdmissionPolicies().Delete(context.Background(), s.namespace, metav1.DeleteOptions{})
	})
	if _, err := policies.ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// When the server has read a policy, nothing tells. Try until it denies.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := 0; ctx.Err() == nil; i++ {
		victim := s.create(t, fmt.Sprintf("victim-%d", i))
		if _, err = finalizer.Add(ctx, s, victim, name); err != nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	if !apierrors.IsInvalid(err) || apierrors.IsConflict(err) {
		t.Errorf("denied by a policy: error = %v, want Invalid", err)
	}
}

// TestServerRemove proves F4.
func TestServerRemove(t *testing.T) {
	const other = "x.example.com/1"
	tests := []struct {
		name     string
		first    []string
		then     func(t *testing.T, s server, obj *corev1.ConfigMap)
		want     []string // stored afterwards
		wantGone bool
		wantNone bool // the zero T is returned
		requests int64
	}{
		{name: "fresh", first: []string{name, other}, want: []string{other}, requests: 1},
		{name: "there twice", first: []string{name, other, name}, want: []string{other}, requests: 1},
		{name: "last of a live object", first: []string{name}, requests: 1},
		{name: "others came", first: []string{name}, want: []string{other}, requests: 3, then: func(t *testing.T, s server, obj *corev1.ConfigMap) { s.mustAdd(t, obj, other) }},
		{name: "others went", first: []string{other, name}, requests: 3, then: func(t *testing.T, s server, obj *corev1.ConfigMap) {
			if _, err := finalizer.Remove(t.Context(), s, obj, other); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "somebody was faster", first: []string{other, name}, want: []string{other}, requests: 2, then: func(t *testing.T, s server, obj *corev1.ConfigMap) {
			if _, err := finalizer.Remove(t.Context(), s, obj, name); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "last of a deleting object", first: []string{name}, wantGone: true, requests: 1, then: func(t *testing.T, s server, _ *corev1.ConfigMap) { s.delete(t, "one") }},
		{name: "gone", first: []string{name}, wantGone: true, wantNone: true, requests: 1, then: func(t *testing.T, s server, obj *corev1.ConfigMap) {
			s.delete(t, "one")
			if _, err := finalizer.Remove(t.Context(), s, obj, name); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "replaced", first: []string{name}, want: []string{name}, wantNone: true, requests: 2, then: func(t *testing.T, s server, obj *corev1.ConfigMap) {
			s.delete(t, "one")
			if _, err := finalizer.Remove(t.Context(), s, obj, name); err != nil {
				t.Fatal(err)
			}
			s.create(t, "one", name)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(t)
			obj := s.create(t, "one", tt.first...)
			if tt.then != nil {
				tt.then(t, s, obj)
			}
			before := s.requests.Load()
			got, err := finalizer.Remove(t.Context(), s, obj, name)
			if err != nil {
				t.Fatal(err)
			}
			if requests := s.requests.Load() - before; requests != tt.requests {
				t.Errorf("%d requests, want %d", requests, tt.requests)
			}
			if (got == nil) != tt.wantNone {
				t.Errorf("returned %v, want none: %v", got, tt.wantNone)
			}
			after, err := s.Get(t.Context(), "one", metav1.GetOptions{})
			if apierrors.IsNotFound(err) != tt.wantGone || err != nil && !tt.wantGone {
				t.Fatalf("afterwards: %v, want gone: %v", err, tt.wantGone)
			}
			if err == nil && !slices.Equal(after.Finalizers, tt.want) {
				t.Errorf("stored finalizers %q, want %q", after.Finalizers, tt.want)
			}
		})
	}
}

// Admission that changes the object at every update does not make a write of the
// look: its event would bring the next pass at once, for as long as a step waits.
func TestServerLookUnderAdmission(t *testing.T) {
	testserver.Since(t, "1.36", "it does not serve MutatingAdmissionPolicy in v1")
	s := newServer(t)
	fail := admissionv1.Fail
	policies := s.client.AdmissionregistrationV1()
	policy := &admissionv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: s.namespace},
		Spec: admissionv1.MutatingAdmissionPolicySpec{
			FailurePolicy: &fail, ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
			MatchConstraints: &admissionv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": s.namespace}},
				ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Update},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
				}}},
			},
			Mutations: []admissionv1.Mutation{{
				PatchType:          admissionv1.PatchTypeApplyConfiguration,
				ApplyConfiguration: &admissionv1.ApplyConfiguration{Expression: `Object{metadata: Object.metadata{annotations: {"was": "at-" + oldObject.metadata.resourceVersion}}}`},
			}},
		},
	}
	binding := &admissionv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: s.namespace},
		Spec:       admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: s.namespace},
	}
	if _, err := policies.MutatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		policies.MutatingAdmissionPolicyBindings().Delete(context.Background(), s.namespace, metav1.DeleteOptions{})
		policies.MutatingAdmissionPolicies().Delete(context.Background(), s.namespace, metav1.DeleteOptions{})
	})
	if _, err := policies.MutatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	obj := s.create(t, "one", name)
	s.delete(t, "one")
	// When the server has read a policy, nothing tells. Try until it changes the object.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for obj.Annotations["was"] == "" {
		var err error
		if obj, err = s.Patch(ctx, "one", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	asked := 0
	p := plan{Client: s, Steps: []step{{Name: "a", Run: func(_ context.Context, h held) (progress, error) {
		asked++
		if h.Object().UID != obj.UID || h.Object().ResourceVersion != obj.ResourceVersion {
			t.Errorf("the step got %s at %s, want %s at %s", h.Object().UID, h.Object().ResourceVersion, obj.UID, obj.ResourceVersion)
		}
		return progress{}, nil
	}}}}
	before := s.get(t, "one")
	for range 3 {
		_, _, err := finalizer.Ensure(t.Context(), s, before, name, p.Run)
		blockedBy(t, err)
	}
	if after := s.get(t, "one"); after.ResourceVersion != before.ResourceVersion || asked != 3 {
		t.Errorf("%d passes moved the resourceVersion from %s to %s, want 3 and none", asked, before.ResourceVersion, after.ResourceVersion)
	}
}

// A Plan with a client of another namespace finds no object, and must not take that
// for its end: Ensure would remove the finalizer, and nothing were cleaned up.
//
// Proves F7.
func TestServerPlanOfAnotherNamespace(t *testing.T) {
	s, elsewhere := newServer(t), newServer(t)
	for _, there := range []bool{false, true} {
		t.Run(fmt.Sprintf("the name is taken there: %v", there), func(t *testing.T) {
			if there {
				elsewhere.create(t, "one", name)
			}
			s.create(t, "one", name)
			s.delete(t, "one")
			p := plan{Client: elsewhere, Steps: []step{{Name: "a", Run: says(done, nil)}}}
			_, _, err := finalizer.Ensure(t.Context(), s, s.get(t, "one"), name, p.Run)
			if err == nil || !strings.Contains(err.Error(), "Plan.Client does not find") {
				t.Errorf("error = %v, want one about Plan.Client", err)
			}
			if !finalizer.Has(s.get(t, "one"), name) {
				t.Error("the finalizer went although no step was asked")
			}
			p.Client = s
			if _, _, err := finalizer.Ensure(t.Context(), s, s.get(t, "one"), name, p.Run); err != nil {
				t.Error(err)
			}
		})
	}
}

// What the Caveats say about the last removal: the answer has the old
// resourceVersion and watchers see DELETED alone. The look of Remove at the live
// object must not write either.
func TestServerLastRemoval(t *testing.T) {
	s := newServer(t)
	s.create(t, "one", name)
	s.delete(t, "one")
	deleting := s.get(t, "one")
	w, err := s.Watch(t.Context(), metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector("metadata.name", "one").String(),
		ResourceVersion: deleting.ResourceVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	answer, err := finalizer.Remove(t.Context(), s, deleting, name)
	if err != nil {
		t.Fatal(err)
	}
	if answer.ResourceVersion != deleting.ResourceVersion || len(answer.Finalizers) != 0 {
		t.Errorf("answer at %s with finalizers %q, want the old resourceVersion %s and none", answer.ResourceVersion, answer.Finalizers, deleting.ResourceVersion)
	}
	if event := <-w.ResultChan(); event.Type != watch.Deleted {
		t.Errorf("first event is %s, want DELETED", event.Type)
	}
}

// TestServerLookWritesNothing tests that a read of the live object does not change it.
func TestServerLookWritesNothing(t *testing.T) {
	s := newServer(t)
	obj := s.create(t, "one", "x.example.com/1", name)
	faster, err := finalizer.Remove(t.Context(), s, obj, name)
	if err != nil {
		t.Fatal(err)
	}
	looked, err := finalizer.Remove(t.Context(), s, obj, name)
	if err != nil || looked.ResourceVersion != faster.ResourceVersion {
		t.Fatalf("looked at %v, error %v, want resourceVersion %s", looked, err, faster.ResourceVersion)
	}
	if after := s.get(t, "one"); after.ResourceVersion != faster.ResourceVersion {
		t.Errorf("the look moved resourceVersion from %s to %s", faster.ResourceVersion, after.ResourceVersion)
	}
}

// Many controllers with copies of different age add and remove their own
// finalizers at once. None of them loses its own, whatever the interleaving, until
// it removes it.
//
// Proves F2.
func TestServerRace(t *testing.T) {
	const controllers, rounds = 6, 8
	s := newServer(t)
	first := s.create(t, "one", "keep.example.com/1")
	var mu sync.Mutex
	shared := first // the cache: always behind, on purpose
	var conflicts atomic.Int64
	var wg sync.WaitGroup
	for i := range controllers {
		mine := fmt.Sprintf("c%d.example.com/f", i)
		wg.Go(func() {
			for range rounds {
				obj := first // the oldest copy there is
				for {
					h, err := finalizer.Add(t.Context(), s, obj, mine)
					if err == nil {
						mu.Lock()
						shared = h.Object()
						mu.Unlock()
						break
					}
					if !apierrors.IsConflict(err) {
						t.Errorf("%s: %v", mine, err)
						return
					}
					conflicts.Add(1)
					if obj, err = s.Get(t.Context(), "one", metav1.GetOptions{}); err != nil {
						t.Errorf("%s: %v", mine, err)
						return
					}
				}
				live, err := s.Get(t.Context(), "one", metav1.GetOptions{})
				if err != nil || !finalizer.Has(live, mine) || !finalizer.Has(live, "keep.example.com/1") {
					t.Errorf("%s: added, but stored are %q, error %v", mine, live.GetFinalizers(), err)
					return
				}
				mu.Lock()
				stale := shared // another controller's answer, which may or may not show ours
				mu.Unlock()
				if !finalizer.Has(stale, mine) {
					stale = live
				}
				for {
					_, err := finalizer.Remove(t.Context(), s, stale, mine)
					if err == nil {
						break
					}
					if !apierrors.IsConflict(err) {
						t.Errorf("%s: %v", mine, err)
						return
					}
					conflicts.Add(1)
				}
				if live, err = s.Get(t.Context(), "one", metav1.GetOptions{}); err != nil || finalizer.Has(live, mine) {
					t.Errorf("%s: removed, but stored are %q, error %v", mine, live.GetFinalizers(), err)
					return
				}
			}
		})
	}
	wg.Wait()
	if got := s.get(t, "one").Finalizers; !slices.Equal(got, []string{"keep.example.com/1"}) {
		t.Errorf("stored finalizers %q, want the one of the bystander", got)
	}
	t.Logf("%d conflicts in %d additions and removals", conflicts.Load(), 2*controllers*rounds)
}

// Two controllers finalize one object with the same stale copy. Each cleans up
// once although the other one's removal changed the list under it.
func TestServerTwoFinalizers(t *testing.T) {
	s := newServer(t)
	names := []string{"a.example.com/f", "b.example.com/f"}
	s.create(t, "one", names...)
	s.delete(t, "one")
	deleting := s.get(t, "one")
	for _, mine := range names {
		cleanups := 0
		_, live, err := finalizer.Ensure(t.Context(), s, deleting, mine, func(context.Context, held) error {
			cleanups++
			return nil
		})
		if err != nil || live || cleanups != 1 {
			t.Errorf("%s: live %v, error %v, %d cleanups", mine, live, err, cleanups)
		}
	}
	if _, err := s.Get(t.Context(), "one", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("afterwards: %v, want NotFound", err)
	}
}
