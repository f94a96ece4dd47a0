package crd_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	clientfeatures "k8s.io/client-go/features"
	featuretest "k8s.io/client-go/features/testing"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/scope"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// atom is a type of which the schema accepts values that it rejects.
type atom struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec struct {
		Duration metav1.Duration   `json:"duration"`
		Small    int8              `json:"small"`
		Size     resource.Quantity `json:"size"`
		At       metav1.Time       `json:"at"`
	} `json:"spec"`
}

func (a *atom) DeepCopyObject() runtime.Object {
	out := *a
	a.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.Size = a.Spec.Size.DeepCopy()
	return &out
}

// atoms has clients of Atoms.
type atoms struct {
	*crd.Client[*atom]
	dynamic dynamic.ResourceInterface
	group   string
}

// installAtoms installs the definition of Atoms in a group of the test.
func installAtoms(t *testing.T, group string) {
	t.Helper()
	text, number := m{"type": "string"}, m{"type": "integer"}
	testserver.InstallCRD(t, m{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": m{"name": "atoms." + group},
		"spec": m{"group": group, "scope": "Namespaced", "names": m{"plural": "atoms", "singular": "atom", "kind": "Atom", "listKind": "AtomList"},
			"versions": []any{m{"name": "v1", "served": true, "storage": true, "schema": m{"openAPIV3Schema": m{"type": "object", "properties": m{
				"spec": m{"type": "object", "properties": m{"duration": text, "small": number, "size": text, "at": text}}}}}}}},
	})
}

func newAtoms(t *testing.T, config *rest.Config, group, namespace string) atoms {
	t.Helper()
	kind := schema.GroupVersionKind{Group: group, Version: "v1", Kind: "Atom"}
	c, err := crd.New[*atom](config, kind, "atoms")
	if err != nil {
		t.Fatal(err)
	}
	d, err := dynamic.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	return atoms{c.Namespace(namespace), d.Resource(kind.GroupVersion().WithResource("atoms")).Namespace(namespace), group}
}

// put creates an Atom, or merges spec into it.
func (a atoms) put(t *testing.T, name string, spec m) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{Object: m{"apiVersion": a.group + "/v1", "kind": "Atom", "metadata": m{"name": name}, "spec": spec}}
	created, err := a.dynamic.Create(t.Context(), u, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		patch, _ := u.MarshalJSON()
		created, err = a.dynamic.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return created
}

func (a atoms) delete(t *testing.T, name string) {
	t.Helper()
	if err := a.dynamic.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// malformedSpecs are specs that the schema accepts and atom does not.
var malformedSpecs = map[string]m{
	"duration": {"duration": "99999999999999s"},
	"overflow": {"small": int64(300)},
	"quantity": {"size": "a lot"},
	"time":     {"at": "yesterday"},
}

// TestServerMalformed: an informer goes on without an object that does not fit, which stays
// present by name. Lists are streamed or not.
//
// Proves CR3, CR4.
func TestServerMalformed(t *testing.T) {
	t.Parallel()
	const group = "malformed.example.com"
	installAtoms(t, group)
	for _, streamed := range []bool{true, false} {
		t.Run(fmt.Sprintf("streamed lists %v", streamed), func(t *testing.T) {
			featuretest.SetFeatureDuringTest(t, clientfeatures.WatchListClient, streamed)
			a := newAtoms(t, testserver.Config(t), group, testserver.Namespace(t))
			a.put(t, "first", m{"duration": "5s"})
			a.put(t, "old", m{"duration": "forever"}) // malformed before the informer starts
			source := a.Informer(0, nil)
			events := make(chan string, 100)
			name := func(obj any) string {
				if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
					return lost.Key[strings.Index(lost.Key, "/")+1:] + " lost"
				}
				return obj.(*atom).Name + " " + obj.(*atom).Spec.Duration.Duration.String()
			}
			if _, err := source.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
				AddFunc:    func(obj any) { events <- "add " + name(obj) },
				UpdateFunc: func(_, obj any) { events <- "update " + name(obj) },
				DeleteFunc: func(obj any) { events <- "delete " + name(obj) },
			}); err != nil {
				t.Fatal(err)
			}
			next := func(want string) {
				t.Helper()
				if got := <-events; got != want {
					t.Fatalf("event %q, want %q", got, want)
				}
			}
			run(t, source.Informer())
			next("add first 5s")
			lister := source.Lister().Namespace(a.put(t, "second", m{"duration": "6s"}).GetNamespace())
			next("add second 6s")
			check := func(present string, bad ...string) {
				t.Helper()
				for _, name := range bad {
					for from, err := range map[string]error{"lister": errorOf(lister.Get(name)), "client": errorOf(a.Get(t.Context(), name, metav1.GetOptions{}))} {
						if !errors.Is(err, crd.ErrMalformed) || !strings.Contains(err.Error(), "/"+name+" of the API server does not fit") || apierrors.IsNotFound(err) {
							t.Errorf("Get of %s by the %s = %v", name, from, err)
						}
					}
				}
				var names, live []string
				objects, err := lister.List(labels.Everything())
				for _, o := range objects {
					names = append(names, o.Name)
				}
				list, liveErr := a.List(t.Context(), metav1.ListOptions{})
				if list != nil {
					for _, o := range list.Items {
						live = append(live, o.Name)
					}
				}
				slices.Sort(names)
				slices.Sort(live)
				for from, err := range map[string]error{"lister": err, "client": liveErr} {
					if errors.Is(err, crd.ErrMalformed) != (len(bad) > 0) {
						t.Errorf("List of the %s = %v", from, err)
					}
				}
				if got := strings.Join(names, " "); got != present || strings.Join(live, " ") != present {
					t.Errorf("listed %q, live %q, want %s", names, live, present)
				}
			}
			check("first second", "old")

			// A good object becomes malformed, and good again.
			for _, spec := range malformedSpecs {
				a.put(t, "first", spec)
				next("update first 5s")
				check("second", "first", "old")
				a.put(t, "first", m{"duration": "5s", "small": nil, "size": nil, "at": nil})
				next("update first 5s")
				check("first second", "old")
			}
			// The deletion of a malformed one is a deletion, also of one that never fit.
			a.put(t, "first", m{"duration": "1y"})
			next("update first 5s")
			a.delete(t, "first")
			next("delete first 5s")
			a.put(t, "new", m{"duration": "1y"})
			a.put(t, "third", m{"duration": "7s"})
			next("add third 7s")
			check("second third", "new", "old")
			a.delete(t, "new")
			next("delete new lost")
			a.delete(t, "old")
			next("delete old lost")
			check("second third")
			if _, err := lister.Get("old"); !apierrors.IsNotFound(err) {
				t.Errorf("Get of a deleted object = %v", err)
			}
		})
	}
}

func errorOf[T any](_ T, err error) error { return err }

// counts is a Metrics that has the functions of InformerMalformed.
type counts struct {
	informer.Metrics
	of map[string]func() int
}

func (c counts) InformerMalformed(name string, malformed func() int) { c.of[name] = malformed }
func (counts) InformerListed(string, time.Duration)                  {}
func (counts) InformerWatched(string, time.Duration)                 {}
func (counts) InformerLast(string, func() time.Time)                 {}

// TestServerBlind: an informer that stops at a malformed object, as those of generated clients do,
// makes Ready and Check fail with the object's name, and LastEvents stays. One that goes on does
// not. Both are counted.
func TestServerBlind(t *testing.T) {
	t.Parallel()
	config := testserver.Config(t)
	config.Wrap(informer.EndSilentWatches(0))
	installAtoms(t, "blind.example.com")
	a := newAtoms(t, config, "blind.example.com", testserver.Namespace(t))
	a.put(t, "first", m{"duration": "5s"})
	metrics := counts{of: map[string]func() int{}}
	failed := make(chan error, 100)
	set := informer.Set{Timeout: time.Minute, StopTimeout: time.Minute, Metrics: metrics, WatchErrorHandler: func(_ context.Context, _ *cache.Reflector, err error) { failed <- err }}
	stops := cache.NewSharedIndexInformer(a.ListWatch(nil), &atom{}, 0, cache.Indexers{})
	goesOn := a.Informer(0, nil)
	set.Add("stops", stops)
	set.Add("goes on", goesOn.Informer())
	added := make(chan string, 10)
	if _, err := goesOn.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) { added <- obj.(*atom).Name }}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-set.HasSyncedChecker().Done():
	case err := <-done:
		done <- nil
		t.Fatal(err)
	}
	a.put(t, "bad", m{"duration": "99999999999999s"})
	for range 2 {
		<-failed
	}
	before := set.LastEvents()
	<-failed
	a.put(t, "second", m{"duration": "5s"})
	for name := range added {
		if name == "second" {
			break
		}
	}
	for name, err := range map[string]error{"Ready": set.Ready(), "Check": set.Check()} {
		if err == nil || !strings.Contains(err.Error(), `"stops" gets no events`) || !strings.Contains(err.Error(), "/bad") || strings.Contains(err.Error(), `"goes on"`) || !errors.Is(err, crd.ErrMalformed) {
			t.Errorf("%s = %v", name, err)
		}
	}
	<-failed
	after := set.LastEvents()
	if !after["stops"].Equal(before["stops"]) || !after["goes on"].After(before["goes on"]) {
		t.Errorf("LastEvents %v, before %v", after, before)
	}
	for name, malformed := range metrics.of {
		if malformed() != 1 {
			t.Errorf("%s: %d malformed objects", name, malformed())
		}
	}
	events := make(chan string, 10)
	if _, err := stops.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) { events <- obj.(*atom).Name }}); err != nil {
		t.Fatal(err)
	}
	a.delete(t, "bad")
	for name := range events {
		if name == "second" {
			break
		}
	}
	// The cache got the object from a list, or from a watch whose next read is outstanding.
	a.put(t, "third", m{"duration": "5s"})
	for name := range events {
		if name == "third" {
			break
		}
	}
	if err := errors.Join(set.Ready(), set.Check()); err != nil {
		t.Error(err)
	}
}

// TestServerMalformedInScope: a scope over informers of package crd also goes on without a malformed object, and knows it.
func TestServerMalformedInScope(t *testing.T) {
	t.Parallel()
	const group = "scoped.example.com"
	installAtoms(t, group)
	one, two := testserver.Namespace(t), testserver.Namespace(t)
	all := newAtoms(t, testserver.Config(t), group, "")
	mine := newAtoms(t, testserver.Config(t), group, one)
	mine.put(t, "a", m{"duration": "5s"})
	newAtoms(t, testserver.Config(t), group, two).put(t, "bad", m{"duration": "forever"})
	part := func(p scope.Part) (cache.SharedIndexInformer, error) {
		return all.Namespace(p.Namespace).Informer(0, p.Options).Informer(), nil
	}
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	events := make(chan string, 100)
	for range 2 {
		s := scope.New(part)
		wg.Go(func() { s.RunWithContext(ctx) })
		if err := s.AddIndexers(cache.Indexers{"name": func(obj any) ([]string, error) { return []string{obj.(*atom).Name}, nil }}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { events <- "add " + obj.(*atom).Name },
			DeleteFunc: func(obj any) { events <- "delete" },
		}); err != nil {
			t.Fatal(err)
		}
		if err := s.Select(t.Context(), scope.Selection{Namespaces: []string{one, two}}); err != nil {
			t.Fatal(err)
		}
		if got := <-events; got != "add a" {
			t.Errorf("event %q", got)
		}
		if _, ok, err := s.GetStore().GetByKey(two + "/bad"); !ok || !errors.Is(err, crd.ErrMalformed) {
			t.Errorf("GetByKey = %v, %v", ok, err)
		}
		if got, err := s.GetIndexer().ByIndex("name", "a"); !errors.Is(err, crd.ErrMalformed) {
			t.Errorf("ByIndex = %v, %v", got, err)
		}
		// Leaving a namespace ends the objects that its handler has seen.
		if err := s.Select(t.Context(), scope.Selection{Namespaces: []string{one}}); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := s.GetStore().GetByKey(two + "/bad"); ok || err != nil {
			t.Errorf("GetByKey of a namespace outside = %v, %v", ok, err)
		}
		if err := s.Select(t.Context(), scope.Selection{Namespaces: []string{two}}); err != nil {
			t.Fatal(err)
		}
		if got := <-events; got != "delete" {
			t.Errorf("event %q", got)
		}
	}
}
