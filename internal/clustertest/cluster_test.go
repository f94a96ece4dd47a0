package clustertest

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/elections"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

var (
	schedules = flag.Int("schedules", 3, "how many random schedules each package has")
	seed      = flag.Uint64("seed", 0, "the seed of random choices; 0 means a random one")
)

func TestMain(m *testing.M) { testserver.Main(m) }

// TestServerCluster runs the tests of a cluster of three etcds and two kube-apiservers, one
// after the other. Each leaves it whole.
//
// Proves A3, A4, C1, C2, F2, F5, L1, L3, L4, S2, S3, SH1, SH4 and W1.
func TestServerCluster(t *testing.T) {
	cluster := testserver.StartCluster(t, 3, 2)
	t.Run("gate", func(t *testing.T) { gateOfALaggingServer(t, cluster) })
	t.Run("start", func(t *testing.T) { startAtALaggingServer(t, cluster) })
	t.Run("back", func(t *testing.T) { neverBack(t, cluster) })
	t.Run("elections", func(t *testing.T) { electionsUnderFaults(t, cluster) })
	t.Run("shards", func(t *testing.T) { shardsUnderFaults(t, cluster) })
	t.Run("finalizers", func(t *testing.T) { finalizersUnderFaults(t, cluster) })
	t.Run("status", func(t *testing.T) { statusUnderFaults(t, cluster) })
	t.Run("applies", func(t *testing.T) { appliesUnderFaults(t, cluster) })
	t.Run("watchers", func(t *testing.T) { watchersUnderFaults(t, cluster) })
	t.Run("operator", func(t *testing.T) { operatorUnderFaults(t, cluster) })
}

// configMaps returns a started informer of the default namespace. It stops when the test
// ends.
func configMaps(t *testing.T, config *rest.Config, handlers ...cache.ResourceEventHandler) cache.SharedIndexInformer {
	t.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(kubernetes.NewForConfigOrDie(config), 0, informers.WithNamespace("default"))
	maps := factory.Core().V1().ConfigMaps().Informer()
	for _, h := range handlers {
		if _, err := maps.AddEventHandler(h); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	factory.StartWithContext(ctx)
	t.Cleanup(func() {
		cancel()
		factory.Shutdown()
	})
	return maps
}

// retry calls f until it returns nil: while the etcds elect a leader, a request times out.
func retry(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	for range 10 {
		if err = f(); err == nil {
			return
		}
		t.Logf("%s: %v", what, err)
	}
	t.Fatal(err)
}

// create creates a ConfigMap in the default namespace.
func create(ctx context.Context, t *testing.T, client kubernetes.Interface, name string) (made *corev1.ConfigMap) {
	t.Helper()
	maps := client.CoreV1().ConfigMaps("default")
	retry(t, "create "+name, func() (err error) {
		made, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			made, err = maps.Get(ctx, name, metav1.GetOptions{})
		}
		return err
	})
	return made
}

// remove deletes a ConfigMap of the default namespace.
func remove(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	again := false
	retry(t, "delete "+name, func() error {
		err := client.CoreV1().ConfigMaps("default").Delete(t.Context(), name, metav1.DeleteOptions{})
		if again && apierrors.IsNotFound(err) {
			return nil
		}
		again = true
		return err
	})
}

// has reports whether the informer's store has a ConfigMap of the default namespace.
func has(maps cache.SharedIndexInformer, name string) bool {
	_, exists, err := maps.GetStore().GetByKey("default/" + name)
	return err == nil && exists
}

// A controller writes to one kube-apiserver and watches another, which is cut off from the
// etcds. The key waits until the cut ends and the cache shows the write.
func gateOfALaggingServer(t *testing.T, cluster *testserver.Cluster) {
	writes := consistency.New(consistency.Config{MaxWait: time.Hour})
	config := cluster.ServerConfig(t, 0)
	config.Wrap(writes.Wrap)
	client := kubernetes.NewForConfigOrDie(config)
	maps := configMaps(t, cluster.ServerConfig(t, 1))
	if err := writes.AddInformer(corev1.Resource("configmaps"), maps); err != nil {
		t.Fatal(err)
	}
	if !cache.WaitFor(t.Context(), "", maps.HasSyncedChecker()) {
		t.Fatal("the informer did not sync")
	}
	key := types.NamespacedName{Namespace: "default", Name: "owner"}

	cluster.Run(t, "cut server-1")
	create(writes.Begin(t.Context(), key), t, client, "child")
	writes.End(key)
	woken := make(chan struct{})
	if writes.Ready(key, func() { close(woken) }) {
		t.Error("the key is ready although the server that it watches is cut off")
	}
	if has(maps, "child") {
		t.Error("the server that is cut off has sent the write: this test proves nothing")
	}
	cluster.Run(t, "join server-1")
	<-woken
	if !writes.Ready(key, func() {}) || !has(maps, "child") {
		t.Error("the key was woken before the cache shows the write")
	}
}

// A process starts at a kube-apiserver that is cut off from the etcds, and of which the
// cache has old objects. With ConsistentLists, or a streamed list, it syncs when the cut
// ends, and has what was written meanwhile. A plain list shows the old objects.
func startAtALaggingServer(t *testing.T, cluster *testserver.Cluster) {
	client := kubernetes.NewForConfigOrDie(cluster.ServerConfig(t, 0))
	create(t.Context(), t, client, "old")
	before := configMaps(t, cluster.ServerConfig(t, 1))
	if !cache.WaitFor(t.Context(), "", before.HasSyncedChecker()) || !has(before, "old") {
		t.Fatal("the informer did not sync")
	}
	cluster.Run(t, "cut server-1")
	create(t.Context(), t, client, "new")
	remove(t, client, "old")
	// informerOf returns a started informer of the server that is cut off.
	informerOf := func(config *rest.Config, lists bool) cache.SharedIndexInformer {
		if !lists {
			return configMaps(t, config)
		}
		client := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")
		maps := cache.NewSharedIndexInformer(lister{&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return client.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return client.Watch(ctx, o)
			},
		}}, &corev1.ConfigMap{}, 0, cache.Indexers{})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { maps.RunWithContext(ctx) })
		t.Cleanup(func() { cancel(); running.Wait() })
		return maps
	}
	plain := informerOf(cluster.ServerConfig(t, 1), true)
	if !cache.WaitFor(t.Context(), "", plain.HasSyncedChecker()) || !has(plain, "old") || has(plain, "new") {
		t.Fatal("a plain list does not show the old objects: this test proves nothing")
	}
	config := cluster.ServerConfig(t, 1)
	config.Wrap(informer.ConsistentLists)
	lists, streams := informerOf(config, true), informerOf(cluster.ServerConfig(t, 1), false)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second) // longer than the server waits for the etcds
	defer cancel()
	<-ctx.Done()
	for name, maps := range map[string]cache.SharedIndexInformer{"lists": lists, "streams": streams} {
		if maps.HasSynced() {
			t.Errorf("the informer that %s has synced with a server that cannot know the present state", name)
		}
	}
	cluster.Run(t, "join server-1")
	for name, maps := range map[string]cache.SharedIndexInformer{"lists": lists, "streams": streams} {
		if !cache.WaitFor(t.Context(), "", maps.HasSyncedChecker()) {
			t.Fatalf("the informer that %s did not sync", name)
		}
		if has(maps, "old") || !has(maps, "new") {
			t.Errorf("the informer that %s has begun with an old list: old %t, new %t", name, has(maps, "old"), has(maps, "new"))
		}
	}
}

// lister is a ListerWatcher without streamed lists, as with an older API server.
type lister struct{ *cache.ListWatch }

func (lister) IsWatchListSemanticsUnSupported() bool { return true }

// past is a handler that fails the test if an object goes back to an earlier version, or
// comes back after its deletion.
type past struct {
	t    *testing.T
	seen map[types.UID]string // the last resource version; "" after the deletion
}

func (p *past) see(obj any, version string) {
	if d, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = d.Obj
	}
	m, ok := obj.(*corev1.ConfigMap)
	if !ok {
		return
	}
	have, known := p.seen[m.UID]
	switch {
	case known && have == "":
		p.t.Errorf("%s came back after its deletion", m.Name)
	case known && version != "":
		if order, err := resourceversion.CompareResourceVersion(version, have); err != nil || order < 0 {
			p.t.Errorf("%s went back from version %s to %s: %v", m.Name, have, version, err)
		}
	}
	p.seen[m.UID] = version
}

func (p *past) OnAdd(obj any, _ bool) { p.see(obj, obj.(*corev1.ConfigMap).ResourceVersion) }
func (p *past) OnUpdate(_, obj any)   { p.see(obj, obj.(*corev1.ConfigMap).ResourceVersion) }
func (p *past) OnDelete(obj any)      { p.see(obj, "") }

// An informer watches over the load balancer while its kube-apiserver is killed and the
// other is cut off, and the other way round. What it shows never goes back to an earlier
// state, and in the end it has what the cluster has.
func neverBack(t *testing.T, cluster *testserver.Cluster) {
	p := &past{t: t, seen: map[types.UID]string{}}
	maps := configMaps(t, cluster.Config(), p)
	if !cache.WaitFor(t.Context(), "", maps.HasSyncedChecker()) {
		t.Fatal("the informer did not sync")
	}
	for round := range 2 {
		alive, killed := round, 1-round
		client := kubernetes.NewForConfigOrDie(cluster.ServerConfig(t, killed))
		objects := client.CoreV1().ConfigMaps("default")
		name, changed := fmt.Sprintf("deleted-%d", round), fmt.Sprintf("changed-%d", round)
		create(t.Context(), t, client, name)
		create(t.Context(), t, client, changed)
		cluster.Run(t, fmt.Sprintf("cut server-%d", alive))
		remove(t, client, name)
		retry(t, "update "+changed, func() error {
			object, err := objects.Get(t.Context(), changed, metav1.GetOptions{})
			if err != nil {
				return err
			}
			object.Data = map[string]string{"k": "v"}
			_, err = objects.Update(t.Context(), object, metav1.UpdateOptions{})
			return err
		})
		cluster.Run(t, fmt.Sprintf("kill server-%d", killed), fmt.Sprintf("join server-%d", alive),
			fmt.Sprintf("pause etcd-%d", round), fmt.Sprintf("start server-%d", killed), fmt.Sprintf("await server-%d", killed),
			fmt.Sprintf("resume etcd-%d", round))
		last := create(t.Context(), t, kubernetes.NewForConfigOrDie(cluster.ServerConfig(t, killed)), fmt.Sprintf("last-%d", round))
		await(t, maps, last.Name)
		if has(maps, name) {
			t.Errorf("%s is still there", name)
		}
	}
}

// await waits for an object in the informer's store.
func await(t *testing.T, maps cache.SharedIndexInformer, name string) {
	t.Helper()
	found := make(chan struct{})
	var once sync.Once
	registration, err := maps.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
		if obj.(*corev1.ConfigMap).Name == name {
			once.Do(func() { close(found) })
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer maps.RemoveEventHandler(registration)
	<-found
}

// electionsUnderFaults runs elections while etcds are paused, and one of two kube-apiservers
// is killed, paused or cut off: whatever a replica hears from its own server, guarded work
// of two does not overlap, and the Lease is released after the work.
func electionsUnderFaults(t *testing.T, cluster *testserver.Cluster) {
	first := *seed
	if first == 0 {
		first = rand.Uint64() >> 16
	}
	t.Logf("-seed %d -schedules %d", first, *schedules)
	// The judge and the first replica use the server that stays.
	world, err := elections.Open(t.Context(), cluster.ServerConfig(t, 0), "default")
	if err != nil {
		t.Fatal(err)
	}
	defer world.Close()
	configs := []*rest.Config{cluster.ServerConfig(t, 0), cluster.ServerConfig(t, 1), cluster.Config()}
	world.Replica = func(n int) *rest.Config { return configs[n%len(configs)] }

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var running sync.WaitGroup
	var mu sync.Mutex
	var summary elections.Summary
	slots := make(chan struct{}, 12)
	running.Go(func() {
		defer cancel()
		var judged sync.WaitGroup
		for n := range *schedules {
			slots <- struct{}{}
			judged.Go(func() {
				defer func() { <-slots }()
				v, err := world.Run(t.Context(), elections.New(first+uint64(n), elections.Lawful, elections.Options{}), elections.Controllerkit)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Errorf("%v: %v", v.Schedule, err)
				}
				summary.Add(v)
				if problems := v.Unsafe(); len(problems) > 0 {
					t.Errorf("%v: %s\n%s", v.Schedule, strings.Join(problems, "\n"), v.Timeline)
				}
			})
		}
		judged.Wait()
	})
	faults := disturb(ctx, t, cluster, rand.New(rand.NewPCG(first, 1)), 4*time.Second)
	running.Wait()
	t.Logf("%v; faults: %v", &summary, faults)
	if summary.Terms < summary.Schedules {
		t.Errorf("only %d terms in %d schedules: they prove little", summary.Terms, summary.Schedules)
	}
}

// disturb commands faults until ctx is done, one after the other, and ends each after the
// longest time at most. The first server is spared. It returns the number of faults by
// command.
func disturb(ctx context.Context, t *testing.T, cluster *testserver.Cluster, rng *rand.Rand, longest time.Duration) map[string]int {
	faults := map[string]int{}
	pause := func(least, most time.Duration) {
		timer := time.NewTimer(least + time.Duration(rng.Int64N(int64(most-least))))
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	for ctx.Err() == nil {
		etcd := fmt.Sprintf("etcd-%d", rng.IntN(3))
		kind := rng.IntN(4)
		begin := []string{"pause " + etcd, "cut server-1", "pause server-1", "kill server-1"}[kind]
		cluster.Run(t, begin)
		faults[begin]++
		pause(200*time.Millisecond, longest)
		cluster.Run(t, [][]string{{"resume " + etcd}, {"join server-1"}, {"resume server-1"}, {"start server-1", "await server-1"}}[kind]...)
		pause(100*time.Millisecond, time.Second)
	}
	return faults
}
