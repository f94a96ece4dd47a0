package applyset_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/controllerkit/controllerkit/ssa/applyset"
)

// resettable is a mapper that learns kinds when it is reset.
type resettable struct {
	*meta.DefaultRESTMapper
	learns []schema.GroupVersionKind
	resets int
}

func (m *resettable) Reset() {
	m.resets++
	for _, gvk := range m.learns {
		m.Add(gvk, meta.RESTScopeNamespace)
	}
}

func batchMapper(learns ...schema.GroupVersionKind) *resettable {
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, meta.RESTScopeNamespace)
	m.Add(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, meta.RESTScopeRoot)
	m.Add(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}, meta.RESTScopeRoot)
	return &resettable{DefaultRESTMapper: m, learns: learns}
}

func object(s string, args ...any) *unstructured.Unstructured {
	u := new(unstructured.Unstructured)
	if err := utiljson.Unmarshal(fmt.Appendf(nil, s, args...), &u.Object); err != nil {
		panic(err)
	}
	return u
}

// objectErrors returns what a batch's error says of each object, by its index.
func objectErrors(t *testing.T, err error) map[int]*applyset.ObjectError {
	t.Helper()
	all := map[int]*applyset.ObjectError{}
	if err == nil {
		return all
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("error = %v, want several joined", err)
	}
	last := -1
	for _, err := range joined.Unwrap() {
		var o *applyset.ObjectError
		if !errors.As(err, &o) || o.Index <= last {
			t.Fatalf("error = %v, want one of an object after %d", err, last)
		}
		last = o.Index
		all[o.Index] = o
	}
	return all
}

// What is wrong with a batch or with one of its objects is an error before the first
// request, which names the object and the field. All objects are named at once, also
// those that nothing was wrong with: they are not tried.
//
// Proves CK2.
func TestBatchBadInput(t *testing.T) {
	const cm = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","namespace":"a"}}`
	const remove = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","namespace":"a","uid":"u"}}`
	var none *unstructured.Unstructured
	owner := func(namespace string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner", UID: "o", Namespace: namespace}}
	}
	ownerKind := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	tests := []struct {
		name   string
		batch  func(*applyset.Batch)
		bad    any // nil means that the batch is bad, and not an object
		delete bool
		policy metav1.DeletionPropagation
		want   string
	}{
		{name: "no client", batch: func(b *applyset.Batch) { b.Client = nil }, want: "Client"},
		{name: "client that is nil", batch: func(b *applyset.Batch) { b.Client = (*dynamic.DynamicClient)(nil) }, want: "Client"},
		{name: "mapper that is nil", batch: func(b *applyset.Batch) { b.Mapper = (*meta.DefaultRESTMapper)(nil) }, want: "Mapper"},
		{name: "no mapper", batch: func(b *applyset.Batch) { b.Mapper = nil }, want: "Mapper"},
		{name: "no manager", batch: func(b *applyset.Batch) { b.Manager = "" }, want: "field manager"},
		{name: "concurrency", batch: func(b *applyset.Batch) { b.Concurrency = -1 }, want: "Concurrency"},
		{name: "timeout", batch: func(b *applyset.Batch) { b.CRDTimeout = -1 }, want: "CRDTimeout"},
		{name: "owner without uid", batch: func(b *applyset.Batch) { b.Owner, b.OwnerKind = &corev1.ConfigMap{}, ownerKind }, want: "Owner has no metadata.uid"},
		{name: "owner without name", batch: func(b *applyset.Batch) {
			b.Owner, b.OwnerKind = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "u", Namespace: "a"}}, ownerKind
		}, want: "Owner has no metadata.uid or no metadata.name"},
		{name: "owner without uid but with a name", batch: func(b *applyset.Batch) {
			b.Owner, b.OwnerKind = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner", Namespace: "a"}}, ownerKind
		}, want: "Owner has no metadata.uid or no metadata.name"},
		{name: "owner that is nil", batch: func(b *applyset.Batch) { b.Owner, b.OwnerKind = (*corev1.ConfigMap)(nil), ownerKind }, want: "Owner is a nil pointer"},
		{name: "owner without kind", batch: func(b *applyset.Batch) { b.Owner = owner("a") }, want: "OwnerKind"},
		{name: "owner of another kind", batch: func(b *applyset.Batch) {
			b.Owner, b.OwnerKind = object(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"owner","namespace":"a","uid":"o"}}`), ownerKind
		}, want: `Owner is of the kind "/v1, Kind=Pod"`},
		{name: "owner that lost its namespace", batch: func(b *applyset.Batch) { b.Owner, b.OwnerKind = owner(""), ownerKind }, want: "Owner has metadata.namespace"},
		{name: "owner with a namespace too many", batch: func(b *applyset.Batch) {
			b.Owner, b.OwnerKind = owner("a"), schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}
		}, want: "Owner has metadata.namespace"},
		{name: "no propagation", delete: true, want: "propagation"},
		{name: "wrong propagation", delete: true, policy: "Later", want: "propagation"},

		{name: "nil", bad: nil, want: ""},
		{name: "nil pointer", bad: none, want: "nil"},
		{name: "no object", bad: []string{}, want: "read the object"},
		{name: "not JSON", bad: func() {}, want: "encode"},
		{name: "no kind", bad: object(`{"apiVersion":"v1","metadata":{"name":"bad"}}`), want: "kind"},
		{name: "no apiVersion", bad: object(`{"kind":"ConfigMap","metadata":{"name":"bad"}}`), want: "apiVersion"},
		{name: "no name", bad: object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"bad"}}`), want: "metadata.name"},
		{name: "a name that is a number", bad: object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":5,"namespace":"a"}}`), want: "metadata.name"},
		{name: "a name that is a path", bad: applycorev1.ConfigMap("../bad", "a"), want: "metadata.name is \"../bad\": it may not contain '/'"},
		{name: "a namespace that is a path", bad: applycorev1.ConfigMap("bad", "a/b"), want: `metadata.namespace is "a/b"`},
		{name: "typed without name", bad: &applycorev1.ConfigMapApplyConfiguration{}, want: "apiVersion"},
		{name: "no namespace", bad: applycorev1.ConfigMap("bad", ""), want: "metadata.namespace"},
		{name: "a namespace where none belongs", bad: object(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"bad","namespace":"a"}}`), want: "metadata.namespace"},
		{name: "an empty uid", bad: object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"bad","namespace":"a","uid":""}}`), want: "metadata.uid"},
		{name: "as it was read", bad: object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"bad","namespace":"a","managedFields":[]}}`), want: "metadata.managedFields"},
		{name: "too large", bad: object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"bad","namespace":"a"},"data":{"a":"%s"}}`, strings.Repeat("x", 3<<20)), want: "size"},
		{name: "unknown kind", bad: object(`{"apiVersion":"v1","kind":"Confusion","metadata":{"name":"bad","namespace":"a"}}`), want: "apiVersion and kind"},
		{name: "a version that is not served", bad: object(`{"apiVersion":"example.com/v2","kind":"Paint","metadata":{"name":"bad","namespace":"a"}}`), want: "apiVersion and kind"},
		{name: "a kind of the batch without its namespace", bad: object(`{"apiVersion":"example.com/v1","kind":"Paint","metadata":{"name":"bad"}}`), want: "metadata.namespace"},
		{name: "twice", bad: applycorev1.ConfigMap("one", "a"), want: "object 0 is the same one"},
		{name: "owner in another namespace", bad: applycorev1.ConfigMap("bad", "b"), batch: func(b *applyset.Batch) { b.Owner, b.OwnerKind = owner("a"), ownerKind }, want: "metadata.ownerReferences"},
		{name: "namespaced owner of what has none", bad: applycorev1.Namespace("bad"), batch: func(b *applyset.Batch) { b.Owner, b.OwnerKind = owner("a"), ownerKind }, want: "metadata.ownerReferences"},
		{name: "owner of itself", bad: applycorev1.ConfigMap("owner", "a"), batch: func(b *applyset.Batch) { b.Owner, b.OwnerKind = owner("a"), ownerKind }, want: "metadata.ownerReferences: the object is Owner itself"},
		{
			name: "definition of the owner",
			bad:  object(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"easels.example.org"},"spec":{"group":"example.org","names":{"kind":"Easel"}}}`),
			batch: func(b *applyset.Batch) {
				b.Owner, b.OwnerKind = owner(""), schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Easel"}
			}, want: "metadata.ownerReferences: the object is the CustomResourceDefinition of Owner",
		},
		{
			name:  "owners that are no list",
			bad:   object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"bad","namespace":"a","ownerReferences":{"kind":"Pod"}}}`),
			batch: func(b *applyset.Batch) { b.Owner, b.OwnerKind = owner("a"), ownerKind }, want: "metadata.ownerReferences is not a list",
		},
		{
			name:  "another controller among nonsense",
			bad:   object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"bad","namespace":"a","ownerReferences":[5,{"kind":"Pod","name":"p","uid":"p","controller":true}]}}`),
			batch: func(b *applyset.Batch) { b.Owner, b.OwnerKind = owner("a"), ownerKind }, want: `metadata.ownerReferences: Pod "p"`,
		},
		{
			name:  "another controller",
			bad:   object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"bad","namespace":"a","ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"p","controller":true}]}}`),
			batch: func(b *applyset.Batch) { b.Owner, b.OwnerKind = owner("a"), ownerKind }, want: `metadata.ownerReferences: Pod "p"`,
		},

		{name: "delete: no client", delete: true, policy: "Background", batch: func(b *applyset.Batch) { b.Client = nil }, want: "Client"},
		{name: "delete: nil pointer", delete: true, policy: "Background", bad: none, want: "nil"},
		{name: "delete: no kind", delete: true, policy: "Background", bad: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "bad", UID: "u"}}, want: "apiVersion"},
		{name: "delete: no name", delete: true, policy: "Background", bad: object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"uid":"u"}}`), want: "metadata.name"},
		{name: "delete: no uid", delete: true, policy: "Background", bad: applycorev1.ConfigMap("bad", "a"), want: "metadata.uid"},
		{name: "delete: no namespace", delete: true, policy: "Background", bad: applycorev1.ConfigMap("bad", "").WithUID("u"), want: "metadata.namespace"},
		{name: "delete: unknown kind", delete: true, policy: "Background", bad: object(`{"apiVersion":"v1","kind":"Confusion","metadata":{"name":"bad","namespace":"a","uid":"u"}}`), want: "apiVersion and kind"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
			b := &applyset.Batch{Client: client, Mapper: batchMapper(), Manager: manager}
			objects := []any{object(cm)}
			if tt.delete {
				objects = []any{object(remove)}
			}
			if strings.Contains(tt.name, "of the batch") || strings.Contains(tt.name, "not served") {
				objects = append(objects, object(paintCRD, "example.com", "example.com"))
			}
			bad := len(objects)
			if tt.batch == nil && !tt.delete || tt.bad != nil {
				objects = append(objects, tt.bad, tt.bad)
			}
			if tt.batch != nil {
				tt.batch(b)
			}
			var err error
			if tt.delete {
				err = b.Delete(t.Context(), tt.policy, objects...)
			} else {
				var answers []*unstructured.Unstructured
				answers, err = b.Apply(t.Context(), objects...)
				for _, a := range answers {
					if a != nil {
						t.Errorf("answers = %v", answers)
					}
				}
				if bad != len(objects) && len(answers) != len(objects) {
					t.Errorf("%d answers for %d objects", len(answers), len(objects))
				}
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || len(client.Actions()) != 0 {
				t.Fatalf("error = %v with %d requests, want one that names %s", err, len(client.Actions()), tt.want)
			}
			if bad == len(objects) {
				return
			}
			all := objectErrors(t, err)
			for i := range objects {
				if all[i] == nil || errors.Is(all[i], applyset.ErrNotTried) != (i < bad) || !strings.Contains(all[i].Error(), fmt.Sprintf("(object %d of", i)) {
					t.Errorf("object %d: error = %v, want ErrNotTried for those before %d, and only for them", i, all[i], bad)
				}
			}
		})
	}
	b := &applyset.Batch{Client: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), Mapper: batchMapper(), Manager: manager}
	if answers, err := b.Apply(t.Context()); err != nil || len(answers) != 0 {
		t.Errorf("no objects: answers %v, error %v", answers, err)
	}
}

// paintCRD takes the group twice.
const paintCRD = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"paints.%s"},"spec":{
	"group":"%s","scope":"Namespaced","names":{"kind":"Paint","listKind":"PaintList","plural":"paints","singular":"paint"},
	"versions":[
		{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"color":{"type":"string"}}}}}}},
		{"name":"v2","served":false,"storage":false,"schema":{"openAPIV3Schema":{"type":"object"}}}
	]}}`

// stub is a dynamic client whose answers a test makes up.
func stub(verb string, react func(clienttesting.Action) (runtime.Object, error)) *dynamicfake.FakeDynamicClient {
	client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
	client.PrependReactor(verb, "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		o, err := react(a)
		return true, o, err
	})
	return client
}

// TestBatchOwner tests that an Owner that would delete the objects at once is an error.
func TestBatchOwner(t *testing.T) {
	other := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "p"}
	kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Paint"}
	yes := true
	mine := metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Paint", Name: "owner", UID: "o", Controller: &yes, BlockOwnerDeletion: &yes}
	weak := metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Paint", Name: "owner", UID: "o"}
	misspelt := map[string]any{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "contoller": true}
	raw := func(refs ...metav1.OwnerReference) []any {
		u := new(unstructured.Unstructured)
		u.SetOwnerReferences(refs)
		list, _, _ := unstructured.NestedSlice(u.Object, "metadata", "ownerReferences")
		return list
	}
	tests := []struct {
		name      string
		namespace string // of the owner
		refs      []any
		want      []any
	}{
		{name: "no other", namespace: "a", want: raw(mine)},
		{name: "cluster-scoped", want: raw(mine)},
		{name: "beside another", namespace: "a", refs: raw(other), want: raw(other, mine)},
		{name: "was not the controller", namespace: "a", refs: raw(weak, other), want: raw(other, mine)},
		{name: "what the server refuses stays", namespace: "a", refs: []any{misspelt}, want: append([]any{misspelt}, raw(mine)...)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			given := object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","namespace":"a"}}`)
			if tt.refs != nil {
				given.Object["metadata"].(map[string]any)["ownerReferences"] = tt.refs
			}
			before := given.DeepCopy()
			client := stub("patch", func(a clienttesting.Action) (runtime.Object, error) {
				return object("%s", a.(clienttesting.PatchAction).GetPatch()), nil
			})
			b := &applyset.Batch{Client: client, Mapper: batchMapper(), Manager: manager, OwnerKind: kind,
				Owner: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner", Namespace: tt.namespace, UID: "o"}}}
			answers, err := b.Apply(t.Context(), given)
			if err != nil {
				t.Fatal(err)
			}
			got, _, _ := unstructured.NestedSlice(answers[0].Object, "metadata", "ownerReferences")
			if diff := gocmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if diff := gocmp.Diff(before, given); diff != "" {
				t.Errorf("the object changed: -before +after:\n%s", diff)
			}
		})
	}
}

// configMaps returns n typed configurations.
func configMaps(n int, namespace string) []any {
	var all []any
	for i := range n {
		all = append(all, applycorev1.ConfigMap(fmt.Sprint("object-", i), namespace).WithData(map[string]string{"color": "red"}))
	}
	return all
}

// As many requests as allowed are under way and not one more. When the context ends,
// those are finished, and of the others it is said that they were not tried.
func TestBatchStopped(t *testing.T) {
	for _, concurrency := range []int{0, 1, 3} {
		for _, remove := range []bool{false, true} {
			t.Run(fmt.Sprint(concurrency, remove), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithCancelCause(t.Context())
					var mu sync.Mutex
					running, most := 0, 0
					tried := map[string]bool{}
					react := func(name string) error {
						mu.Lock()
						running++
						most = max(most, running)
						tried[name] = true
						mu.Unlock()
						time.Sleep(time.Second)
						mu.Lock()
						defer mu.Unlock()
						running--
						if name == "object-0" {
							return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, name, errBoom)
						}
						return nil
					}
					client := fakeClient{patch: func(name string) (*unstructured.Unstructured, error) {
						return object(`{"metadata":{"name":"%s"}}`, name), react(name)
					}, delete: react}
					b := &applyset.Batch{Client: client, Mapper: batchMapper(), Manager: manager, Concurrency: concurrency}
					want := concurrency
					if want == 0 {
						want = 8
					}
					stop := fmt.Errorf("the lease is lost")
					time.AfterFunc(1500*time.Millisecond, func() { cancel(stop) })
					objects := configMaps(30, "a")
					for _, o := range objects {
						o.(*config).WithUID("u")
					}
					var answers []*unstructured.Unstructured
					var err error
					start := time.Now()
					if remove {
						err = b.Delete(ctx, metav1.DeletePropagationBackground, objects...)
					} else {
						answers, err = b.Apply(ctx, objects...)
					}
					if took := time.Since(start); took != 2*time.Second || most != want || running != 0 || len(tried) != 2*want {
						t.Errorf("took %v with at most %d requests and %d left, tried %d; want 2s with %d", took, most, running, len(tried), want)
					}
					all := objectErrors(t, err)
					for i := range objects {
						name := fmt.Sprint("object-", i)
						o := all[i]
						switch {
						case i == 0:
							if !apierrors.IsForbidden(o) || o.Name != name || o.Namespace != "a" || o.Kind.Kind != "ConfigMap" {
								t.Errorf("%s: error %v", name, o)
							}
						case tried[name] && (o != nil || !remove && answers[i].GetName() != name):
							t.Errorf("%s was tried: error %v", name, o)
						case !tried[name] && (!errors.Is(o, applyset.ErrNotTried) || !errors.Is(o, stop) || !remove && answers[i] != nil):
							t.Errorf("%s was not tried: error %v", name, o)
						}
					}
				})
			})
		}
	}
}

// The wait for CustomResourceDefinitions ends with the first event that decides, and
// survives streams that end.
//
// Proves AS1.
func TestBatchWait(t *testing.T) {
	const crd = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"paints.example.com","resourceVersion":"%d"%s},"status":{"conditions":[%s]}}`
	const replaced = `,"uid":"another one"`
	const changed = `,"generation":2`
	const yes = `{"type":"NamesAccepted","status":"True"},{"type":"Established","status":"True"}`
	const accepted = `{"type":"NamesAccepted","status":"True"},{"type":"Established","status":"False"}`
	const refused = `{"type":"NamesAccepted","status":"False","reason":"KindConflict","message":"Paint is taken"}`
	modified := func(conditions string) watch.Event {
		return watch.Event{Type: watch.Modified, Object: object(crd, 2, "", conditions)}
	}
	expired := &apierrors.NewResourceExpired("too old").ErrStatus
	broken := &apierrors.NewInternalError(errors.New("http2: client connection lost")).ErrStatus
	forbidden := &apierrors.NewForbidden(schema.GroupResource{}, "", errBoom).ErrStatus
	tests := []struct {
		name    string
		applied string
		meta    string          // of the answer of the apply
		streams [][]watch.Event // a stream ends after its last event, if there is another one
		open    error           // of the first watch
		deaf    bool            // streams do not end with the context, as those of client-go's fakes
		get     string
		gotMeta string
		getting time.Duration // how long a Get takes
		want    string
		took    time.Duration
		watches int
		stop    time.Duration // when the context ends
	}{
		{name: "at once", applied: yes},
		{name: "by an event", streams: [][]watch.Event{{modified(accepted), modified(yes)}}, watches: 1},
		{name: "names are taken", streams: [][]watch.Event{{modified(refused)}}, want: "spec.names: the API server does not accept them: KindConflict: Paint is taken", watches: 1},
		{name: "names are taken at once", applied: refused, want: "spec.names"},
		{name: "names of a change are taken", applied: yes + "," + refused},
		{name: "being deleted", meta: `,"deletionTimestamp":"2020-01-01T00:00:00Z"`, want: "being deleted"},
		{name: "names of before this change were taken", applied: refused, meta: changed, streams: [][]watch.Event{{modified(yes)}}, watches: 1},
		{name: "names are taken after a change", applied: refused, meta: changed, streams: [][]watch.Event{{modified(refused)}}, want: "spec.names", watches: 1},
		{name: "names are taken still", applied: refused, meta: changed, streams: [][]watch.Event{{}}, get: refused, gotMeta: changed, want: "spec.names", took: 2 * time.Second, watches: 1},
		{name: "deleted", streams: [][]watch.Event{{{Type: watch.Deleted, Object: object(crd, 2, "", "")}}}, want: "deleted before", watches: 1},
		{name: "never", streams: [][]watch.Event{{modified(accepted)}}, want: "CRDTimeout of 10s is over", took: 10 * time.Second, watches: 1},
		{name: "stopped", streams: [][]watch.Event{{modified(accepted)}}, want: "not established: the lease is lost", stop: 2 * time.Second, took: 2 * time.Second, watches: 1},
		{name: "never, by a stream that does not end", deaf: true, streams: [][]watch.Event{{modified(accepted)}}, want: "CRDTimeout of 10s is over", took: 10 * time.Second, watches: 1},
		{name: "stopped between streams", streams: [][]watch.Event{{}, {}}, getting: time.Hour, stop: 2 * time.Second, want: "not established: the lease is lost", took: 2 * time.Second, watches: 1},
		{name: "replaced between streams", streams: [][]watch.Event{{}, {}}, get: yes, gotMeta: replaced, want: "another one has its name", took: time.Second, watches: 1},
		{name: "a stream that ends", streams: [][]watch.Event{{modified(accepted)}, {modified(yes)}}, get: accepted, took: time.Second, watches: 2},
		{name: "missed it", streams: [][]watch.Event{{}, {}}, get: yes, took: time.Second, watches: 1},
		{name: "too old", streams: [][]watch.Event{{{Type: watch.Error, Object: expired}}, {}}, get: yes, took: time.Second, watches: 1},
		{name: "too old at once", open: apierrors.NewResourceExpired("too old"), streams: [][]watch.Event{{}}, get: yes, took: time.Second, watches: 1},
		{name: "an error event", streams: [][]watch.Event{{{Type: watch.Error, Object: broken}}, {}}, get: yes, took: time.Second, watches: 1},
		{name: "may not watch", open: &apierrors.StatusError{ErrStatus: *forbidden}, want: "watch until it is established", watches: 1},
		{name: "gone between streams", streams: [][]watch.Event{{}, {}}, want: "read it to see whether", took: time.Second, watches: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				watches, second := 0, 0
				var opened []*watch.ProxyWatcher
				client := fakeClient{
					patch: func(name string) (*unstructured.Unstructured, error) {
						if name != "paints.example.com" {
							second++
						}
						return object(crd, 1, tt.meta, tt.applied), nil
					},
					get: func(ctx context.Context, name string) (*unstructured.Unstructured, error) {
						select {
						case <-ctx.Done():
							return nil, ctx.Err()
						case <-time.After(tt.getting):
						}
						if tt.get == "" {
							return nil, apierrors.NewNotFound(schema.GroupResource{}, name)
						}
						return object(crd, 3, tt.gotMeta, tt.get), nil
					},
					watch: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
						if opts.FieldSelector != "metadata.name=paints.example.com" || opts.ResourceVersion == "" {
							t.Errorf("a watch of %q from %q", opts.FieldSelector, opts.ResourceVersion)
						}
						watches++
						if tt.open != nil {
							return nil, tt.open
						}
						events := make(chan watch.Event, 10)
						for _, e := range tt.streams[watches-1] {
							events <- e
						}
						switch {
						case watches < len(tt.streams):
							close(events)
						case !tt.deaf:
							context.AfterFunc(ctx, func() { close(events) })
						}
						w := watch.NewProxyWatcher(events)
						opened = append(opened, w)
						return w, nil
					},
				}
				b := &applyset.Batch{Client: client, Mapper: batchMapper(), Manager: manager, CRDTimeout: 10 * time.Second}
				start := time.Now()
				ctx, cancel := context.WithTimeoutCause(t.Context(), cmp.Or(tt.stop, time.Hour), errors.New("the lease is lost"))
				defer cancel()
				answers, err := b.Apply(ctx, configMaps(1, "a")[0], object(paintCRD, "example.com", "example.com"))
				if took := time.Since(start); took != tt.took || watches != tt.watches {
					t.Errorf("took %v and %d watches, want %v and %d", took, watches, tt.took, tt.watches)
				}
				for i, w := range opened {
					select {
					case <-w.StopChan():
					default:
						t.Errorf("watch %d goes on", i)
					}
				}
				all := objectErrors(t, err)
				if (answers[1] == nil) != (tt.want != "") {
					t.Errorf("answer %v, error %v", answers[1], err)
				}
				if tt.want == "" {
					if err != nil || second != 1 {
						t.Errorf("error %v with %d requests of the second stage", err, second)
					}
					return
				}
				if len(all) != 2 || !strings.Contains(all[1].Error(), tt.want) || errors.Is(all[1], applyset.ErrNotTried) || !errors.Is(all[0], applyset.ErrNotTried) || second != 0 {
					t.Errorf("error %v with %d requests of the second stage, want %s", err, second, tt.want)
				}
			})
		})
	}
}

// The mapper is reset once if there is something to learn, and not otherwise.
func TestBatchReset(t *testing.T) {
	paint := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Paint"}
	client := fakeClient{patch: func(name string) (*unstructured.Unstructured, error) {
		return object(`{"metadata":{"name":"%s"},"status":{"conditions":[{"type":"Established","status":"True"}]}}`, name), nil
	}}
	mapper := batchMapper(paint)
	b := &applyset.Batch{Client: client, Mapper: mapper, Manager: manager}
	for range 3 {
		if _, err := b.Apply(t.Context(), object(paintCRD, "example.com", "example.com"), object(`{"apiVersion":"example.com/v1","kind":"Paint","metadata":{"name":"one","namespace":"a"}}`)); err != nil {
			t.Fatal(err)
		}
	}
	if mapper.resets != 1 {
		t.Errorf("%d resets, want 1", mapper.resets)
	}
	// A mapper that is reset asks the API server, which nobody does when the context ended.
	ctx, cancel := context.WithCancel(t.Context())
	client.patch = func(name string) (*unstructured.Unstructured, error) {
		cancel()
		return object(`{"metadata":{"name":"%s"},"status":{"conditions":[{"type":"Established","status":"True"}]}}`, name), nil
	}
	mapper = batchMapper(paint)
	b = &applyset.Batch{Client: client, Mapper: mapper, Manager: manager}
	if _, err := b.Apply(ctx, object(paintCRD, "example.com", "example.com")); err != nil || mapper.resets != 0 {
		t.Errorf("the context ended: %d resets, error %v", mapper.resets, err)
	}
}
