package consistency_test

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/reconcile"
)

// life is one controller of several in a process: a store, and informers of its own.
type life struct {
	writes *consistency.Store
	holder *holder
	maps   cache.SharedIndexInformer
}

// newLives returns controllers whose stores wrap one configuration, and the client that
// they share.
func newLives(t *testing.T, ns string, n int) ([]*life, kubernetes.Interface) {
	t.Helper()
	config := testserver.Config(t)
	var lives []*life
	for range n {
		l := &life{writes: consistency.New(consistency.Config{}), holder: &holder{free: make(chan struct{})}}
		lives = append(lives, l)
		l.holder.release()
		config.Wrap(l.writes.Wrap)

		reads := testserver.Config(t)
		reads.Wrap(l.holder.wrap)
		factory := informers.NewSharedInformerFactoryWithOptions(kubernetes.NewForConfigOrDie(reads), 0, informers.WithNamespace(ns))
		l.maps = factory.Core().V1().ConfigMaps().Informer()
		if err := l.writes.AddInformer(corev1.Resource("configmaps"), l.maps); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		factory.StartWithContext(ctx)
		t.Cleanup(func() {
			l.holder.release()
			cancel()
			factory.Shutdown()
		})
		if !cache.WaitFor(ctx, "", l.maps.HasSyncedChecker()) {
			t.Fatal("the informer did not sync")
		}
	}
	return lives, kubernetes.NewForConfigOrDie(config)
}

// Two stores wrap one configuration, and are asked for the same owner. Each knows the
// writes that were made with its own context, and the refused ones; who has both contexts
// writes for both.
func TestServerTwoStores(t *testing.T) {
	ns := testserver.Namespace(t)
	lives, client := newLives(t, ns, 2)
	maps := client.CoreV1().ConfigMaps(ns)
	key := types.NamespacedName{Namespace: ns, Name: "owner"}
	a, b := lives[0], lives[1]
	for _, tt := range []struct {
		name  string
		begin func(context.Context) context.Context
		waits []*life
	}{
		{"a", func(ctx context.Context) context.Context { return a.writes.Begin(ctx, key) }, []*life{a}},
		{"b", func(ctx context.Context) context.Context { return b.writes.Begin(ctx, key) }, []*life{b}},
		{"both", func(ctx context.Context) context.Context { return b.writes.Begin(a.writes.Begin(ctx, key), key) }, []*life{a, b}},
		{"neither", func(ctx context.Context) context.Context { return ctx }, nil},
	} {
		for _, refused := range []bool{false, true} {
			cm, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "child-"}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range lives { // both caches show it, and then nothing more
				l.writes.WroteAt(key, "", corev1.Resource("configmaps"), cm.ResourceVersion)
				if err := l.writes.Wait(t.Context(), key); err != nil {
					t.Fatal(err)
				}
				l.holder.hold()
			}
			stale := cm.DeepCopy()
			if refused {
				if _, err := maps.Patch(t.Context(), cm.Name, types.MergePatchType, []byte(`{"data":{"by":"another"}}`), metav1.PatchOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			stale.Data = map[string]string{"by": tt.name}
			if _, err := maps.Update(tt.begin(t.Context()), stale, metav1.UpdateOptions{}); (err != nil) != refused {
				t.Fatalf("%s: Update = %v, want it refused: %t", tt.name, err, refused)
			}
			for _, l := range lives {
				waits := false
				for _, w := range tt.waits {
					waits = waits || w == l
				}
				found, ok := errors.AsType[*consistency.StaleError](l.writes.EnsureReady(key))
				if ok != waits || ok && (found.RefusedRV != "") != refused {
					t.Errorf("%s, refused %t: store %t waits for %v, want something: %t", tt.name, refused, l == b, found, waits)
				}
			}
			for i, l := range lives { // one after the other
				l.holder.release()
				if err := l.writes.Wait(t.Context(), key); err != nil {
					t.Fatal(err)
				}
				if other := lives[1-i]; i == 0 && len(tt.waits) == 2 && other.writes.EnsureReady(key) == nil {
					t.Errorf("%s: a store is ready because the other one is", tt.name)
				}
			}
		}
	}
}

// A controller ends before its cache has shown what it created, and is run again with the
// same store, beside another one with a store of its own: no child is made twice.
func TestServerRunAgain(t *testing.T) {
	ns := testserver.Namespace(t)
	lives, client := newLives(t, ns, 2)
	key := types.NamespacedName{Namespace: ns, Name: "owner"}
	run := func(l *life, label string, reconciled chan<- int) (stop func()) {
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[types.NamespacedName]())
		controller := &reconcile.Controller[types.NamespacedName]{
			Name: label, Queue: queue, Gate: l.writes,
			Reconcile: func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
				made := 0
				for _, item := range l.maps.GetStore().List() {
					if item.(*corev1.ConfigMap).Labels["made-by"] == label {
						made++
					}
				}
				if made == 0 {
					child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "child-", Labels: map[string]string{"made-by": label}}}
					if _, err := client.CoreV1().ConfigMaps(ns).Create(ctx, child, metav1.CreateOptions{}); err != nil {
						return reconcile.Result{}, err
					}
				}
				reconciled <- made
				return reconcile.Result{}, nil
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- controller.Run(ctx) }()
		queue.Add(key)
		return func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("Run() = %v, want nil", err)
			}
		}
	}

	counts := []chan int{make(chan int, 10), make(chan int, 10)}
	for i, label := range []string{"a", "b"} {
		lives[i].holder.hold()
		stop := run(lives[i], label, counts[i])
		if made := <-counts[i]; made != 0 {
			t.Fatalf("%d children of %s in the cache before the first run", made, label)
		}
		stop()
	}
	for i, label := range []string{"a", "b"} {
		held := make(chan struct{})
		if lives[i].writes.Ready(key, func() { close(held) }) {
			t.Fatalf("%s: Ready = true while the cache is held back", label)
		}
		defer run(lives[i], label, counts[i])()
		select {
		case made := <-counts[i]:
			t.Errorf("%s ran with %d children in the cache, want it to wait", label, made)
		default:
		}
		lives[i].holder.release()
		<-held
		if made := <-counts[i]; made != 1 {
			t.Errorf("%s ran again with %d children in the cache, want 1", label, made)
		}
	}
	list, err := client.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "made-by"})
	if err != nil {
		t.Fatal(err)
	}
	if got := len(list.Items); got != 2 {
		t.Errorf("%d children, want 2", got)
	}
}
