package applyset_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa/applyset"
)

// TestServerSetCreate: an absent object of any kind is created by one request, and the same
// request changes no existing one.
//
// Proves AS6.
func TestServerSetCreate(t *testing.T) {
	a, g := newArena(t), newGallery(t)
	var mu sync.Mutex
	requests := map[string][]string{} // of each object
	process, err := fault.New(testserver.Config(t), func(op *fault.Op) fault.Fault {
		mu.Lock()
		defer mu.Unlock()
		if op.Verb != "list" && op.Verb != "watch" {
			requests[op.Resource+"/"+op.Name] = append(requests[op.Resource+"/"+op.Name], op.Verb)
		}
		return fault.Fault{}
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	mapper := setMapper(a.kind(),
		schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, schema.GroupVersionKind{Version: "v1", Kind: "PersistentVolumeClaim"},
		schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "Job"}, schema.GroupVersionKind{Group: "networking.k8s.io", Version: "v1", Kind: "Ingress"})
	const pod = `{"containers":[{"name":"a","image":"a"}],"restartPolicy":"Never"}`
	objects := []*unstructured.Unstructured{
		object(paintCRD, a.group, a.group),
		object(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, a.name),
		object(`{"apiVersion":%q,"kind":"Paint","metadata":{"name":"one","namespace":%q}}`, a.group+"/v1", g.one),
		object(`{"apiVersion":"v1","kind":"Event","metadata":{"name":"one","namespace":%q},"involvedObject":{"namespace":%q}}`, g.one, g.one),
		object(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"one","namespace":%q},"spec":`+pod+`}`, g.one),
		object(`{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"one","namespace":%q},"spec":{"template":{"spec":`+pod+`}}}`, g.one),
		object(`{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"one","namespace":%q},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`, g.one),
		object(`{"apiVersion":"networking.k8s.io/v1","kind":"Ingress","metadata":{"name":"one","namespace":%q},"spec":{"defaultBackend":{"service":{"name":"one","port":{"number":80}}}}}`, g.one),
	}
	for _, k := range randomKinds {
		at := place{k.kind, g.one, "one"}
		if k.kind == "ClusterRole" || k.kind == "ValidatingAdmissionPolicy" {
			at.namespace, at.name = "", g.one
		}
		objects = append(objects, at.object("red"))
	}
	set := func() *applyset.Set {
		s := newSet(t, process.Config())
		s.Mapper, s.MaxPrunePercent = mapper, 100
		return s
	}
	parent := g.parent(t, "first")
	s := set()
	wanted := make([]applyset.Member, len(objects))
	for i, o := range objects {
		wanted[i].Object = o
	}
	results, err := s.Apply(t.Context(), parent, wanted...)
	if err != nil {
		t.Fatal(err)
	}
	resource := func(o *unstructured.Unstructured) schema.GroupVersionResource {
		mapping, err := mapper.RESTMapping(o.GroupVersionKind().GroupKind())
		if err != nil {
			t.Fatal(err)
		}
		return mapping.Resource
	}
	for i, r := range results {
		name := resource(objects[i]).GroupResource().String() + "/" + r.Name
		if got := strings.Join(requests[name], " "); r.Action != applyset.Created || got != "apply" {
			t.Errorf("%s: %s by the requests %q, want Created by one apply", name, r.Action, got)
		}
	}

	other := g.parent(t, "second")
	clear(requests)
	for i, r := range results {
		name := resource(objects[i]).GroupResource().String() + "/" + r.Name
		if _, err := set().Apply(t.Context(), g.read(t, other), wanted[i]); err == nil || !strings.Contains(err.Error(), "another set") {
			t.Errorf("%s exists: error %v", name, err)
		}
		if got := strings.Join(requests[name], " "); got != "apply get" {
			t.Errorf("%s exists: requests %q", name, got)
		}
		live, err := g.objects.Resource(resource(objects[i])).Namespace(r.Namespace).Get(t.Context(), r.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range []*unstructured.Unstructured{live, r.Object} { // controllers write the status
			o.SetManagedFields(nil)
			o.SetResourceVersion("")
			delete(o.Object, "status")
		}
		if diff := cmp.Diff(r.Object.Object, live.Object); diff != "" {
			t.Errorf("%s exists (-before +after):\n%s", name, diff)
		}
	}
	if _, err := s.Delete(t.Context(), g.read(t, parent)); err != nil {
		t.Log(err) // a Namespace takes its time
	}
}

// If an object that Apply supposes to be absent exists, the conflict of the creation does not hold the
// key back: it waits only for the write.
func TestServerSetCreateGate(t *testing.T) {
	g := newGallery(t)
	config := testserver.Config(t)
	writes := consistency.New(consistency.Config{MaxWait: -1})
	config.Wrap(writes.Wrap)
	configMaps := informers.NewSharedInformerFactoryWithOptions(g, 0, informers.WithNamespace(g.two)).Core().V1().ConfigMaps().Informer()
	if err := writes.AddInformer(corev1.Resource("configmaps"), configMaps); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { configMaps.RunWithContext(ctx) })
	defer running.Wait()
	defer stop()

	if _, err := g.CoreV1().ConfigMaps(g.two).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	parent := g.parent(t, "parent")
	wanted := wantConfigMap(g.two, "one", "red")
	wanted.Adopt = true
	key := types.NamespacedName{Namespace: g.one, Name: "parent"}
	results, err := newSet(t, config).Apply(writes.Begin(t.Context(), key), parent, wanted)
	if err != nil || results[0].Action != applyset.Adopted {
		t.Fatalf("%s, error %v, want the object to be adopted", actions(results), err)
	}
	writes.End(key)
	shown, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := writes.Wait(shown, key); err != nil {
		t.Fatalf("the key waits for more than its write: %v", err)
	}
	if !consistency.LiveRead(writes.Begin(t.Context(), key)) {
		t.Error("the next call decides by a cache that did not have the object")
	}
}

// If other users change a member before each of its applies, Apply decides again, and gives
// up after four applies.
//
// Proves AS2.
func TestServerSetContendedMember(t *testing.T) {
	g := newGallery(t)
	parent := g.parent(t, "parent")
	if _, err := newSet(t, testserver.Config(t)).Apply(t.Context(), parent, wantConfigMap(g.one, "one", "red")); err != nil {
		t.Fatal(err)
	}
	for _, intrusions := range []int{3, 4} {
		tries := 0
		process, err := fault.New(testserver.Config(t), func(op *fault.Op) fault.Fault {
			if op.Verb != "apply" || op.Name != "one" {
				return fault.Fault{}
			}
			if tries++; tries > intrusions {
				return fault.Fault{}
			}
			return fault.Fault{Before: func() {
				patch := fmt.Sprintf(`{"metadata":{"annotations":{"example.com/n":"%d-%d"}}}`, intrusions, tries)
				if _, err := g.CoreV1().ConfigMaps(g.one).Patch(t.Context(), "one", types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "other"}); err != nil {
					t.Error(err)
				}
			}}
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(process.Kill)
		results, err := newSet(t, process.Config()).Apply(t.Context(), g.read(t, parent), wantConfigMap(g.one, "one", fmt.Sprint("blue-", intrusions)))
		if tries != 4 || (intrusions == 3) != (err == nil) || err != nil && !apierrors.IsConflict(err) {
			t.Errorf("%d intrusions, %d applies: %s, error %v", intrusions, tries, actions(results), err)
		}
	}
}

// TestServerSetRequests: the first call for 200 objects makes 202 requests. Then only a
// change makes some.
//
// Proves AS5.
func TestServerSetRequests(t *testing.T) {
	g := newGallery(t)
	config, count := testserver.Counted(t)
	s := newSet(t, config)
	parent := g.parent(t, "parent")
	cache := map[string]metav1.Object{}
	for _, tt := range []struct {
		name     string
		objects  int
		color    string // of the first
		requests int64
	}{
		{"create", 200, "red", 202}, // the parent, its inventory, and one for each
		{"no change", 200, "red", 0},
		{"one change", 200, "blue", 1},
		{"prune 20", 180, "blue", 41}, // a read and a deletion of each, and a list
	} {
		var wanted []applyset.Member
		for i := range tt.objects {
			m := wantConfigMap(g.two, fmt.Sprint("object-", i), "red")
			if i == 0 {
				m = wantConfigMap(g.two, "object-0", tt.color)
			}
			m.Live = cache[fmt.Sprint("object-", i)]
			wanted = append(wanted, m)
		}
		live := g.read(t, parent)
		before := count.Load()
		results, err := s.Apply(t.Context(), live, wanted...)
		if got := count.Load() - before; err != nil || got != tt.requests {
			t.Errorf("%s: %d requests, want %d; error %v", tt.name, got, tt.requests, err)
		}
		for _, r := range results {
			if r.Object != nil {
				cache[r.Name] = r.Object
			}
		}
	}
}
