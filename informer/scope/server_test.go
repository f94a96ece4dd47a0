package scope_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
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
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/compact"
	"github.com/controllerkit/controllerkit/informer/scope"
	"github.com/controllerkit/controllerkit/internal/testserver"
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

// informerOf returns the function for a scope of ConfigMaps.
func informerOf(client kubernetes.Interface) func(scope.Part) (cache.SharedIndexInformer, error) {
	return func(p scope.Part) (cache.SharedIndexInformer, error) {
		return coreinformers.NewFilteredConfigMapInformer(client, p.Namespace, 0, cache.Indexers{}, p.Options), nil
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

// TestModel on the server, with typed and with compact informers.
//
// Proves SC1, SC3, SC4.
func TestServerModel(t *testing.T) {
	client := newClient(t, testserver.Config(t))
	t.Run("typed", func(t *testing.T) { serverModel(t, client, informerOf(client)) })
	t.Run("compact", func(t *testing.T) {
		serverModel(t, client, func(p scope.Part) (cache.SharedIndexInformer, error) {
			return compact.New[*corev1.ConfigMap](client.CoreV1().RESTClient(), "configmaps", compact.Options{Namespace: p.Namespace, Tweak: p.Options})
		})
	})
}

func serverModel(t *testing.T, client kubernetes.Interface, informer func(scope.Part) (cache.SharedIndexInformer, error)) {
	t.Helper()
	const changes = 20
	names := []string{testserver.Namespace(t), testserver.Namespace(t), testserver.Namespace(t)}
	objects := scope.New(informer)
	stop := run(t, quiet(t), objects)
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
// Proves SC4.
func TestServerStays(t *testing.T) {
	config := testserver.Config(t)
	counted := &traffic{seen: map[string]int{}}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { counted.next = next; return counted })
	watching := newClient(t, config)
	client := newClient(t, testserver.Config(t))
	stays, other := testserver.Namespace(t), testserver.Namespace(t)
	objects := scope.New(informerOf(watching))
	stop := run(t, quiet(t), objects)
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

// A namespace without a right is named and does not stop the others, until it gets one. A
// namespace that does not exist is empty until it is created.
//
// Proves SC2.
func TestServerBadNamespace(t *testing.T) {
	namespace, closed := testserver.Namespace(t), testserver.Namespace(t)
	admin := newClient(t, testserver.Config(t))
	read := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"}}
	config := testserver.Limited(t, namespace, read)
	objects := scope.New(informerOf(newClient(t, config)))
	stop := run(t, quiet(t), objects)
	j := newJournal()
	handle(t, objects, j)
	must(t, put(t.Context(), admin, namespace, "one", "x"))
	must(t, put(t.Context(), admin, closed, "one", "x"))
	absent := namespace + "-absent"
	err := objects.Select(t.Context(), scope.Selection{Namespaces: []string{closed, namespace}, LabelSelector: mine})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "1 of 2 parts are not shown: namespace "+closed) {
		t.Errorf("Select = %v, want a forbidden that names %s", err, closed)
	}
	settle(t, admin, scope.Selection{Namespaces: []string{namespace}, LabelSelector: mine}, objects, j)
	allow(t, admin, closed, config.Impersonate.UserName, read)
	must(t, put(t.Context(), admin, namespace, "two", "x"))
	settle(t, admin, scope.Selection{Namespaces: []string{closed, namespace}, LabelSelector: mine}, objects, j)
	if _, wrong := j.take(); len(wrong) > 0 {
		t.Errorf("wrong events: %q", wrong)
	}
	stop()

	objects = scope.New(informerOf(admin))
	stop = run(t, quiet(t), objects)
	j = newJournal()
	handle(t, objects, j)
	sel := scope.Selection{Namespaces: []string{absent}, LabelSelector: mine}
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

// The watch of a namespace dies, because its rights are removed. The Set shows it, and the other
// namespaces go on.
//
// Proves SC9.
func TestServerLife(t *testing.T) {
	a, b := testserver.Namespace(t), testserver.Namespace(t)
	admin := newClient(t, testserver.Config(t))
	read := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"}}
	config := testserver.Limited(t, a, read)
	allow(t, admin, b, config.Impersonate.UserName, read)
	config.Wrap(informer.EndSilentWatches(-1))
	client := newClient(t, config)
	objects := scope.New(informerOf(client))
	j := newJournal()
	handle(t, objects, j)
	refused := make(chan error, 1000)
	set := &informer.Set{Timeout: time.Minute, StopTimeout: time.Minute, WatchErrorHandler: func(ctx context.Context, r *cache.Reflector, err error) {
		if apierrors.IsForbidden(err) {
			refused <- err
		}
		cache.DefaultWatchErrorHandler(ctx, r, err)
	}}
	set.Add("configmaps", objects)
	ctx, cancel := context.WithCancel(quiet(t))
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	sel := scope.Selection{Namespaces: []string{a, b}, LabelSelector: mine}
	limit, end := context.WithTimeout(t.Context(), time.Minute)
	defer end()
	must(t, objects.Select(limit, sel))
	<-set.HasSyncedChecker().Done()
	must(t, set.Ready())
	must(t, set.Check())
	before := time.Now()
	must(t, set.Relist("configmaps"))
	for _, name := range []string{"zero", "one"} { // the time of an event is noted before the next one comes
		must(t, put(t.Context(), admin, a, name, "x"))
		must(t, put(t.Context(), admin, b, name, "x"))
		settle(t, admin, sel, objects, j)
	}
	if last := set.LastEvents()["configmaps"]; last.Before(before) {
		t.Errorf("the last event was %v before it", before.Sub(last))
	}

	must(t, admin.RbacV1().RoleBindings(a).Delete(t.Context(), "limited-"+a, metav1.DeleteOptions{}))
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: a, Verb: "list", Resource: "configmaps"}}}
	for allowed := true; allowed; { // the authorizer reads roles by a watch, so it lags
		r, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(limit, review, metav1.CreateOptions{})
		must(t, err)
		allowed = r.Status.Allowed
	}
	must(t, set.Relist("configmaps"))
	select {
	case err := <-refused:
		if !strings.Contains(err.Error(), a) {
			t.Errorf("the error %v does not name %s", err, a)
		}
	case <-limit.Done():
		t.Fatal("no watch was refused")
	}
	dead := time.Now()
	must(t, put(t.Context(), admin, b, "two", "x"))
	for known, changed := j.next(); known[b+"/two"] == ""; known, changed = j.next() {
		select {
		case <-changed:
		case <-limit.Done():
			t.Fatal("the other namespace does not go on")
		}
	}
	if last := set.LastEvents()["configmaps"]; last.After(dead) {
		t.Errorf("the last event is of the namespace that goes on")
	}
	must(t, set.Check()) // it sends requests

	must(t, objects.Select(limit, scope.Selection{Namespaces: []string{b}, LabelSelector: mine}))
	must(t, put(t.Context(), admin, b, "three", "x"))
	settle(t, admin, scope.Selection{Namespaces: []string{b}, LabelSelector: mine}, objects, j)
	if last := set.LastEvents()["configmaps"]; last.Before(dead) {
		t.Errorf("the last event is of a namespace that has left the selection")
	}
	must(t, objects.Select(limit, scope.Selection{}))
	cancel()
	must(t, <-done)
}

// allow gives a user a right in a namespace.
func allow(t *testing.T, admin kubernetes.Interface, namespace, user string, rule rbacv1.PolicyRule) {
	t.Helper()
	role, err := admin.RbacV1().Roles(namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "allowed"}, Rules: []rbacv1.PolicyRule{rule}}, metav1.CreateOptions{})
	must(t, err)
	_, err = admin.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
	}, metav1.CreateOptions{})
	must(t, err)
}

// A Store of package consistency takes a scope as the informer of a resource, and a recorded
// write holds its key until the scope shows it. A quiet namespace beside it, whose cache gets
// no version for a minute, delays no key.
//
// Proves SC6.
func TestServerConsistency(t *testing.T) {
	namespace, idle := testserver.Namespace(t), testserver.Namespace(t)
	writes := consistency.New(consistency.Config{MaxWait: -1})
	config := rest.CopyConfig(testserver.Config(t))
	config.Wrap(writes.Wrap)
	client := newClient(t, config)
	objects := scope.New(informerOf(client))
	stop := run(t, quiet(t), objects)
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
