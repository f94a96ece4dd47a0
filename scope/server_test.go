package scope_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ondemand"
	"github.com/controllerkit/controllerkit/scope"
)

// client's connections are closed with the test.
func newClient(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	config.QPS = -1 // the limit of clients is not the subject
	h, err := rest.HTTPClientFor(config)
	must(t, err)
	t.Cleanup(h.CloseIdleConnections)
	client, err := kubernetes.NewForConfigAndClient(config, h)
	must(t, err)
	return client
}

// mine selects the objects of these tests: the server adds others to a namespace.
const mine = "app in (x,y,z)"

func informersOf(client kubernetes.Interface) *ondemand.Informers[scope.Part] {
	return &ondemand.Informers[scope.Part]{
		New: func(p scope.Part) (cache.SharedIndexInformer, error) {
			return coreinformers.NewFilteredConfigMapInformer(client, p.Namespace, 0, cache.Indexers{}, p.Options), nil
		},
		StopTimeout: time.Minute,
	}
}

// put writes an object, or deletes it if the label is "".
func put(ctx context.Context, client kubernetes.Interface, namespace, name, label string) error {
	c := client.CoreV1().ConfigMaps(namespace)
	if label == "" {
		if err := c.Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	}
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": label}}}
	_, err := c.Update(ctx, o, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = c.Create(ctx, o, metav1.CreateOptions{})
	}
	return err
}

// settle waits until the lister and the events show the server's objects of the selection.
func settle(t *testing.T, client kubernetes.Interface, sel scope.Selection, objects *scope.Informer, j *journal) {
	t.Helper()
	want := map[string]string{}
	for _, n := range sel.Namespaces {
		list, err := client.CoreV1().ConfigMaps(n).List(t.Context(), metav1.ListOptions{LabelSelector: sel.LabelSelector})
		must(t, err)
		for _, o := range list.Items {
			want[o.Namespace+"/"+o.Name] = o.ResourceVersion
		}
	}
	late := time.After(time.Minute)
	for {
		known, changed := j.next()
		got := listed(objects.GetStore())
		if cmp.Equal(want, got) && cmp.Equal(want, known) {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("lister (-server +lister):\n%s\nevents (-server +events):\n%s", cmp.Diff(want, got), cmp.Diff(want, known))
		}
	}
}

// TestModel on the server.
//
// Proves SC1, SC3, SC5.
func TestServerModel(t *testing.T) {
	const changes = 20
	client := newClient(t, testserver.Config(t))
	names := []string{testserver.Namespace(t), testserver.Namespace(t), testserver.Namespace(t)}
	informers := informersOf(client)
	objects := scope.New(informers.Open)
	stop := run(t, quiet(t), informers, objects)
	j := newJournal()
	handle(t, objects, j)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	events := 0
	for i := range changes {
		sel := scope.Selection{LabelSelector: pick(r, mine, mine, "app=x", "app in (x,y)")}
		for _, n := range names {
			if r.IntN(2) == 0 {
				sel.Namespaces = append(sel.Namespaces, n)
			}
		}
		writes := rand.New(rand.NewPCG(seed, uint64(i)))
		var writer sync.WaitGroup
		writer.Go(func() {
			for range 15 {
				if err := put(t.Context(), client, pick(writes, names...), fmt.Sprint("o", writes.IntN(5)), pick(writes, "x", "y", "z", "")); err != nil {
					t.Error(err)
				}
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		must(t, objects.Select(ctx, sel))
		cancel()
		writer.Wait()
		if i%4 == 0 {
			settle(t, client, sel, objects, j)
		}
		seen, wrong := j.take()
		events += len(seen)
		if len(wrong) > 0 {
			t.Fatalf("change %d: wrong events: %q", i, wrong)
		}
	}
	t.Logf("%d changes, %d events", changes, events)
	stop()
}

// traffic counts the lists and watches of a path.
type traffic struct {
	next http.RoundTripper
	mu   sync.Mutex
	seen map[string]int
}

func (t *traffic) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodGet {
		t.mu.Lock()
		t.seen[req.URL.Path]++
		t.mu.Unlock()
	}
	return t.next.RoundTrip(req)
}

// A namespace that stays has one watch however often the others change, and no event is
// lost or doubled.
//
// Proves SC5.
func TestServerStays(t *testing.T) {
	config := testserver.Config(t)
	counted := &traffic{seen: map[string]int{}}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { counted.next = next; return counted })
	watching := newClient(t, config)
	client := newClient(t, testserver.Config(t))
	stays, other := testserver.Namespace(t), testserver.Namespace(t)
	informers := informersOf(watching)
	objects := scope.New(informers.Open)
	stop := run(t, quiet(t), informers, objects)
	j := newJournal()
	handle(t, objects, j)
	sel := scope.Selection{Namespaces: []string{stays}, LabelSelector: mine}
	must(t, objects.Select(t.Context(), sel))
	const writes = 60
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := range writes {
			if err := put(t.Context(), client, stays, fmt.Sprint("o", i%3), []string{"x", "y"}[i/3%2]); err != nil {
				t.Error(err)
			}
		}
	})
	for range 10 {
		for _, n := range [][]string{{stays, other}, {stays}} {
			must(t, objects.Select(t.Context(), scope.Selection{Namespaces: n, LabelSelector: mine}))
		}
	}
	writer.Wait()
	settle(t, client, sel, objects, j)
	events, wrong := j.take()
	if len(events) != writes || len(wrong) > 0 {
		t.Errorf("%d writes made %d events, wrong: %q", writes, len(events), wrong)
	}
	counted.mu.Lock()
	defer counted.mu.Unlock()
	if n := counted.seen["/api/v1/namespaces/"+stays+"/configmaps"]; n != 1 {
		t.Errorf("the namespace that stays was read %d times, want once", n)
	}
	stop()
}

// Proves SC2: a namespace without a right is named, and one that does not exist is empty
// until it is created.
func TestServerBadNamespace(t *testing.T) {
	namespace, closed := testserver.Namespace(t), testserver.Namespace(t)
	admin := newClient(t, testserver.Config(t))
	limited := newClient(t, testserver.Limited(t, namespace, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"}}))
	informers := informersOf(limited)
	failed := make(chan struct{}, 1000)
	informers.WatchErrorHandler = func(context.Context, *cache.Reflector, error) { failed <- struct{}{} }
	objects := scope.New(informers.Open)
	stop := run(t, quiet(t), informers, objects)
	j := newJournal()
	handle(t, objects, j)
	sel := scope.Selection{Namespaces: []string{namespace}, LabelSelector: mine}
	must(t, put(t.Context(), admin, namespace, "one", "x"))
	must(t, objects.Select(t.Context(), sel))
	settle(t, admin, sel, objects, j)
	ctx, cancel := context.WithCancelCause(t.Context())
	late := errors.New("too late")
	go func() { <-failed; cancel(late) }()
	err := objects.Select(ctx, scope.Selection{Namespaces: []string{closed}, LabelSelector: mine})
	if !apierrors.IsForbidden(err) || !errors.Is(err, late) || !strings.Contains(err.Error(), "select namespace "+closed) {
		t.Errorf("Select = %v, want a forbidden that names %s", err, closed)
	}
	must(t, put(t.Context(), admin, namespace, "two", "x"))
	settle(t, admin, sel, objects, j)
	if _, wrong := j.take(); len(wrong) > 0 {
		t.Errorf("wrong events: %q", wrong)
	}
	stop()

	informers = informersOf(admin)
	objects = scope.New(informers.Open)
	stop = run(t, quiet(t), informers, objects)
	j = newJournal()
	handle(t, objects, j)
	absent := namespace + "-absent"
	sel = scope.Selection{Namespaces: []string{absent}, LabelSelector: mine}
	must(t, objects.Select(t.Context(), sel))
	if n := len(objects.GetStore().List()); n != 0 {
		t.Errorf("a namespace that does not exist has %d objects", n)
	}
	_, err = admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: absent}}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		_ = admin.CoreV1().Namespaces().Delete(context.Background(), absent, metav1.DeleteOptions{})
	})
	must(t, put(t.Context(), admin, absent, "one", "x"))
	settle(t, admin, sel, objects, j)
	stop()
}

// A Store of package consistency takes a scope as the informer of a resource, and a recorded
// write holds its key until the scope shows it. A quiet namespace beside it, whose cache gets
// no version for a minute, delays no key.
//
// Proves SC10.
func TestServerConsistency(t *testing.T) {
	namespace, idle := testserver.Namespace(t), testserver.Namespace(t)
	writes := consistency.New(consistency.Config{MaxWait: -1})
	config := rest.CopyConfig(testserver.Config(t))
	config.Wrap(writes.Wrap)
	client := newClient(t, config)
	informers := informersOf(client)
	objects := scope.New(informers.Open)
	stop := run(t, quiet(t), informers, objects)
	resource := corev1.Resource("configmaps")
	must(t, writes.AddInformer(resource, objects))
	must(t, objects.Select(t.Context(), scope.Selection{Namespaces: []string{namespace, idle}}))
	key := types.NamespacedName{Namespace: namespace, Name: "owner"}
	for i := range 10 {
		o, err := client.CoreV1().ConfigMaps(namespace).Create(writes.Begin(t.Context(), key), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("o", i)}}, metav1.CreateOptions{})
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // less than until a bookmark
		must(t, writes.Wait(ctx, key))
		cancel()
		if _, ok, _ := objects.GetStore().GetByKey(namespace + "/" + o.Name); !ok {
			t.Errorf("the key is ready, but the lister does not have %s", o.Name)
		}
	}
	must(t, writes.RemoveInformer(resource))
	stop()
}
