package applyset_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/metadata"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/ssa/applyset"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/inventory"
)

// A Set, a parent or an object that is not valid is an error before any request.
//
// Proves CK2.
func TestSetBadInput(t *testing.T) {
	parent := func() *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "parent", Namespace: "a", UID: "u", ResourceVersion: "1", Finalizers: []string{setFinalizer}}}
	}
	tests := []struct {
		name   string
		set    func(*applyset.Set)
		parent metav1.Object
		member applyset.Member
		want   string
	}{
		{name: "client", set: func(s *applyset.Set) { s.Client = nil }, want: "Client is nil"},
		{name: "metadata", set: func(s *applyset.Set) { s.Metadata = (*metadatafake.FakeMetadataClient)(nil) }, want: "Metadata is nil"},
		{name: "mapper", set: func(s *applyset.Set) { s.Mapper = nil }, want: "Mapper is nil"},
		{name: "manager", set: func(s *applyset.Set) { s.Manager = "" }, want: "Manager: the field manager is empty"},
		{name: "long manager", set: func(s *applyset.Set) { s.Manager = strings.Repeat("m", 120) }, want: `with the suffix "-applyset"`},
		{name: "kind", set: func(s *applyset.Set) { s.ParentKind.Kind = "" }, want: "ParentKind"},
		{name: "unknown kind", set: func(s *applyset.Set) { s.ParentKind.Kind = "Paint" }, want: "ParentKind: find the resource"},
		{name: "scope", set: func(s *applyset.Set) { s.ParentKind.Kind = "Namespace" }, want: "cluster-scoped"},
		{name: "finalizer", set: func(s *applyset.Set) { s.Finalizer = "" }, want: "Finalizer is empty"},
		{name: "count", set: func(s *applyset.Set) { s.MaxPrune = -1 }, want: "MaxPrune is -1"},
		{name: "percent", set: func(s *applyset.Set) { s.MaxPrunePercent = 101 }, want: "MaxPrunePercent is 101"},
		{name: "concurrency", set: func(s *applyset.Set) { s.Concurrency = -1 }, want: "Concurrency is -1"},
		{name: "timeout", set: func(s *applyset.Set) { s.CRDTimeout = -time.Second }, want: "CRDTimeout"},
		{name: "nil parent", parent: (*corev1.ConfigMap)(nil), want: "the parent is nil"},
		{name: "no uid", parent: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "parent", Namespace: "a"}}, want: "no metadata.uid"},
		{name: "no finalizer", parent: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "parent", Namespace: "a", UID: "u"}}, want: "lacks the finalizer"},
		{name: "nil object", member: applyset.Member{Object: (*corev1.ConfigMap)(nil)}, want: "the object is nil"},
		{name: "twice", member: wantConfigMap("a", "one", "blue"), want: "is the same one"},
		{name: "unknown object", member: wantKind("example.com/v1", "Paint", "a", "one"), want: "find the resource"},
		{name: "the parent", member: wantConfigMap("a", "parent", "blue"), want: "the object is the parent"},
		{name: "the namespace", member: applyset.Member{Object: object(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"a"}}`)}, want: "the object is the Namespace of the parent"},
		{name: "the owner", parent: owned(parent(), "v1", "ConfigMap"), member: wantConfigMap("a", "owner", "red"), want: "the object is an owner of the parent"},
		{name: "the cluster-scoped owner", parent: owned(parent(), "rbac.authorization.k8s.io/v1", "ClusterRole"), member: applyset.Member{Object: object(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"owner"}}`)}, want: "the object is an owner of the parent"},
		{name: "no namespace", member: wantConfigMap("Not.A.Namespace", "two", "red"), want: `metadata.namespace is "Not.A.Namespace"`},
		{name: "label", member: applyset.Member{Object: applycorev1.ConfigMap("two", "a").WithLabels(map[string]string{partOf: "x"})}, want: "metadata.labels"},
		{name: "labels", member: applyset.Member{Object: object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"two","namespace":"a","labels":[]}}`)}, want: "metadata.labels is not an object"},
		{name: "uid", member: applyset.Member{Object: applycorev1.ConfigMap("two", "a").WithUID("u")}, want: "metadata.uid is set"},
		{name: "version", member: applyset.Member{Object: applycorev1.ConfigMap("two", "a").WithResourceVersion("1")}, want: "metadata.resourceVersion is set"},
		{name: "stage", set: func(s *applyset.Set) {
			s.Stage = func(schema.GroupVersionKind, metav1.Object) int { return 100 }
		}, want: "the stage is 100: let Stage return 2 to 99"},
		{name: "recreate", member: applyset.Member{Object: object(paintCRD, "example.com", "example.com"), Recreate: true}, want: "omit Recreate"},
		{name: "own", set: func(s *applyset.Set) { s.Own = true }, member: wantConfigMap("b", "two", "red"), want: "metadata.ownerReferences"},
		{name: "wait", member: applyset.Member{Object: object(`{"apiVersion":"example.com/v1","kind":"Paint","metadata":{"name":"one","namespace":"a","labels":[]}}`), Wait: true}, want: "metadata.labels"},
		{name: "live", member: applyset.Member{Object: applycorev1.ConfigMap("two", "a"), Live: parent()}, want: "is not that of live"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client := metadataClient()
			s := &applyset.Set{
				Client: fakeClient{}, Metadata: metadata.Interface(client), Mapper: setMapper(), Manager: manager,
				ParentKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Finalizer: setFinalizer,
			}
			if tt.set != nil {
				tt.set(s)
			}
			of := tt.parent
			if of == nil {
				of = parent()
			}
			wanted := []applyset.Member{wantConfigMap("a", "one", "red")}
			if tt.member.Object != nil {
				wanted = append(wanted, tt.member)
			}
			for name, method := range map[string]func() ([]applyset.Result, error){
				"Apply": func() ([]applyset.Result, error) { return s.Apply(t.Context(), of, wanted...) },
				"Plan":  func() ([]applyset.Result, error) { return s.Plan(t.Context(), of, wanted...) },
			} {
				results, err := method()
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%s: error %v, want %q", name, err, tt.want)
				}
				if tt.member.Object != nil {
					if all := objectErrors(t, err); len(results) != 2 || all[1] == nil || results[1].Err == nil || results[0].Err == nil {
						t.Errorf("%s: %s, error %v", name, actions(results), err)
					}
				}
			}
			if len(client.Actions()) > 0 {
				t.Errorf("requests: %v", client.Actions())
			}
		})
	}
}

// owned returns the parent with an owner.
func owned(parent *corev1.ConfigMap, apiVersion, kind string) *corev1.ConfigMap {
	parent.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "owner", UID: "o"}}
	return parent
}

// Delete checks the Set and the parent too.
//
// Proves CK2.
func TestSetDeleteBadInput(t *testing.T) {
	s, client, parent, _ := cached(1)
	if _, err := s.Delete(t.Context(), (*corev1.ConfigMap)(nil)); err == nil || !strings.Contains(err.Error(), "the parent is nil") {
		t.Errorf("a nil parent: error %v", err)
	}
	s.Client = nil
	if _, err := s.Delete(t.Context(), parent); err == nil || !strings.Contains(err.Error(), "Client is nil") {
		t.Errorf("a nil client: error %v", err)
	}
	if len(client.Actions()) > 0 {
		t.Errorf("requests: %v", client.Actions())
	}
}

// cached returns a Set, its parent, and members that a cache shows as they are wanted. A
// patch or a delete would panic.
func cached(n int) (*applyset.Set, *metadatafake.FakeMetadataClient, *corev1.ConfigMap, []applyset.Member) {
	id := inventory.ID(schema.GroupKind{Kind: "ConfigMap"}, "a", "parent")
	parent := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{
		Name: "parent", Namespace: "a", UID: "u", ResourceVersion: "1", Finalizers: []string{setFinalizer},
		Labels: map[string]string{idLabel: id}, Annotations: map[string]string{tooling: manager + "/v1", groupKinds: "ConfigMap"},
	}}
	var wanted []applyset.Member
	for i := range n {
		m := wantConfigMap("a", fmt.Sprint("object-", i), "red")
		live := m.Object.(*unstructured.Unstructured).DeepCopy()
		live.SetLabels(map[string]string{partOf: id})
		live.SetUID(types.UID(fmt.Sprint("uid-", i)))
		live.SetResourceVersion(fmt.Sprint(i + 2))
		live.SetManagedFields([]metav1.ManagedFieldsEntry{{
			Manager: manager, Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1", FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:data":{"f:color":{}},"f:metadata":{"f:labels":{"f:` + partOf + `":{}}}}`),
		}})
		m.Live = live
		wanted = append(wanted, m)
	}
	client := metadataClient(&metav1.PartialObjectMetadata{TypeMeta: parent.TypeMeta, ObjectMeta: parent.ObjectMeta})
	return &applyset.Set{
		Client: fakeClient{}, Metadata: client, Mapper: setMapper(), Manager: manager,
		ParentKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Finalizer: setFinalizer,
	}, client, parent, wanted
}

// Members that do not change need no request, and neither does a set of them. The first
// call of a process lists.
//
// Proves AS5.
func TestSetUnchanged(t *testing.T) {
	s, client, parent, wanted := cached(200)
	for call, want := range []int{2, 0, 0} { // the parent, and a list
		client.ClearActions()
		results, err := s.Apply(t.Context(), parent, wanted...)
		if err != nil || strings.Count(actions(results), "Unchanged") != len(wanted) {
			t.Fatalf("%s, error %v", actions(results), err)
		}
		if len(client.Actions()) != want {
			t.Errorf("call %d: %d requests, want %d: %v", call, len(client.Actions()), want, client.Actions())
		}
	}
	// A parent with another inventory is read again.
	other := parent.DeepCopy()
	other.Annotations[groupKinds] = "ConfigMap,Secret"
	client.ClearActions()
	if _, err := s.Apply(t.Context(), other, wanted...); err != nil || len(client.Actions()) != 2 {
		t.Errorf("another inventory: requests %v, error %v", client.Actions(), err)
	}
}

// Objects of a kind that an APIService of the set serves go before it, and it goes before the
// programs behind it.
func TestSetStageOfServed(t *testing.T) {
	s, _, parent, _ := cached(0)
	gvk := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Paint"}
	service := schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"}
	mapper := setMapper(gvk, service)
	mapper.Add(service, meta.RESTScopeRoot)
	parent.Annotations[groupKinds] = "APIService.apiregistration.k8s.io,Deployment.apps,Paint.example.com"
	objects := []runtime.Object{&metav1.PartialObjectMetadata{TypeMeta: parent.TypeMeta, ObjectMeta: parent.ObjectMeta}}
	for _, o := range []struct{ apiVersion, kind, namespace, name string }{
		{"apiregistration.k8s.io/v1", "APIService", "", "v1.example.com"}, {"apps/v1", "Deployment", "a", "program"}, {"example.com/v1", "Paint", "a", "one"},
	} {
		objects = append(objects, &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: o.apiVersion, Kind: o.kind},
			ObjectMeta: metav1.ObjectMeta{Name: o.name, Namespace: o.namespace, Labels: map[string]string{partOf: parent.Labels[idLabel]}},
		})
	}
	s.Mapper, s.Metadata, s.MaxPrunePercent = mapper, metadataClient(objects...), 100
	results, err := s.Plan(t.Context(), parent)
	var order []string
	for _, r := range results { // in the order of the deletions
		order = append(order, r.Kind.Kind)
	}
	if got := strings.Join(order, ", "); err != nil || got != "Paint, APIService, Deployment" {
		t.Errorf("pruned in the order %s, error %v", got, err)
	}
}

// After Delete the Set remembers nothing of the parent: an Apply reads it again.
func TestSetForgets(t *testing.T) {
	s, client, parent, _ := cached(0)
	if results, err := s.Delete(t.Context(), parent); err != nil {
		t.Fatalf("%s, error %v", actions(results), err)
	}
	live, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("a").Get(t.Context(), "parent", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client.ClearActions()
	if _, err := s.Apply(t.Context(), live); err != nil || len(client.Actions()) == 0 {
		t.Errorf("Apply after Delete: requests %v, error %v", client.Actions(), err)
	}
}

// In a second term of a leader or shard, the Set finds what another process has created in between,
// in the kinds and namespaces of the inventory.
//
// Proves AS2.
func TestSetSecondTerm(t *testing.T) {
	s, client, parent, wanted := cached(3)
	term := func() context.Context {
		validity, end := context.WithCancel(t.Context())
		t.Cleanup(end)
		return context.WithValue(validity, calls.Validity{}, validity)
	}
	apply := func(ctx context.Context, what, want string, requests bool) {
		t.Helper()
		client.ClearActions()
		results, err := s.Apply(ctx, parent, wanted...)
		if got := actions(results); err != nil || got != want || len(client.Actions()) > 0 != requests {
			t.Errorf("%s: %s, error %v, requests %v; want %s", what, got, err, client.Actions(), want)
		}
	}
	const unchanged = "ConfigMap object-0 Unchanged, ConfigMap object-1 Unchanged, ConfigMap object-2 Unchanged"
	first, second := term(), term()
	apply(first, "first", unchanged, true)
	apply(first, "again", unchanged, false)
	if err := client.Tracker().Add(member(parent, "v1", "ConfigMap", "a", "other")); err != nil {
		t.Fatal(err)
	}
	apply(first, "in the term", unchanged, false)
	apply(second, "in the second term", unchanged+", ConfigMap other Pruned", true)
	apply(second, "again", unchanged, false)
}

// A context that ends before the first request leaves all as it is.
func TestSetStopped(t *testing.T) {
	s, client, parent, wanted := cached(3)
	if _, err := s.Apply(t.Context(), parent, wanted...); err != nil {
		t.Fatal(err)
	}
	client.ClearActions()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errBoom)
	wanted[1].Live = nil
	results, err := s.Apply(ctx, parent, wanted...)
	if got := actions(results); got != "ConfigMap object-0 Unchanged, ConfigMap object-1 error, ConfigMap object-2 Unchanged" || !errors.Is(err, applyset.ErrNotTried) || !errors.Is(err, errBoom) {
		t.Errorf("%s, error %v", got, err)
	}
	// A former member is not pruned.
	results, err = s.Apply(ctx, parent, wanted[2])
	if !errors.Is(err, errBoom) || strings.Contains(actions(results), "Pruned") || len(client.Actions()) > 0 {
		t.Errorf("%s, error %v, requests %v", actions(results), err, client.Actions())
	}
	// A plan without its examination is not complete.
	results, err = s.Plan(ctx, parent)
	if !errors.Is(err, errBoom) || strings.Contains(actions(results), "Pruned") || len(client.Actions()) > 0 {
		t.Errorf("Plan: %s, error %v, requests %v", actions(results), err, client.Actions())
	}
}

// A context that ends while an object is read leaves it as it is. Its result is an error.
func TestSetStoppedRead(t *testing.T) {
	s, client, parent, wanted := cached(1)
	if _, err := s.Apply(t.Context(), parent, wanted...); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client.PrependReactor("get", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
		name := a.(clienttesting.GetAction).GetName()
		if name != "object-0" {
			return false, nil, nil
		}
		cancel()
		return true, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
	})
	wanted[0].Live = nil
	results, err := s.Apply(ctx, parent, wanted...) // an apply would panic
	if !errors.Is(err, context.Canceled) || len(results) != 1 || results[0].Err == nil {
		t.Errorf("%s, error %v", actions(results), err)
	}
}

func BenchmarkSetUnchanged(b *testing.B) {
	s, _, parent, wanted := cached(200)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Apply(b.Context(), parent, wanted...); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*len(wanted)), "µs/member")
}
