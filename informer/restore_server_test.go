package informer_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// route sends requests to the server of the moment. Without one, it refuses or holds them.
type route struct {
	holds bool

	mu     sync.Mutex // guards the fields below
	target *url.URL
	next   http.RoundTripper
	opened chan struct{} // is closed when there is a server again; nil before the first close
}

func (r *route) to(t *testing.T, config *rest.Config) {
	t.Helper()
	target, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	next, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target, r.next = target, next
	if r.opened != nil {
		close(r.opened)
		r.opened = nil
	}
}

func (r *route) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = nil
	if r.opened == nil {
		r.opened = make(chan struct{})
	}
}

func (r *route) RoundTrip(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	target, next, opened := r.target, r.next, r.opened
	r.mu.Unlock()
	switch {
	case next == nil && r.holds:
		select {
		case <-opened:
			return r.RoundTrip(req)
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	case next == nil:
		return nil, errRefused
	}
	req = req.Clone(req.Context())
	req.URL.Scheme, req.URL.Host = target.Scheme, target.Host
	return next.RoundTrip(req)
}

// shown is the cache of an informer of the ConfigMaps with a label.
type shown struct {
	cache.SharedIndexInformer
	event chan struct{} // has an element after an event
}

func show(t *testing.T, client kubernetes.Interface, group string) shown {
	t.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace("default"),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "group=" + group }))
	s := shown{factory.Core().V1().ConfigMaps().Informer(), make(chan struct{}, 1)}
	signal := func() {
		select {
		case s.event <- struct{}{}:
		default:
		}
	}
	if _, err := s.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { signal() }, UpdateFunc: func(any, any) { signal() }, DeleteFunc: func(any) { signal() },
	}); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s shown) versions() map[string]string {
	have := map[string]string{}
	for _, obj := range s.GetStore().List() {
		have[obj.(*corev1.ConfigMap).Name] = obj.(*corev1.ConfigMap).ResourceVersion
	}
	return have
}

// await returns once the cache has the versions.
func (s shown) await(t *testing.T, step string, want map[string]string) {
	t.Helper()
	for late := time.After(time.Minute); !maps.Equal(s.versions(), want); {
		select {
		case <-s.event:
		case <-late:
			t.Fatalf("%s: the cache has %v, and the API server %v", step, s.versions(), want)
		}
	}
}

// TestServerRestored: etcd is restored from an older snapshot. client-go's informers watch on
// from their old version and keep lost objects. EndSilentWatches makes the cache of one whose watch
// was refused until the restore equal to the API server, and after two silent watches that of one whose
// watch was only late. An Audit reports the cache of one whose watches have no bound, and of one
// that is back when the new history has passed its version. Relist makes both equal to the API
// server, as a new informer is after a restart.
//
// In a failure, "early" is the informer whose watch was refused, "silent" the one with a short silence,
// "held" the one without a bound, and "late" the one that is back after new writes. Compare the two lists of names and versions: an object that is in the cache alone
// was lost by the restore, and one in the API server alone was written after it.
//
// Proves I4, I5 and I6.
func TestServerRestored(t *testing.T) {
	testserver.Needed(t)
	t.Parallel()
	data, backup := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "backup")
	var server *testserver.Server
	var client kubernetes.Interface
	routes := map[string]*route{"early": {}, "late": {}, "held": {holds: true}, "silent": {holds: true}}
	start := func() {
		t.Helper()
		var err error
		if server, err = testserver.Start("-data", data); err != nil {
			t.Fatal(err)
		}
		config := server.Config()
		config.QPS = -1
		client = typedClient(t, config)
	}
	stop := func() {
		t.Helper()
		for _, r := range routes {
			r.close()
		}
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	create := func(group, prefix string, n int) {
		t.Helper()
		for i := range n {
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(prefix, "-", i), Labels: map[string]string{"group": group}}}
			if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	list := func(group string) map[string]string {
		t.Helper()
		all, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{LabelSelector: "group=" + group})
		if err != nil {
			t.Fatal(err)
		}
		state := map[string]string{}
		for _, cm := range all.Items {
			state[cm.Name] = cm.ResourceVersion
		}
		return state
	}

	start()
	create("g", "old", 3)
	stop()
	if err := os.CopyFS(backup, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	start()
	create("other", "lost", 50)
	configs, followers := map[string]*rest.Config{}, map[string]shown{}
	silences := map[string]time.Duration{"held": -1, "silent": 3 * time.Second}
	for name, r := range routes {
		r.to(t, server.Config())
		configs[name] = &rest.Config{Host: "http://" + name + ".invalid", Transport: r, QPS: -1}
		configs[name].Wrap(informer.EndSilentWatches(silences[name]))
		followers[name] = show(t, typedClient(t, configs[name]), "g")
	}
	set := &informer.Set{Timeout: time.Minute}
	for name, s := range followers {
		set.Add(name, s)
	}
	ctx, cancel := context.WithCancel(quiet(t))
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	run := func(f func(context.Context) error) {
		running.Go(func() {
			if err := f(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	run(set.Run)
	for _, s := range followers {
		s.await(t, "before", list("g"))
	}
	create("g", "only-before", 2)
	for _, s := range followers {
		s.await(t, "lost", list("g"))
	}
	stop()

	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(data, os.DirFS(backup)); err != nil {
		t.Fatal(err)
	}
	start()
	defer stop()
	create("g", "new", 2)
	audit := func(name string) informer.Difference {
		t.Helper()
		client, err := metadata.NewForConfig(configs[name])
		if err != nil {
			t.Fatal(err)
		}
		found := make(chan informer.Difference, 1)
		audit := &informer.Audit{Period: time.Second, Report: func(d informer.Difference) {
			select {
			case found <- d:
			default:
			}
		}}
		resource := client.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace("default")
		audit.Add(name, followers[name], func(ctx context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
			o.LabelSelector = "group=g"
			return resource.List(ctx, o)
		})
		run(audit.Run)
		select {
		case d := <-found:
			t.Log(d)
			return d
		case <-time.After(2 * time.Minute):
			t.Fatalf("the Audit does not report %s, the cache has %v, and the API server %v", name, followers[name].versions(), list("g"))
		}
		panic("unreachable")
	}
	for _, name := range []string{"early", "silent", "held"} {
		routes[name].to(t, server.Config())
	}
	relist := func(name string) {
		t.Helper()
		if err := set.Relist(name); err != nil {
			t.Fatal(err)
		}
		followers[name].await(t, "listed again", list("g"))
	}
	if d := audit("held"); d.Key != "" {
		t.Errorf("the Audit reports %v, want the whole cache", d)
	}
	relist("held")
	for _, name := range []string{"early", "silent"} {
		followers[name].await(t, name, list("g"))
	}
	create("other", "new-other", 150)
	routes["late"].to(t, server.Config())
	create("g", "after", 1) // its event passes the version of the audit's lists
	if d := audit("late"); d.Key == "" {
		t.Errorf("the Audit reports %v, want an object", d)
	}
	relist("late")
	again := show(t, typedClient(t, configs["late"]), "g")
	restarted := &informer.Set{Timeout: time.Minute}
	restarted.Add("late", again)
	run(restarted.Run)
	again.await(t, "restarted", list("g"))
}

// TestServerGoAway: the API server sends GOAWAY at random, after which requests use another
// connection. The cache follows the server.
func TestServerGoAway(t *testing.T) {
	testserver.Needed(t)
	t.Parallel()
	server, err := testserver.Start("--", "--goaway-chance=0.02")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	var dials atomic.Int32
	moved := make(chan struct{}) // closed after some GOAWAYs
	config := server.Config()
	config.QPS = -1
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if dials.Add(1) == 5 {
			close(moved)
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	config.Wrap(informer.EndSilentWatches(0))
	shared := typedClient(t, config) // one connection for the watch and the writes
	s := show(t, shared, "g")
	set := &informer.Set{Timeout: time.Minute}
	set.Add("configmaps", s)
	ctx, cancel := context.WithTimeout(quiet(t), 4*time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	client := shared.CoreV1().ConfigMaps("default")
	want := map[string]string{}
	for n := 0; ; n++ {
		obj, err := client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-", Labels: map[string]string{"group": "g"}}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want[obj.Name] = obj.ResourceVersion
		if names := slices.Collect(maps.Keys(want)); n%3 == 2 {
			if err := client.Delete(ctx, names[0], metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			delete(want, names[0])
		}
		select {
		case <-moved:
		case <-ctx.Done():
			t.Fatalf("%d connections after %d writes", dials.Load(), n)
		default:
			continue
		}
		t.Logf("%d connections after %d writes", dials.Load(), n)
		break
	}
	s.await(t, "after GOAWAY", want)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
