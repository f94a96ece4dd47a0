package applyset_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa/applyset"
)

const (
	setFinalizer = "example.com/colors"
	partOf       = "applyset.kubernetes.io/part-of"
	idLabel      = "applyset.kubernetes.io/id"
	tooling      = "applyset.kubernetes.io/tooling"
	groupKinds   = "applyset.kubernetes.io/contains-group-kinds"
	namespaces   = "applyset.kubernetes.io/additional-namespaces"
)

var crashPlans = flag.Int("plans", 0, "how many plans TestServerSetCrash runs at least, which makes it complete; 0 means a sample")

// gallery is two namespaces in which sets have their objects.
type gallery struct {
	*kubernetes.Clientset // of an administrator
	objects               dynamic.Interface
	one, two              string
}

func newGallery(t *testing.T) gallery {
	t.Helper()
	return gallery{kubernetes.NewForConfigOrDie(testserver.Config(t)), dynamic.NewForConfigOrDie(testserver.Config(t)), testserver.Namespace(t), testserver.Namespace(t)}
}

// setMapper knows the kinds of the tests, and those that the API server has learned.
func setMapper(learned ...schema.GroupVersionKind) *meta.DefaultRESTMapper {
	kinds := map[schema.GroupVersionKind]meta.RESTScope{
		{Version: "v1", Kind: "ConfigMap"}:                                                        meta.RESTScopeNamespace,
		{Version: "v1", Kind: "Secret"}:                                                           meta.RESTScopeNamespace,
		{Version: "v1", Kind: "ServiceAccount"}:                                                   meta.RESTScopeNamespace,
		{Version: "v1", Kind: "LimitRange"}:                                                       meta.RESTScopeNamespace,
		{Version: "v1", Kind: "Service"}:                                                          meta.RESTScopeNamespace,
		{Version: "v1", Kind: "Event"}:                                                            meta.RESTScopeNamespace,
		{Group: "events.k8s.io", Version: "v1", Kind: "Event"}:                                    meta.RESTScopeNamespace,
		{Group: "apps", Version: "v1", Kind: "Deployment"}:                                        meta.RESTScopeNamespace,
		{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "Role"}:                         meta.RESTScopeNamespace,
		{Version: "v1", Kind: "Namespace"}:                                                        meta.RESTScopeRoot,
		{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"}:                  meta.RESTScopeRoot,
		{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}:          meta.RESTScopeRoot,
		{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"}:                        meta.RESTScopeNamespace,
		{Group: "policy", Version: "v1", Kind: "PodDisruptionBudget"}:                             meta.RESTScopeNamespace,
		{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"}:                              meta.RESTScopeNamespace,
		{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicy"}: meta.RESTScopeRoot,
	}
	for _, kind := range learned {
		kinds[kind] = meta.RESTScopeNamespace
	}
	var versions []schema.GroupVersion
	for kind := range kinds {
		versions = append(versions, kind.GroupVersion())
	}
	m := meta.NewDefaultRESTMapper(versions)
	for kind, scope := range kinds {
		m.Add(kind, scope)
	}
	return m
}

// set returns the Set of a new process.
func newSet(t *testing.T, config *rest.Config) *applyset.Set {
	t.Helper()
	return &applyset.Set{
		Client: dynamic.NewForConfigOrDie(config), Metadata: metadata.NewForConfigOrDie(config), Mapper: setMapper(), Manager: manager,
		ParentKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Finalizer: setFinalizer,
	}
}

// parent creates a parent.
func (g gallery) parent(t *testing.T, name string) *corev1.ConfigMap {
	t.Helper()
	parent, err := g.CoreV1().ConfigMaps(g.one).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{setFinalizer}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return parent
}

// read returns the live parent.
func (g gallery) read(t *testing.T, parent *corev1.ConfigMap) *corev1.ConfigMap {
	t.Helper()
	live, err := g.CoreV1().ConfigMaps(g.one).Get(t.Context(), parent.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return live
}

func wantConfigMap(namespace, name, color string) applyset.Member {
	return applyset.Member{Object: object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":%q},"data":{"color":%q}}`, name, namespace, color)}
}

func wantKind(apiVersion, kind, namespace, name string) applyset.Member {
	return applyset.Member{Object: object(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"namespace":%q}}`, apiVersion, kind, name, namespace)}
}

// found returns the objects of some kinds whose name has the prefix, each with its color
// and label.
func (g gallery) found(t *testing.T, prefix string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, namespace := range []string{g.one, g.two} {
		for _, resource := range []string{"configmaps", "secrets", "serviceaccounts"} {
			list, err := g.objects.Resource(schema.GroupVersionResource{Version: "v1", Resource: resource}).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range list.Items {
				if !strings.HasPrefix(o.GetName(), prefix) {
					continue
				}
				color, _, _ := unstructured.NestedString(o.Object, "data", "color")
				place := "one"
				if namespace == g.two {
					place = "two"
				}
				text := color
				if o.GetLabels()[partOf] != "" {
					text += " member"
				}
				if o.GetDeletionTimestamp() != nil {
					text += " deleted"
				}
				all[place+"/"+resource+"/"+strings.TrimPrefix(o.GetName(), prefix)] = text
			}
		}
	}
	return all
}

// actions returns the results in the order of their texts.
func actions(results []applyset.Result) string {
	var all []string
	for _, r := range results {
		text := string(r.Action)
		if r.Err != nil {
			text = "error"
		}
		all = append(all, r.Kind.Kind+" "+r.Name+" "+text)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// A set is created, changed, left as it is without a request, moved and deleted. The
// inventory is there before each member, and goes after it.
//
// Proves CK6, AS2 and AS5.
func TestServerSet(t *testing.T) {
	g := newGallery(t)
	parent := g.parent(t, "parent")
	const prefix = "set-"
	var mu sync.Mutex
	var requests []string
	user := testserver.Limited(t, "", rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"configmaps", "secrets", "serviceaccounts"}, Verbs: []string{"patch", "create", "get", "list", "delete"},
	})
	process, err := fault.New(user, func(op *fault.Op) fault.Fault {
		mu.Lock()
		requests = append(requests, op.Verb+" "+op.Resource)
		mu.Unlock()
		if op.Verb == "apply" && op.Name != parent.Name {
			live := g.read(t, parent)
			kinds := map[string]string{"configmaps": "ConfigMap", "secrets": "Secret", "serviceaccounts": "ServiceAccount"}
			if !slices.Contains(strings.Split(live.Annotations[groupKinds], ","), kinds[op.Resource]) || op.Namespace == g.two && live.Annotations[namespaces] != g.two {
				t.Errorf("%s of %s in %s with the inventory %v", op.Verb, op.Resource, op.Namespace, live.Annotations)
			}
		}
		return fault.Fault{}
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	s := newSet(t, process.Config())
	one, two := wantConfigMap(g.one, prefix+"one", "red"), wantConfigMap(g.two, prefix+"two", "red")
	access, secret := wantKind("v1", "ServiceAccount", g.one, prefix+"one"), wantKind("v1", "Secret", g.one, prefix+"one")

	tests := []struct {
		name       string
		wanted     []applyset.Member
		want       string
		kinds      string
		namespaces string
		requests   int // at most
	}{
		{name: "created", wanted: []applyset.Member{one, two, access}, want: "ConfigMap set-one Created, ConfigMap set-two Created, ServiceAccount set-one Created",
			kinds: "ConfigMap,ServiceAccount", namespaces: g.two, requests: 5}, // the parent, its inventory, and one for each
		{name: "after the inventory was written", wanted: []applyset.Member{one, two, access}, want: "ConfigMap set-one Unchanged, ConfigMap set-two Unchanged, ServiceAccount set-one Unchanged",
			kinds: "ConfigMap,ServiceAccount", namespaces: g.two, requests: 3},
		{name: "changed", wanted: []applyset.Member{wantConfigMap(g.one, prefix+"one", "blue"), two, access}, want: "ConfigMap set-one Changed, ConfigMap set-two Unchanged, ServiceAccount set-one Unchanged",
			kinds: "ConfigMap,ServiceAccount", namespaces: g.two, requests: 1},
		{name: "moved to another name, kind and namespace", wanted: []applyset.Member{wantConfigMap(g.one, prefix+"three", "blue"), wantConfigMap(g.one, prefix+"two", "red"), secret},
			want:  "ConfigMap set-one Pruned, ConfigMap set-three Created, ConfigMap set-two Created, ConfigMap set-two Pruned, Secret set-one Created, ServiceAccount set-one Pruned",
			kinds: "ConfigMap,Secret", namespaces: "", requests: 40},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			requests = nil
			wanted := slices.Clone(tt.wanted)
			for i := range wanted { // as from a lister
				wanted[i].Live = g.live(t, wanted[i])
			}
			parent = g.read(t, parent)
			results, err := s.Apply(t.Context(), parent, wanted...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, actions(results)); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
			live := g.read(t, parent)
			if got := live.Annotations[groupKinds]; got != tt.kinds {
				t.Errorf("kinds %q, want %q", got, tt.kinds)
			}
			if got := live.Annotations[namespaces]; got != tt.namespaces {
				t.Errorf("namespaces %q, want %q", got, tt.namespaces)
			}
			if live.Annotations[tooling] != manager+"/v1" || !strings.HasPrefix(live.Labels[idLabel], "applyset-") {
				t.Errorf("metadata of the parent: %v", live.ObjectMeta)
			}
			if len(requests) > tt.requests {
				t.Errorf("%d requests, want at most %d: %v", len(requests), tt.requests, requests)
			}
			for i := range wanted {
				wanted[i].Live = g.live(t, wanted[i])
			}
			// The cache shows the new inventory: one call reads it, and the next has nothing to do.
			for range 2 {
				requests = nil
				if results, err = s.Apply(t.Context(), live, wanted...); err != nil || strings.Count(actions(results), "Unchanged") != len(results) {
					t.Fatalf("again: %s, error %v", actions(results), err)
				}
			}
			if len(requests) > 0 {
				t.Errorf("a call with nothing to do made the requests %v", requests)
			}
		})
	}
	if _, err := s.Delete(t.Context(), parent); err != nil {
		t.Fatal(err)
	}
	if left := g.found(t, prefix); len(left) > 0 {
		t.Errorf("deleted, there is %v", left)
	}
	if live := g.read(t, parent); live.Annotations[groupKinds] != "" {
		t.Errorf("deleted, the inventory is %v", live.Annotations)
	}
}

func (g gallery) live(t *testing.T, m applyset.Member) metav1.Object {
	t.Helper()
	u := m.Object.(*unstructured.Unstructured)
	mapping, err := setMapper().RESTMapping(u.GroupVersionKind().GroupKind())
	if err != nil {
		t.Fatal(err)
	}
	live, err := g.objects.Resource(mapping.Resource).Namespace(u.GetNamespace()).Get(t.Context(), u.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		t.Fatal(err)
	}
	return live
}

// A process that dies at any of its requests, before it arrives or after, is followed by
// one that wants the same, or already something else: in the end exactly the wanted
// objects exist. A deletion leaves none, and the objects of others are untouched. One object
// can only be changed by creating it again.
//
// Proves AS2, AS3 and AS9.
func TestServerSetCrash(t *testing.T) {
	g := newGallery(t)
	fixed := func(prefix, color string) applyset.Member { // another color needs another object
		return applyset.Member{Recreate: true, Object: object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":%q},"immutable":true,"data":{"color":%q}}`, prefix+"fixed", g.one, color)}
	}
	phases := func(prefix string) [][]applyset.Member {
		return [][]applyset.Member{
			{wantConfigMap(g.one, prefix+"one", "red"), wantConfigMap(g.two, prefix+"two", "red"), wantKind("v1", "ServiceAccount", g.one, prefix+"one"), fixed(prefix, "red")},
			{wantConfigMap(g.one, prefix+"one", "blue"), wantConfigMap(g.one, prefix+"two", "red"), wantKind("v1", "Secret", g.two, prefix+"one"), fixed(prefix, "blue")},
			nil, // Delete
		}
	}
	ends := []map[string]string{
		{"one/configmaps/one": "red member", "two/configmaps/two": "red member", "one/serviceaccounts/one": " member", "one/configmaps/fixed": "red member"},
		{"one/configmaps/one": "blue member", "one/configmaps/two": "red member", "two/secrets/one": " member", "one/configmaps/fixed": "blue member"},
		{},
	}
	plans := 0
	// plan has processes that die at the numbers of their requests. It reports whether
	// one died.
	plan := func(t *testing.T, lost, skips bool, numbers ...int) bool {
		t.Helper()
		plans++
		prefix := fmt.Sprintf("plan-%d-", plans)
		parent := g.parent(t, prefix+"parent")
		foreign := g.foreign(t, prefix)
		died := false
		phase := 0
		for lives := 0; phase < 3; lives++ {
			number := 0 // none
			if lives < len(numbers) {
				number = numbers[lives]
			}
			var count atomic.Int64
			var process *fault.Incarnation
			process, err := fault.New(testserver.Config(t), func(op *fault.Op) fault.Fault {
				switch {
				case int(count.Add(1)) != number:
					return fault.Fault{}
				case lost:
					return fault.Fault{After: func() { process.Kill() }, Lose: true}
				default:
					return fault.Fault{Before: func() { process.Kill() }, Drop: true}
				}
			}, nil)
			if err != nil {
				t.Fatal(err)
			}
			s := newSet(t, process.Config())
			s.Concurrency = 1 // so that each number is one request
			for phase < 3 {
				var err error
				if parent := g.read(t, parent); phase < 2 {
					_, err = s.Apply(t.Context(), parent, phases(prefix)[phase]...)
				} else {
					_, err = s.Delete(t.Context(), parent)
				}
				if err != nil {
					select {
					case <-process.Killed():
						died = true
					default:
						t.Fatalf("requests %v, lost %v, phase %d: %v", numbers, lost, phase, err)
					}
					if skips && phase < 2 {
						phase++ // the parent has changed since
					}
					break
				}
				want := map[string]string{}
				for name, text := range ends[phase] {
					want[name] = text
				}
				got := g.found(t, prefix)
				for name := range got {
					if strings.Contains(name, "foreign") || strings.HasSuffix(name, "parent") {
						delete(got, name)
					}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("requests %v, lost %v, skips %v, after phase %d (-want +got):\n%s", numbers, lost, skips, phase, diff)
				}
				phase++
			}
			process.Kill()
		}
		if diff := cmp.Diff(foreign, g.foreign(t, prefix)); diff != "" {
			t.Errorf("requests %v, lost %v: the objects of others (-before +after):\n%s", numbers, lost, diff)
		}
		if left := g.read(t, parent).Annotations[groupKinds]; left != "" {
			t.Errorf("requests %v, lost %v: in the end the inventory has %q", numbers, lost, left)
		}
		for _, namespace := range []string{g.one, g.two} {
			for name := range foreign {
				_, name, _ = strings.Cut(name, "/")
				if err := g.CoreV1().ConfigMaps(namespace).Delete(t.Context(), prefix+name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
					t.Error(err)
				}
			}
		}
		return died
	}
	requests := 1
	for ; ; requests++ {
		variants := []int{0, 1, 2, 3}
		if *crashPlans == 0 {
			requests += 2 // by default a sample
			variants = []int{requests / 3 % 4}
		}
		died := false
		for _, v := range variants {
			died = plan(t, v%2 == 1, v >= 2, requests)
		}
		if !died {
			break // there are fewer requests
		}
	}
	if requests < 30 {
		t.Errorf("%d requests, which are not all", requests)
	}
	// In the other plans a second process dies too.
	for plans < *crashPlans && !t.Failed() {
		plan(t, rand.IntN(2) == 0, rand.IntN(2) == 0, 1+rand.IntN(requests), 1+rand.IntN(requests))
	}
	t.Logf("%d plans", plans)
}

// foreign creates objects of others at the first call, and returns their versions.
func (g gallery) foreign(t *testing.T, prefix string) map[string]string {
	t.Helper()
	versions := map[string]string{}
	for name, labels := range map[string]map[string]string{
		"foreign":       nil,
		"foreign-other": {partOf: "applyset-another-v1"},
	} {
		for _, namespace := range []string{g.one, g.two} {
			maps := g.CoreV1().ConfigMaps(namespace)
			o, err := maps.Get(t.Context(), prefix+name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				o, err = maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: prefix + name, Labels: labels}}, metav1.CreateOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
			versions[namespace+"/"+name] = o.ResourceVersion
		}
	}
	return versions
}
