package ssa_test

import (
	"cmp"
	"context"
	"encoding/json"
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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/controllerkit/controllerkit/ssa"
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
	if err := json.Unmarshal(fmt.Appendf(nil, s, args...), &u.Object); err != nil {
		panic(err)
	}
	return u
}

// objectErrors returns what a batch's error says of each object, by its index.
func objectErrors(t *testing.T, err error) map[int]*ssa.ObjectError {
	t.Helper()
	all := map[int]*ssa.ObjectError{}
	if err == nil {
		return all
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("error = %v, want several joined", err)
	}
	last := -1
	for _, err := range joined.Unwrap() {
		var o *ssa.ObjectError
		if !errors.As(err, &o) || o.Index <= last {
			t.Fatalf("error = %v, want one of an object after %d", err, last)
		}
		last = o.Index
		all[o.Index] = o
	}
	return all
}

// What is wrong with a batch or with one of its objects is an error before the first
// request, which names the object and the field. All objects are named at once.
//
// Proves A27.
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
		batch  func(*ssa.Batch)
		bad    any // nil means that the batch is bad, and not an object
		delete bool
		policy metav1.DeletionPropagation
		want   string
	}{
		{name: "no client", batch: func(b *ssa.Batch) { b.Client = nil }, want: "Client"},
		{name: "no mapper", batch: func(b *ssa.Batch) { b.Mapper = nil }, want: "Mapper"},
		{name: "no manager", batch: func(b *ssa.Batch) { b.Manager = "" }, want: "field manager"},
		{name: "concurrency", batch: func(b *ssa.Batch) { b.Concurrency = -1 }, want: "Concurrency"},
		{name: "timeout", batch: func(b *ssa.Batch) { b.CRDTimeout = -1 }, want: "CRDTimeout"},
		{name: "owner without uid", batch: func(b *ssa.Batch) { b.Owner, b.OwnerKind = &corev1.ConfigMap{}, ownerKind }, want: "Owner has no metadata.uid"},
		{name: "owner that is nil", batch: func(b *ssa.Batch) { b.Owner, b.OwnerKind = (*corev1.ConfigMap)(nil), ownerKind }, want: "Owner is a nil pointer"},
		{name: "owner without kind", batch: func(b *ssa.Batch) { b.Owner = owner("a") }, want: "OwnerKind"},
		{name: "no propagation", delete: true, want: "propagation"},
		{name: "wrong propagation", delete: true, policy: "Later", want: "propagation"},

		{name: "nil", bad: nil, want: ""},
		{name: "nil pointer", bad: none, want: "nil"},
		{name: "no object", bad: []string{}, want: "read the object"},
		{name: "not JSON", bad: func() {}, want: "encode"},
		{name: "no kind", bad: object(`{"apiVersion":"v1","metadata":{"name":"bad"}}`), want: "kind"},
		{name: "no apiVersion", bad: object(`{"kind":"ConfigMap","metadata":{"name":"bad"}}`), want: "apiVersion"},
		{name: "no name", bad: object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"bad"}}`), want: "metadata.name"},
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
		{name: "owner in another namespace", bad: applycorev1.ConfigMap("bad", "b"), batch: func(b *ssa.Batch) { b.Owner, b.OwnerKind = owner("a"), ownerKind }, want: "metadata.ownerReferences"},
		{name: "namespaced owner of what has none", bad: applycorev1.Namespace("bad"), batch: func(b *ssa.Batch) { b.Owner, b.OwnerKind = owner("a"), ownerKind }, want: "metadata.ownerReferences"},
		{
			name:  "another controller",
			bad:   object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"bad","namespace":"a","ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"p","controller":true}]}}`),
			batch: func(b *ssa.Batch) { b.Owner, b.OwnerKind = owner("a"), ownerKind }, want: `metadata.ownerReferences: Pod "p"`,
		},

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
			b := &ssa.Batch{Client: client, Mapper: batchMapper(), Manager: manager}
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
				if answers != nil {
					t.Errorf("answers = %v", answers)
				}
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || len(client.Actions()) != 0 {
				t.Fatalf("error = %v with %d requests, want one that names %s", err, len(client.Actions()), tt.want)
			}
			if bad == len(objects) {
				return
			}
			all := objectErrors(t, err)
			if len(all) != 2 || all[bad] == nil || all[bad+1] == nil || !strings.Contains(all[bad].Error(), fmt.Sprintf("object %d", bad)) {
				t.Errorf("error = %v, want one of objects %d and %d", err, bad, bad+1)
			}
		})
	}
	b := &ssa.Batch{Client: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), Mapper: batchMapper(), Manager: manager}
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

// TestBatchOwner proves A29.
func TestBatchOwner(t *testing.T) {
	other := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "p"}
	kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Paint"}
	yes := true
	mine := metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Paint", Name: "owner", UID: "o", Controller: &yes, BlockOwnerDeletion: &yes}
	weak := metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Paint", Name: "owner", UID: "o"}
	tests := []struct {
		name      string
		namespace string // of the owner
		refs      []metav1.OwnerReference
		want      []metav1.OwnerReference
	}{
		{name: "no other", namespace: "a", want: []metav1.OwnerReference{mine}},
		{name: "cluster-scoped", want: []metav1.OwnerReference{mine}},
		{name: "beside another", namespace: "a", refs: []metav1.OwnerReference{other}, want: []metav1.OwnerReference{other, mine}},
		{name: "was not the controller", namespace: "a", refs: []metav1.OwnerReference{weak, other}, want: []metav1.OwnerReference{other, mine}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			given := object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","namespace":"a"}}`)
			if tt.refs != nil {
				given.SetOwnerReferences(tt.refs)
			}
			before := given.DeepCopy()
			client := stub("patch", func(a clienttesting.Action) (runtime.Object, error) {
				return object("%s", a.(clienttesting.PatchAction).GetPatch()), nil
			})
			b := &ssa.Batch{Client: client, Mapper: batchMapper(), Manager: manager, OwnerKind: kind,
				Owner: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner", Namespace: tt.namespace, UID: "o"}}}
			answers, err := b.Apply(t.Context(), given)
			if err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(tt.want, answers[0].GetOwnerReferences()); diff != "" {
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
//
// Proves A25.
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
					b := &ssa.Batch{Client: client, Mapper: batchMapper(), Manager: manager, Concurrency: concurrency}
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
						case !tried[name] && (!errors.Is(o, ssa.ErrNotTried) || !errors.Is(o, stop) || !remove && answers[i] != nil):
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
// Proves A24.
func TestBatchWait(t *testing.T) {
	const crd = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"paints.example.com","resourceVersion":"%d"%s},"status":{"conditions":[%s]}}`
	const yes = `{"type":"NamesAccepted","status":"True"},{"type":"Established","status":"True"}`
	const accepted = `{"type":"NamesAccepted","status":"True"},{"type":"Established","status":"False"}`
	const refused = `{"type":"NamesAccepted","status":"False","reason":"KindConflict","message":"Paint is taken"}`
	modified := func(conditions string) watch.Event {
		return watch.Event{Type: watch.Modified, Object: object(crd, 2, "", conditions)}
	}
	expired := &apierrors.NewResourceExpired("too old").ErrStatus
	forbidden := &apierrors.NewForbidden(schema.GroupResource{}, "", errBoom).ErrStatus
	tests := []struct {
		name    string
		applied string
		deleted bool            // the answer of the apply is about to go
		streams [][]watch.Event // a stream ends after its last event, if there is another one
		open    error           // of the first watch
		get     string
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
		{name: "being deleted", deleted: true, want: "being deleted"},
		{name: "deleted", streams: [][]watch.Event{{{Type: watch.Deleted, Object: object(crd, 2, "", "")}}}, want: "deleted before", watches: 1},
		{name: "never", streams: [][]watch.Event{{modified(accepted)}}, want: "CRDTimeout of 10s is over", took: 10 * time.Second, watches: 1},
		{name: "stopped", streams: [][]watch.Event{{modified(accepted)}}, want: "not established: the lease is lost", stop: 2 * time.Second, took: 2 * time.Second, watches: 1},
		{name: "a stream that ends", streams: [][]watch.Event{{modified(accepted)}, {modified(yes)}}, get: accepted, took: time.Second, watches: 2},
		{name: "missed it", streams: [][]watch.Event{{}, {}}, get: yes, took: time.Second, watches: 1},
		{name: "too old", streams: [][]watch.Event{{{Type: watch.Error, Object: expired}}, {}}, get: yes, took: time.Second, watches: 1},
		{name: "too old at once", open: apierrors.NewResourceExpired("too old"), streams: [][]watch.Event{{}}, get: yes, took: time.Second, watches: 1},
		{name: "an error event", streams: [][]watch.Event{{{Type: watch.Error, Object: forbidden}}}, want: "watch until it is established", watches: 1},
		{name: "may not watch", open: &apierrors.StatusError{ErrStatus: *forbidden}, want: "watch until it is established", watches: 1},
		{name: "gone between streams", streams: [][]watch.Event{{}, {}}, want: "see if it is established", took: time.Second, watches: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				deletion, watches, second := "", 0, 0
				var opened []*watch.ProxyWatcher
				if tt.deleted {
					deletion = `,"deletionTimestamp":"2020-01-01T00:00:00Z"`
				}
				client := fakeClient{
					patch: func(name string) (*unstructured.Unstructured, error) {
						if name != "paints.example.com" {
							second++
						}
						return object(crd, 1, deletion, tt.applied), nil
					},
					get: func(name string) (*unstructured.Unstructured, error) {
						if tt.get == "" {
							return nil, apierrors.NewNotFound(schema.GroupResource{}, name)
						}
						return object(crd, 3, "", tt.get), nil
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
						if watches < len(tt.streams) {
							close(events)
						} else {
							context.AfterFunc(ctx, func() { close(events) })
						}
						w := watch.NewProxyWatcher(events)
						opened = append(opened, w)
						return w, nil
					},
				}
				b := &ssa.Batch{Client: client, Mapper: batchMapper(), Manager: manager, CRDTimeout: 10 * time.Second}
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
				if len(all) != 2 || !strings.Contains(all[1].Error(), tt.want) || errors.Is(all[1], ssa.ErrNotTried) || !errors.Is(all[0], ssa.ErrNotTried) || second != 0 {
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
	b := &ssa.Batch{Client: client, Mapper: mapper, Manager: manager}
	for range 3 {
		if _, err := b.Apply(t.Context(), object(paintCRD, "example.com", "example.com"), object(`{"apiVersion":"example.com/v1","kind":"Paint","metadata":{"name":"one","namespace":"a"}}`)); err != nil {
			t.Fatal(err)
		}
	}
	if mapper.resets != 1 {
		t.Errorf("%d resets, want 1", mapper.resets)
	}
}

// What a Conflict at a deletion is about is looked up.
//
// Proves A26.
func TestBatchDeleteConflict(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{}, "one", errBoom)
	tests := []struct {
		name string
		get  func(string) (*unstructured.Unstructured, error)
		want func(error) bool
	}{
		{name: "replaced", get: func(string) (*unstructured.Unstructured, error) {
			return object(`{"metadata":{"name":"one","uid":"v"}}`), nil
		}, want: func(err error) bool { return err == nil }},
		{name: "gone", get: func(name string) (*unstructured.Unstructured, error) {
			return nil, apierrors.NewNotFound(schema.GroupResource{}, name)
		}, want: func(err error) bool { return err == nil }},
		{name: "there", get: func(string) (*unstructured.Unstructured, error) {
			return object(`{"metadata":{"name":"one","uid":"u"}}`), nil
		}, want: apierrors.IsConflict},
		{name: "who knows", get: func(string) (*unstructured.Unstructured, error) { return nil, errBoom }, want: func(err error) bool {
			return apierrors.IsConflict(err) && errors.Is(err, errBoom)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := &ssa.Batch{Client: fakeClient{delete: func(string) error { return conflict }, get: tt.get}, Mapper: batchMapper()}
			err := b.Delete(t.Context(), metav1.DeletePropagationOrphan, applycorev1.ConfigMap("one", "a").WithUID(types.UID("u")))
			if !tt.want(err) {
				t.Errorf("error = %v", err)
			}
		})
	}
}
