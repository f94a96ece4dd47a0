package shard_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ondemand"
	"github.com/controllerkit/controllerkit/scope"
	"github.com/controllerkit/controllerkit/shard"
)

var (
	seenObjects = flag.Int("objects", 120, "number of `objects` that the replicas of TestServerSees share")
	seenMoves   = flag.Int("moves", 3, "number of `moves` of shards between two replicas in TestServerSees")
)

// reads counts the requests of a replica and the bytes of the responses that it reads. It can
// connect the replica to an API server that does not know selectors of shards.
type reads struct {
	http.RoundTripper
	requests, bytes atomic.Int64

	mu     sync.Mutex // guards the fields below
	old    bool
	bodies []*body // of the current API server
}

func (r *reads) RoundTrip(request *http.Request) (*http.Response, error) {
	r.mu.Lock()
	old := r.old
	r.mu.Unlock()
	if old {
		request = request.Clone(request.Context())
		query := request.URL.Query()
		query.Del("shardSelector")
		request.URL.RawQuery = query.Encode()
	}
	response, err := r.RoundTripper.RoundTrip(request)
	if err == nil {
		r.requests.Add(1)
		b := &body{ReadCloser: response.Body, n: &r.bytes}
		response.Body = b
		r.mu.Lock()
		defer r.mu.Unlock()
		r.bodies = append(r.bodies, b)
	}
	return response, err
}

// reconnect ends the watches, and connects the next ones to the other API server.
func (r *reads) reconnect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.old = true
	for _, b := range r.bodies {
		b.ended.Store(true)
		b.Close()
	}
}

type body struct {
	io.ReadCloser
	n     *atomic.Int64
	ended atomic.Bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n.Add(int64(n))
	if b.ended.Load() {
		return 0, io.EOF
	}
	return n, err
}

// seer is a replica that sees the ConfigMaps with a label of some shards.
type seer struct {
	label   string
	ranges  shard.Ranges
	objects *scope.Informer
	view    *shard.View
	wake    chan struct{} // shared: an event has come

	reads reads

	mu      sync.Mutex
	owned   []int
	known   map[types.UID]string // versions, by the events
	wrong   []string             // events that do not follow from those before
	sources []*shard.Source
}

func newSeer(t *testing.T, config *rest.Config, label string, ranges shard.Ranges, wake chan struct{}, of func(cache.ListerWatcher, string) (*shard.Source, error)) *seer {
	t.Helper()
	s := &seer{label: label, ranges: ranges, wake: wake, known: map[types.UID]string{}}
	config = rest.CopyConfig(config)
	config.QPS, config.DisableCompression = -1, true
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { s.reads.RoundTripper = rt; return &s.reads })
	client := seesClient(t, config)
	informers := &ondemand.Informers[scope.Part]{
		New: func(p scope.Part) (cache.SharedIndexInformer, error) {
			lw := cache.NewFilteredListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", p.Namespace, p.Options)
			source, err := of(lw, p.ShardSelector)
			if err != nil {
				return nil, err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.sources = append(s.sources, source)
			return cache.NewSharedIndexInformer(source, &corev1.ConfigMap{}, 0, cache.Indexers{}), nil
		},
		StopTimeout: time.Minute,
	}
	s.objects = scope.New(informers.Open)
	if _, err := s.objects.AddEventHandler(s); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(io.Discard)))))
	var wait sync.WaitGroup
	wait.Go(func() {
		if err := informers.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	wait.Go(func() { s.objects.RunWithContext(ctx) })
	s.view = &shard.View{Ranges: ranges, Select: s.selectShards, SelectTimeout: 4 * time.Minute}
	wait.Go(func() {
		if err := s.view.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); wait.Wait() })
	return s
}

func seesClient(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.CloseIdleConnections)
	client, err := kubernetes.NewForConfigAndClient(config, h)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (s *seer) selectShards(ctx context.Context, shardSelector string) error {
	selection := scope.Selection{LabelSelector: s.label, ShardSelector: shardSelector}
	if shardSelector != "" {
		selection.Namespaces = []string{""}
	}
	return s.objects.Select(ctx, selection)
}

// own selects the shards without the View.
func (s *seer) own(t *testing.T, shards ...int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	if err := s.selectShards(ctx, selectorOf(t, s.ranges, shards...)); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owned = shards
}

// move adds the shards to the View, or removes them.
func (s *seer) move(t *testing.T, set func(context.Context, int) error, owned, shards []int) {
	t.Helper()
	var wait sync.WaitGroup
	for _, shard := range shards {
		wait.Go(func() {
			if err := set(t.Context(), shard); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owned = owned
}

func (s *seer) note(obj any, is bool, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = d.Obj
	}
	o := obj.(*corev1.ConfigMap)
	if _, known := s.known[o.UID]; known != is {
		s.wrong = append(s.wrong, fmt.Sprintf("%s is known: %t", o.Name, known))
	}
	if version == "" {
		delete(s.known, o.UID)
	} else {
		s.known[o.UID] = version
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *seer) OnAdd(obj any, _ bool) { s.note(obj, false, obj.(*corev1.ConfigMap).ResourceVersion) }
func (s *seer) OnUpdate(old, obj any) {
	before, after := old.(*corev1.ConfigMap), obj.(*corev1.ConfigMap)
	if before.UID != after.UID { // it was deleted and created again
		s.OnDelete(before)
		s.OnAdd(after, false)
		return
	}
	s.note(obj, true, after.ResourceVersion)
}
func (s *seer) OnDelete(obj any) { s.note(obj, true, "") }
func (s *seer) source() *shard.Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sources[len(s.sources)-1]
}
func (s *seer) listed() []*corev1.ConfigMap {
	var all []*corev1.ConfigMap
	for _, o := range s.objects.GetIndexer().List() {
		all = append(all, o.(*corev1.ConfigMap))
	}
	return all
}

// check fails the test if a replica has an object of another one, and returns the versions of
// all objects of the caches and, from the events, of the handlers.
func check(t *testing.T, seers ...*seer) (cached, known map[types.UID]string) {
	t.Helper()
	cached, known = map[types.UID]string{}, map[types.UID]string{}
	for i, s := range seers {
		for _, o := range s.listed() {
			version := o.ResourceVersion
			switch _, twice := cached[o.UID]; {
			case twice && strings.HasPrefix(o.Name, "child"):
				version = "twice" // until both caches have seen its other controller
			case twice:
				t.Errorf("%s is in two caches", o.Name)
			}
			cached[o.UID] = version
			if in, ok, err := s.of(o); err != nil || !ok || !slices.Contains(s.owned, in) {
				t.Errorf("replica %d has %s of shard %d, %v, and owns %v", i, o.Name, in, err, s.owned)
			}
		}
		s.mu.Lock()
		maps.Copy(known, s.known)
		for _, w := range s.wrong {
			t.Errorf("replica %d: an event of %s before it", i, w)
		}
		s.mu.Unlock()
	}
	return cached, known
}

func (s *seer) of(o *corev1.ConfigMap) (int, bool, error) {
	if strings.HasPrefix(o.Name, "child") {
		return s.ranges.OfChild(o)
	}
	in, err := s.ranges.Of(o)
	return in, true, err
}

// settleAll waits until the caches and the handlers of the replicas have all objects of the API
// server with the label, each once, and returns their versions.
func settleAll(t *testing.T, client kubernetes.Interface, label string, seers ...*seer) map[types.UID]string {
	t.Helper()
	list, err := client.CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{LabelSelector: label})
	if err != nil {
		t.Fatal(err)
	}
	want := map[types.UID]string{}
	for _, o := range list.Items {
		want[o.UID] = o.ResourceVersion
	}
	late := time.After(4 * time.Minute)
	for {
		cached, known := check(t, seers...)
		if maps.Equal(want, cached) && maps.Equal(want, known) {
			return want
		}
		if t.Failed() {
			t.FailNow()
		}
		select {
		case <-seers[0].wake:
		case <-late:
			t.Fatalf("caches (-server +caches):\n%s\nevents (-server +events):\n%s", cmp.Diff(want, cached), cmp.Diff(want, known))
		}
	}
}

// each calls f for 0 to n-1, eight at a time.
func each(t *testing.T, n int, f func(i int) error) {
	t.Helper()
	var next atomic.Int64
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := f(i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wait.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func configMap(name, label string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"sees": label}},
		Data:       map[string]string{"data": strings.Repeat("x", 300)},
	}
}

// TestServerSees: on an API server with and one without the feature gate, replicas see
// exactly the objects of their shards.
//
// Proves SE1, SE3 and SE7.
func TestServerSees(t *testing.T) {
	own := testserver.Own(t, "--", "--feature-gates=ShardedListAndWatch=true")
	for _, server := range []struct {
		name    string
		config  *rest.Config
		feature bool
	}{{"feature", own.Config(), true}, {"none", testserver.Config(t), false}} {
		t.Run(server.name, func(t *testing.T) {
			client := seesClient(t, server.config)
			namespaces := make([]string, 5)
			for i := range namespaces {
				ns, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "sees-"}}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				namespaces[i] = ns.Name
				t.Cleanup(func() {
					if err := client.CoreV1().Namespaces().Delete(context.Background(), ns.Name, metav1.DeleteOptions{}); err != nil {
						t.Error(err)
					}
				})
			}
			each(t, *seenObjects, func(i int) error {
				_, err := client.CoreV1().ConfigMaps(namespaces[i%5]).Create(t.Context(), configMap(fmt.Sprintf("o-%d", i), namespaces[0]), metav1.CreateOptions{})
				return err
			})
			honored := serverProbe(t, server.config, client)
			if os.Getenv("USE_EXISTING_CLUSTER") != "true" && honored != server.feature || server.feature && !honored {
				t.Fatalf("the server honors selectors: %t, want %t", honored, server.feature)
			}
			label := "sees=" + namespaces[0]
			if honored {
				serverHash(t, client, label, namespaces)
			}
			serverBytes(t, server.config, client, label, honored)
			serverMoves(t, server.config, client, label, namespaces)
			serverChildren(t, server.config, client, namespaces[0])
		})
	}
}

// serverProbe returns whether the server honors selectors.
func serverProbe(t *testing.T, config *rest.Config, client kubernetes.Interface) bool {
	t.Helper()
	text := selectorOf(t, two, 0)
	typed, err := source(t, shard.Objects, cache.NewFilteredListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", "", func(*metav1.ListOptions) {}), text).Probe(t.Context())
	if err != nil || !typed.Known || typed.Honored && typed.Foreign > 0 {
		t.Fatalf("Probe is %+v, %v", typed, err)
	}
	// A list of metadata has no shardInfo, as one of a custom resource.
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defer h.CloseIdleConnections()
	only, err := metadata.NewForConfigAndClient(config, h)
	if err != nil {
		t.Fatal(err)
	}
	metadataOf := only.Resource(corev1.SchemeGroupVersion.WithResource("configmaps"))
	got, err := source(t, shard.Objects, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return metadataOf.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return metadataOf.Watch(ctx, o)
		},
	}, text).Probe(t.Context())
	if err != nil || got != typed {
		t.Fatalf("Probe of metadata is %+v, %v, want %+v", got, err, typed)
	}
	return typed.Honored
}

// serverHash: the server's lists of each shard have its objects, and each object is in one.
func serverHash(t *testing.T, client kubernetes.Interface, label string, namespaces []string) {
	t.Helper()
	observed := map[string]int{}
	for _, n := range namespaces {
		observed[n] = 1
	}
	cut, err := shard.Ranges{N: 4}.Cut(observed)
	if err != nil {
		t.Fatal(err)
	}
	list := func(text string) []corev1.ConfigMap {
		l, err := client.CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{LabelSelector: label, ShardSelector: text})
		if err != nil {
			t.Fatal(err)
		}
		return l.Items
	}
	for _, r := range []shard.Ranges{{N: 1}, {N: 7}, {N: 16}, cut} {
		seen := map[types.UID]bool{}
		for s := range r.N {
			for _, o := range list(selectorOf(t, r, s)) {
				if in, err := r.Of(&o); err != nil || in != s || seen[o.UID] {
					t.Errorf("%s/%s is in shard %d, %v, and the server has it in %d", o.Namespace, o.Name, in, err, s)
				}
				seen[o.UID] = true
			}
		}
		if len(seen) != *seenObjects {
			t.Errorf("N %d: the server has %d objects in all shards, want %d", r.N, len(seen), *seenObjects)
		}
	}
	// The longest selector.
	r, want := shard.Ranges{N: 1024}, 0
	var even []int
	for s := 0; s < r.N; s += 2 {
		even = append(even, s)
	}
	for _, o := range list("") {
		if in, err := r.Of(&o); err == nil && in%2 == 0 {
			want++
		}
	}
	if got := len(list(selectorOf(t, r, even...))); got != want {
		t.Errorf("the server has %d objects in 512 shards, want %d", got, want)
	}
}

// serverBytes: a replica with a quarter of the shards reads a quarter of the bytes, and drops
// the objects that another API server sends.
func serverBytes(t *testing.T, config *rest.Config, client kubernetes.Interface, label string, honored bool) {
	t.Helper()
	ranges := shard.Ranges{N: 32}
	wake := make(chan struct{}, 1)
	all := newSeer(t, config, label, shard.Ranges{N: 1}, wake, shard.Objects)
	all.own(t, 0)
	var replicas []*seer
	for i := range 4 {
		replicas = append(replicas, newSeer(t, config, label, ranges, wake, shard.Objects))
		var shards []int
		for s := i; s < ranges.N; s += 4 {
			shards = append(shards, s)
		}
		replicas[i].own(t, shards...)
	}
	patch := func(objects []*corev1.ConfigMap, value string) {
		t.Helper()
		each(t, len(objects), func(i int) error {
			_, err := client.CoreV1().ConfigMaps(objects[i].Namespace).Patch(t.Context(), objects[i].Name, types.MergePatchType, fmt.Appendf(nil, `{"data":{"updated":%q}}`, value), metav1.PatchOptions{})
			return err
		})
	}
	patch(all.listed(), "once")
	settleAll(t, client, label, all)
	settleAll(t, client, label, replicas...)
	whole := float64(all.reads.bytes.Load())
	for i, r := range replicas {
		share := float64(len(r.listed())) / float64(*seenObjects)
		part := float64(r.reads.bytes.Load()) / whole
		support := r.source().Support()
		t.Logf("replica %d has %.3f of the objects and reads %.3f of the bytes in %d requests (%+v)", i, share, part, r.reads.requests.Load(), support)
		// The uids are random. A second request is of a watch that the server has ended.
		limit := (share + 0.05) * float64(r.reads.requests.Load())
		if *seenObjects >= 5000 {
			limit = 0.30
		}
		if honored && (part > limit || support.Foreign > 0) {
			t.Errorf("replica %d has %.3f of the objects and reads %.3f of the bytes, want at most %.3f; %d foreign ones", i, share, part, limit, support.Foreign)
		}
		if !honored && support.Foreign == 0 {
			t.Errorf("replica %d has dropped no object of a server that sends all: %+v", i, support)
		}
	}
	if !honored {
		return
	}
	// A watch connects to another API server, which sends all objects.
	replicas[0].reads.reconnect()
	patch(replicas[1].listed(), "twice")
	patch(replicas[0].listed(), "twice") // the events of the others come before
	settleAll(t, client, label, replicas...)
	if support := replicas[0].source().Support(); support.Foreign == 0 {
		t.Errorf("after the watch has reconnected, no object was dropped: %+v", support)
	}
}

// serverMoves: while objects change and shards move between two replicas, no object is in
// both, one that does not change is always in one, and in the end each is in one.
func serverMoves(t *testing.T, config *rest.Config, client kubernetes.Interface, label string, namespaces []string) {
	t.Helper()
	ranges := shard.Ranges{N: 32}
	wake := make(chan struct{}, 1)
	replicas := []*seer{newSeer(t, config, label, ranges, wake, shard.Objects), newSeer(t, config, label, ranges, wake, shard.Objects)}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	owner := make([]int, ranges.N)
	shards := func(of int) (owned []int) {
		for s, i := range owner {
			if i == of {
				owned = append(owned, s)
			}
		}
		return owned
	}
	replicas[0].move(t, replicas[0].view.Add, shards(0), shards(0))
	still := settleAll(t, client, label, replicas...)

	churn := func() {
		for range 20 {
			i := r.IntN(40)
			c := client.CoreV1().ConfigMaps(namespaces[i%5])
			o := configMap(fmt.Sprintf("churn-%d", i), namespaces[0])
			var err error
			switch r.IntN(3) {
			case 0:
				err = c.Delete(t.Context(), o.Name, metav1.DeleteOptions{})
			case 1:
				_, err = c.Create(t.Context(), o, metav1.CreateOptions{})
			default:
				o.Data["at"] = fmt.Sprint(r.Uint64())
				_, err = c.Update(t.Context(), o, metav1.UpdateOptions{})
			}
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) {
				t.Error(err)
				return
			}
		}
	}
	for range *seenMoves {
		for s := range owner {
			if r.IntN(4) == 0 {
				owner[s] = 1 - owner[s]
			}
		}
		var wait sync.WaitGroup
		wait.Go(churn)
		// A shard is removed before the other replica adds it.
		var kept [2][]int
		for i, replica := range replicas {
			var lost []int
			for _, s := range replica.owned {
				if owner[s] == i {
					kept[i] = append(kept[i], s)
				} else {
					lost = append(lost, s)
				}
			}
			replica.move(t, replica.view.Remove, kept[i], lost)
		}
		check(t, replicas...)
		for i, replica := range replicas {
			gained := slices.DeleteFunc(shards(i), func(s int) bool { return slices.Contains(kept[i], s) })
			replica.move(t, replica.view.Add, shards(i), gained)
		}
		cached, _ := check(t, replicas...)
		wait.Wait()
		for uid, version := range still {
			if cached[uid] != version {
				t.Errorf("the object with uid %s is in no cache: %q, want version %q", uid, cached[uid], version)
			}
		}
		if t.Failed() {
			break
		}
	}
	settleAll(t, client, label, replicas...)
}

// serverChildren: children are in the cache of the replica that has their controller.
func serverChildren(t *testing.T, config *rest.Config, client kubernetes.Interface, namespace string) {
	t.Helper()
	configMaps := client.CoreV1().ConfigMaps(namespace)
	owners := make([]*corev1.ConfigMap, 12)
	each(t, len(owners), func(i int) (err error) {
		owners[i], err = configMaps.Create(t.Context(), configMap(fmt.Sprintf("owner-%d", i), "no"), metav1.CreateOptions{})
		return err
	})
	children := make([]*corev1.ConfigMap, 36)
	controlledBy := func(o *corev1.ConfigMap) []metav1.OwnerReference {
		return []metav1.OwnerReference{*metav1.NewControllerRef(o, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
	}
	each(t, len(children), func(i int) (err error) {
		o := configMap(fmt.Sprintf("child-%d", i), "child-of-"+namespace)
		o.OwnerReferences = controlledBy(owners[i%12])
		children[i], err = configMaps.Create(t.Context(), o, metav1.CreateOptions{})
		return err
	})
	wake := make(chan struct{}, 1)
	label := "sees=child-of-" + namespace
	replicas := []*seer{newSeer(t, config, label, two, wake, shard.Children), newSeer(t, config, label, two, wake, shard.Children)}
	for i, r := range replicas {
		r.own(t, i)
	}
	settleAll(t, client, label, replicas...)
	each(t, len(children), func(i int) error { // each gets another controller
		o := children[i].DeepCopy()
		o.OwnerReferences = controlledBy(owners[(i+1+i/12)%12])
		_, err := configMaps.Update(t.Context(), o, metav1.UpdateOptions{})
		return err
	})
	settleAll(t, client, label, replicas...)
}
