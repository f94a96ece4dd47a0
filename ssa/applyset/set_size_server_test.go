package applyset_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa/applyset"
)

// manyNamespaces creates namespaces.
func (g gallery) manyNamespaces(t *testing.T, n int) []string {
	t.Helper()
	names := make([]string, n)
	each := func(f func(i int) error) {
		var wg sync.WaitGroup
		for worker := range 8 {
			wg.Go(func() {
				for i := worker; i < n; i += 8 {
					if err := f(i); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	}
	each(func(i int) error {
		ns, err := g.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "many-"}}, metav1.CreateOptions{})
		names[i] = ns.GetName()
		return err
	})
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		each(func(i int) error { return g.CoreV1().Namespaces().Delete(ctx, names[i], metav1.DeleteOptions{}) })
	})
	return names
}

// annotate changes annotations of the parent.
func (g gallery) annotate(t *testing.T, parent *corev1.ConfigMap, annotations map[string]string) *corev1.ConfigMap {
	t.Helper()
	live := g.read(t, parent)
	for name, value := range annotations {
		if live.Annotations == nil {
			live.Annotations = map[string]string{}
		}
		live.Annotations[name] = value
	}
	live, err := g.CoreV1().ConfigMaps(parent.Namespace).Update(t.Context(), live, metav1.UpdateOptions{FieldManager: "editor"})
	if err != nil {
		t.Fatal(err)
	}
	return live
}

// A set with members in many namespaces is listed in few requests, also if its inventory
// has thousands of others. If the identity may not list all namespaces, each is listed.
//
// Proves AS2, AS9.
func TestServerSetManyNamespaces(t *testing.T) {
	g := newGallery(t)
	parent := g.parent(t, "parent")
	spaces := g.manyNamespaces(t, 70)
	var lists, singles atomic.Int64
	var narrow atomic.Bool
	process, err := fault.New(testserver.Config(t), func(op *fault.Op) fault.Fault {
		switch {
		case op.Verb != "list":
		case op.Namespace != "":
			singles.Add(1)
		case narrow.Load():
			return fault.Fault{Response: &fault.Response{Code: 403, Reason: metav1.StatusReasonForbidden}}
		default:
			lists.Add(1)
		}
		return fault.Fault{}
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	s := newSet(t, process.Config())
	var wanted []applyset.Member
	for _, ns := range spaces {
		wanted = append(wanted, wantConfigMap(ns, "one", "red"))
	}
	if _, err := s.Apply(t.Context(), parent, wanted...); err != nil {
		t.Fatal(err)
	}
	// An object that another program labels in a namespace of no member is none.
	label := map[string]string{partOf: g.read(t, parent).Labels[idLabel]}
	if _, err := g.CoreV1().ConfigMaps(g.two).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "outside", Labels: label}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	all := slices.Clone(spaces)
	for i := range 3000 {
		all = append(all, fmt.Sprint("absent-", i))
	}
	slices.Sort(all)
	live := g.annotate(t, parent, map[string]string{
		namespaces: strings.Join(all, ","),
		groupKinds: "ConfigMap,Deployment.apps,LimitRange,NetworkPolicy.networking.k8s.io,Role.rbac.authorization.k8s.io,Secret,Service,ServiceAccount",
	})
	s = newSet(t, process.Config())
	s.MaxPrunePercent = 100
	results, err := s.Apply(t.Context(), live, wanted[:69]...)
	if err != nil || strings.Count(actions(results), "Unchanged") != 69 || !strings.Contains(actions(results), "Pruned") {
		t.Fatalf("%s, error %v", actions(results), err)
	}
	if lists.Load() > 2*8 || singles.Load() > 1 {
		t.Errorf("%d lists of all namespaces and %d of one, want at most one for each of 8 kinds at the begin and at the end, and one of the pruned object's", lists.Load(), singles.Load())
	}
	if live = g.read(t, parent); live.Annotations[groupKinds] != "ConfigMap" || len(strings.Split(live.Annotations[namespaces], ",")) != 69 {
		t.Errorf("the inventory is %v", live.Annotations)
	}

	narrow.Store(true)
	singles.Store(0)
	s = newSet(t, process.Config())
	results, err = s.Delete(t.Context(), live)
	if err != nil || strings.Count(actions(results), "Pruned") != 69 {
		t.Fatalf("%s, error %v", actions(results), err)
	}
	if n := singles.Load(); n < 2*70 || n > 2*71 {
		t.Errorf("%d lists of one namespace, want one for each of 70 at the begin and at the end", n)
	}
	if live = g.read(t, parent); live.Annotations[groupKinds] != "" || live.Annotations[namespaces] != "" {
		t.Errorf("deleted, the inventory is %v", live.Annotations)
	}
	if _, err := g.CoreV1().ConfigMaps(g.two).Get(t.Context(), "outside", metav1.GetOptions{}); err != nil {
		t.Errorf("the object outside: %v", err)
	}
}

// If another user fills the inventory with namespaces that the identity may not read, a call
// fails after few requests.
func TestServerSetForeignNamespaces(t *testing.T) {
	g := newGallery(t)
	parent := g.parent(t, "parent")
	user := testserver.Limited(t, g.one, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"patch", "create", "get", "list", "delete"}})
	var requests atomic.Int64
	process, err := fault.New(user, func(*fault.Op) fault.Fault { requests.Add(1); return fault.Fault{} }, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	if _, err := newSet(t, process.Config()).Apply(t.Context(), parent, wantConfigMap(g.one, "one", "red")); err != nil {
		t.Fatal(err)
	}
	var all []string
	for i := range 3000 {
		all = append(all, fmt.Sprintf("absent-%04d", i))
	}
	live := g.annotate(t, parent, map[string]string{namespaces: strings.Join(all, ",")})
	requests.Store(0)
	_, err = newSet(t, process.Config()).Apply(t.Context(), live, wantConfigMap(g.one, "one", "red"))
	// The parent, all namespaces, and what ran at once when the first failed, which can be one
	// more for each that succeeded, in g.one.
	if n := requests.Load(); !apierrors.IsForbidden(err) || n > 2+2*8 {
		t.Errorf("%d requests, error %v", n, err)
	}
}

// The inventory of a set can fill the annotations of the parent to the last byte that the
// API server accepts. For one more, Apply and Plan fail before any request.
func TestServerSetSize(t *testing.T) {
	g := newGallery(t)
	parent := g.parent(t, "parent")
	var requests atomic.Int64
	process, err := fault.New(testserver.Config(t), func(*fault.Op) fault.Fault { requests.Add(1); return fault.Fault{} }, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	s := newSet(t, process.Config())
	own := 0
	for name, value := range map[string]string{tooling: manager + "/v1", groupKinds: "ConfigMap", namespaces: g.two} {
		own += len(name) + len(value)
	}
	const limit = 256 << 10 // of the API server
	for _, more := range []int{1, 0} {
		live := g.annotate(t, parent, map[string]string{"example.com/other": strings.Repeat("a", limit-own-len("example.com/other")+more)})
		for name, method := range map[string]func(context.Context, metav1.Object, ...applyset.Member) ([]applyset.Result, error){"Plan": s.Plan, "Apply": s.Apply} {
			requests.Store(0)
			results, err := method(t.Context(), live, wantConfigMap(g.two, "one", "red"))
			switch {
			case more == 0 && err != nil:
				t.Errorf("%s at the limit: %s, error %v", name, actions(results), err)
			case more > 0 && (err == nil || !strings.Contains(err.Error(), "the API server accepts 262144") || !strings.Contains(err.Error(), "several parents") || requests.Load() > 0):
				t.Errorf("%s beyond the limit: %s, error %v after %d requests", name, actions(results), err, requests.Load())
			}
		}
	}
	// The caller's parent can be older than the live one.
	old := g.read(t, parent)
	old.Annotations = nil
	if _, err := newSet(t, process.Config()).Apply(t.Context(), old, wantConfigMap(g.two, "one", "red"), wantKind("v1", "Secret", g.one, "two")); err == nil || !strings.Contains(err.Error(), "the API server accepts 262144") {
		t.Errorf("an old parent: error %v", err)
	}
	if _, err := g.CoreV1().Secrets(g.one).Get(t.Context(), "two", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("an object that the inventory lacks: %v", err)
	}
	if _, err := s.Delete(t.Context(), g.read(t, parent)); err != nil {
		t.Error(err)
	}
}

// A member that lost its label gets it back from a process that knows it, and prune and the
// later stages go on. Another process returns an error with the cure.
//
// Proves AS6.
func TestServerSetLabel(t *testing.T) {
	g := newGallery(t)
	parent := g.parent(t, "parent")
	maps := g.CoreV1().ConfigMaps(g.one)
	unlabel := func(name string) {
		t.Helper()
		if _, err := maps.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"labels":{"`+partOf+`":null}}}`), metav1.PatchOptions{FieldManager: "kubectl-label"}); err != nil {
			t.Fatal(err)
		}
	}
	deployment := applyset.Member{Object: place{"Deployment", g.one, "later"}.object("red")}
	one, two := wantConfigMap(g.one, "one", "red"), wantConfigMap(g.one, "two", "red")
	s := newSet(t, testserver.Config(t))
	for _, listed := range []bool{false, true} { // whether the process knows the member from a list
		if _, err := s.Apply(t.Context(), g.read(t, parent), one, two, wantConfigMap(g.one, "old", "red")); err != nil {
			t.Fatal(err)
		}
		if listed {
			s = newSet(t, testserver.Config(t))
			if _, err := s.Plan(t.Context(), g.read(t, parent), one, two, wantConfigMap(g.one, "old", "red")); err != nil {
				t.Fatal(err)
			}
		}
		unlabel("one")
		for _, live := range []bool{false, true} {
			if live {
				unlabel("one")
				one.Live = g.live(t, one)
			}
			results, err := s.Apply(t.Context(), g.read(t, parent), one, two, deployment)
			if got := actions(results); err != nil || !strings.Contains(got, "ConfigMap one Adopted") || strings.Contains(got, "ConfigMap old") != !live {
				t.Errorf("known from a list %v, with Live %v: %s, error %v", listed, live, got, err)
			}
		}
		one.Live = nil
		if o, err := maps.Get(t.Context(), "one", metav1.GetOptions{}); err != nil || o.Labels[partOf] == "" {
			t.Errorf("the member is %v, error %v", o, err)
		}
		if _, err := maps.Get(t.Context(), "old", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the former member: error %v", err)
		}
	}

	unlabel("one")
	before, err := maps.Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s = newSet(t, testserver.Config(t))
	_, err = s.Apply(t.Context(), g.read(t, parent), one, two, deployment)
	cure := partOf + "=" + g.read(t, parent).Labels[idLabel]
	if err == nil || !strings.Contains(err.Error(), cure) {
		t.Errorf("another process: error %v, want the cure %s", err, cure)
	}
	if o, err := maps.Get(t.Context(), "one", metav1.GetOptions{}); err != nil || o.ResourceVersion != before.ResourceVersion {
		t.Errorf("the object is %v, error %v", o, err)
	}
	label, value, _ := strings.Cut(cure, "=")
	if _, err := maps.Patch(t.Context(), "one", types.MergePatchType, []byte(`{"metadata":{"labels":{"`+label+`":"`+value+`"}}}`), metav1.PatchOptions{FieldManager: "kubectl-label"}); err != nil {
		t.Fatal(err)
	}
	if results, err := s.Apply(t.Context(), g.read(t, parent), one, two, deployment); err != nil {
		t.Errorf("cured: %s, error %v", actions(results), err)
	}
	// One that is not wanted any more is released.
	unlabel("two")
	results, err := s.Apply(t.Context(), g.read(t, parent), one, deployment)
	if got := actions(results); err != nil || !strings.Contains(got, "ConfigMap two Kept") {
		t.Errorf("not wanted: %s, error %v", got, err)
	}
	if _, err := s.Apply(t.Context(), g.read(t, parent), one, two, deployment); err == nil || !strings.Contains(err.Error(), cure) {
		t.Errorf("wanted again: error %v", err)
	}
}
