package applyset_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa/applyset"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/inventory"
)

var transitionCount = flag.Int("transitions", 0, "how many transitions of large sets of 12 kinds TestServerSetRandom makes; 0 means a sample of small sets of 3 kinds")

// randomKinds has the apiVersion and the content of the kinds of the property test.
var randomKinds = []struct{ kind, apiVersion, content string }{
	{"ConfigMap", "v1", ""},
	{"Secret", "v1", ""},
	{"ServiceAccount", "v1", ""},
	{"Service", "v1", `,"spec":{"ports":[{"port":80,"protocol":"TCP"}]}`},
	{"LimitRange", "v1", ""},
	{"Deployment", "apps/v1", `,"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"a","image":"a"}]}}}`},
	{"Role", "rbac.authorization.k8s.io/v1", ""},
	{"NetworkPolicy", "networking.k8s.io/v1", `,"spec":{"podSelector":{}}`},
	{"PodDisruptionBudget", "policy/v1", ""},
	{"Lease", "coordination.k8s.io/v1", ""},
	{"ClusterRole", "rbac.authorization.k8s.io/v1", ""},
	{"ValidatingAdmissionPolicy", "admissionregistration.k8s.io/v1", `,"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":["example.com"],"apiVersions":["*"],"operations":["CREATE"],"resources":["none"]}]},"validations":[{"expression":"true"}]}`},
}

// place is where an object of the property test can be.
type place struct{ kind, namespace, name string }

func (p place) resource() schema.GroupVersionResource {
	plural := strings.ToLower(p.kind) + "s"
	if base, ok := strings.CutSuffix(plural, "ys"); ok {
		plural = base + "ies"
	}
	version, _ := schema.ParseGroupVersion(p.apiVersion())
	return version.WithResource(plural)
}

func (p place) apiVersion() string {
	for _, k := range randomKinds {
		if k.kind == p.kind {
			return k.apiVersion
		}
	}
	return ""
}

func (p place) object(color string) *unstructured.Unstructured {
	for _, k := range randomKinds {
		if k.kind == p.kind {
			return object(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"namespace":%q,"annotations":{"color":%q}}%s}`, k.apiVersion, p.kind, p.name, p.namespace, color, k.content)
		}
	}
	return nil
}

// painter is a controller of one set in the property test.
type painter struct {
	parent  *corev1.ConfigMap
	id      string
	set     *applyset.Set
	process *fault.Incarnation
	known   map[types.UID]bool // the members that the process can remember
	on      func(*fault.Op) fault.Fault
}

func (p *painter) restart(t *testing.T) {
	t.Helper()
	if p.process != nil {
		p.process.Kill()
	}
	process, err := fault.New(testserver.Config(t), func(op *fault.Op) fault.Fault { return p.on(op) }, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	p.process, p.set, p.known = process, newSet(t, process.Config()), map[types.UID]bool{}
	p.set.MaxPrunePercent = 100
}

// Two sets want random objects in turn, from caches that can be stale. Their processes
// restart and die, and another user writes, also during a call. Each call that succeeds
// leaves exactly its wanted objects, no call changes an object that it may not, and the
// inventories are always complete.
//
// A failure has the number of the step, the set, the wanted objects, what disturbed the call and
// when, how the call ended, and its requests. The seed that the test logs repeats the choices, but
// not the times. Read the requests first: the last one before the fault says what was decided.
//
// Proves AS2, AS3, AS6, AS9.
func TestServerSetRandom(t *testing.T) {
	steps, seed, kinds, size, large := 25, uint64(7), randomKinds[:3], 9, *transitionCount > 0
	if large {
		steps, seed, kinds, size = *transitionCount, rand.Uint64(), randomKinds, 41
	}
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	g := newGallery(t)
	var places []place
	for _, k := range kinds {
		for _, namespace := range []string{g.one, g.two} {
			for i := range 4 {
				at := place{k.kind, namespace, fmt.Sprint("object-", i)}
				if k.kind == "ClusterRole" || k.kind == "ValidatingAdmissionPolicy" {
					at.namespace, at.name = "", fmt.Sprint(namespace, "-", i)
				}
				places = append(places, at)
			}
		}
	}
	state := func() map[place]*unstructured.Unstructured {
		all := map[place]*unstructured.Unstructured{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := 0; i < len(places); i += 4 {
			wg.Go(func() {
				list, err := g.objects.Resource(places[i].resource()).Namespace(places[i].namespace).List(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for _, o := range list.Items {
					p := places[i]
					p.name = o.GetName()
					if slices.Contains(places, p) {
						all[p] = &o
					}
				}
			})
		}
		wg.Wait()
		return all
	}
	var painters []*painter
	for _, name := range []string{"first", "second"} {
		p := &painter{parent: g.parent(t, name), id: inventory.ID(schema.GroupKind{Kind: "ConfigMap"}, g.one, name)}
		p.restart(t)
		painters = append(painters, p)
	}
	// write is a write of another user. Some of them fail, because the object exists or not.
	write := func(at place, kind int) {
		client := g.objects.Resource(at.resource()).Namespace(at.namespace)
		var err error
		switch kind {
		case 0:
			_, err = client.Create(t.Context(), at.object("foreign"), metav1.CreateOptions{FieldManager: "other"})
		case 1:
			err = client.Delete(t.Context(), at.name, metav1.DeleteOptions{})
		case 2:
			_, err = client.Patch(t.Context(), at.name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"color":"other"}}}`), metav1.PatchOptions{FieldManager: "other"})
		default:
			_, err = client.Patch(t.Context(), at.name, types.MergePatchType, []byte(`{"metadata":{"labels":null}}`), metav1.PatchOptions{FieldManager: "other"})
		}
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) {
			t.Error(err)
		}
	}
	// complete checks the inventories.
	complete := func(step string, now map[place]*unstructured.Unstructured) {
		for _, p := range painters {
			live := g.read(t, p.parent)
			kinds, spaces := strings.Split(live.Annotations[groupKinds], ","), append(strings.Split(live.Annotations[namespaces], ","), g.one)
			for at, o := range now {
				kind := o.GroupVersionKind().GroupKind().String()
				if o.GetLabels()[partOf] == p.id && (!slices.Contains(kinds, kind) || at.namespace != "" && !slices.Contains(spaces, at.namespace)) {
					t.Errorf("%s: %v is a member, and the inventory of %s is %v", step, at, p.parent.Name, live.Annotations)
				}
			}
		}
	}
	var old map[place]*unstructured.Unstructured // a stale cache
	transitions, succeeded := 0, 0
	for n := 0; n < steps && !t.Failed(); n++ {
		before := state()
		p := painters[min(random.IntN(3), 1)]
		if random.IntN(5) == 0 {
			p.restart(t)
		}
		if random.IntN(3) == 0 {
			write(places[random.IntN(len(places))], random.IntN(4))
			before = state()
		}
		wanted := map[place]string{}
		var members []applyset.Member
		refused := false // whether an object may not become a member
		unsure := false  // whether that depends on what the process remembers
		allowed := map[place]bool{}
		stale := random.IntN(4) == 0
		bold := large && random.IntN(4) > 0 // otherwise few large sets succeed
		for _, i := range random.Perm(len(places))[:random.IntN(size)] {
			at := places[i]
			color := []string{"red", "blue"}[random.IntN(2)]
			m := applyset.Member{Object: at.object(color), Adopt: random.IntN(4) > 0, Force: random.IntN(3) > 0 || bold}
			cache := before
			if stale {
				cache = old
			}
			if o := cache[at]; o != nil && random.IntN(4) > 0 {
				m.Live = o
			}
			wanted[at] = color
			members = append(members, m)
			allowed[at] = true
			if o := before[at]; o != nil && o.GetLabels()[partOf] != p.id {
				label := o.GetLabels()[partOf]
				switch {
				case m.Force || label == "" && m.Adopt:
				case label == "" && p.known[o.GetUID()]: // it gets its label back, unless it was pruned
					unsure = true
				default:
					refused, allowed[at] = true, false
				}
			}
		}
		// Another user writes, or the process dies, at one of the requests.
		touched := map[place]bool{}
		disturbed := random.IntN(3) == 0
		var count atomic.Int64
		number, fate, at, kind, process := int64(1+random.IntN(size+3)), random.IntN(3), places[random.IntN(len(places))], random.IntN(4), p.process
		p.on = func(*fault.Op) fault.Fault {
			if !disturbed || count.Add(1) != number {
				return fault.Fault{}
			}
			switch fate {
			case 0:
				return fault.Fault{Before: func() { process.Kill() }, Drop: true}
			case 1:
				return fault.Fault{After: func() { process.Kill() }, Lose: true}
			default:
				return fault.Fault{Before: func() { write(at, kind) }}
			}
		}
		if disturbed && fate == 2 {
			touched[at] = true
		}
		results, err := p.set.Apply(t.Context(), g.read(t, p.parent), members...)
		p.on = func(*fault.Op) fault.Fault { return fault.Fault{} }
		step := fmt.Sprintf("step %d: %s wants %v (disturbed %v by %d): %s, error %v", n, p.parent.Name, wanted, disturbed, fate, actions(results), err)
		select {
		case <-process.Killed():
			p.restart(t)
		default:
			if !disturbed && !stale && (err != nil) != refused && (err == nil || !unsure) {
				t.Errorf("%s: want an error: %v", step, refused)
			}
		}
		after := state()
		complete(step, after)
		for _, all := range []map[place]*unstructured.Unstructured{before, after} {
			for at, o := range all {
				if o.GetLabels()[partOf] == p.id || touched[at] {
					p.known[o.GetUID()] = true
				}
			}
		}
		for at, o := range before {
			now := after[at]
			if o.GetLabels()[partOf] != p.id && !allowed[at] && !touched[at] && (now == nil || now.GetUID() != o.GetUID() || now.GetResourceVersion() != o.GetResourceVersion()) {
				t.Errorf("%s: the object %v of another owner changed:\n%v\n%v", step, at, o, now)
			}
		}
		if err == nil {
			succeeded++
			for at, color := range wanted {
				o := after[at]
				if !touched[at] && !stale && (o == nil || o.GetLabels()[partOf] != p.id || o.GetAnnotations()["color"] != color) {
					t.Errorf("%s: %v is wanted, and is %v", step, at, o)
				}
			}
			for at, o := range after {
				if _, ok := wanted[at]; !ok && !touched[at] && o.GetLabels()[partOf] == p.id {
					t.Errorf("%s: %v was not pruned", step, at)
				}
			}
		}
		transitions++
		old = before
	}
	for _, p := range painters {
		before := state()
		if results, err := p.set.Delete(t.Context(), g.read(t, p.parent)); err != nil {
			t.Errorf("delete: %s, error %v", actions(results), err)
		}
		after := state()
		maps.DeleteFunc(before, func(_ place, o *unstructured.Unstructured) bool { return o.GetLabels()[partOf] == p.id })
		if len(after) != len(before) {
			t.Errorf("after the deletion of %s there is %v, want %v", p.parent.Name, after, before)
		}
	}
	t.Logf("%d transitions, %d without an error", transitions, succeeded)
	if succeeded < transitions/5 {
		t.Error("too few succeed")
	}
}
