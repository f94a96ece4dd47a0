package rows

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/bench"
)

func init() {
	bench.Register(bench.Row{
		Name:  "curves/queue",
		Curve: "keys",
		Long:  true,
		About: "The work of queue/backlog with struct keys, for 10,000 to 1,000,000 keys.",
		Op:    "key",
		Pairs: func(context.Context) ([]bench.Pair, func(), error) {
			return queueCurve([]int{10_000, 100_000, 1_000_000}, "keys", func(m *bench.Meter, k *kind[types.NamespacedName], open opener[types.NamespacedName], keys int) int {
				return backlogOf(m, k, open, max(1, 100_000/keys), m.N(keys)) // not too short
			})
		},
	})
	bench.Register(bench.Row{
		Name:  "curves/workers",
		Curve: "workers",
		Long:  true,
		About: "The work of queue/workers with struct keys, for 1 to 64 workers.",
		Op:    "key",
		Pairs: func(context.Context) ([]bench.Pair, func(), error) {
			return queueCurve([]int{1, 4, 16, 64}, "workers", func(m *bench.Meter, k *kind[types.NamespacedName], open opener[types.NamespacedName], workers int) int {
				return fanOutOf(m, k, open, 1, workers)
			})
		},
	})
	bench.Register(bench.Row{
		Name:  "curves/informers",
		Curve: "informers",
		Long:  true,
		About: "The start of 1 to 100 informers of 20 ConfigMaps each, from a real API server, until all are synced. The library starts them as an informer.Set, and the rival as a factory does.",
		Op:    "informer",
		Pairs: func(ctx context.Context) (pairs []bench.Pair, _ func(), _ error) {
			a, err := openArena(ctx)
			if err != nil {
				return nil, nil, err
			}
			for _, n := range []int{1, 10, 100} {
				pairs = append(pairs, bench.Pair{
					X: float64(n), Case: fmt.Sprint(n, " informers"),
					Ours:   bench.Contender{Name: "controllerkit", Run: func(ctx context.Context, m *bench.Meter) (int, error) { return a.informers(ctx, m, n, startSet) }},
					Theirs: bench.Contender{Name: clientGo, Module: "k8s.io/client-go", Run: func(ctx context.Context, m *bench.Meter) (int, error) { return a.informers(ctx, m, n, startAlone) }},
				})
			}
			return pairs, a.stop, nil
		},
	})
}

// queueCurve returns the pairs of a row about queues.
func queueCurve(xs []int, unit string, do work[types.NamespacedName]) (pairs []bench.Pair, _ func(), _ error) {
	k := structKind()
	contenders := k.contenders(false)
	for _, x := range xs {
		contender := func(name, module string) bench.Contender {
			return bench.Contender{Name: name, Module: module, Run: func(_ context.Context, m *bench.Meter) (int, error) {
				return do(m, k, contenders[name], x), nil
			}}
		}
		for _, rival := range []bench.Contender{contender(clientGo, "k8s.io/client-go"), contender(controllerRuntime, "sigs.k8s.io/controller-runtime")} {
			pairs = append(pairs, bench.Pair{X: float64(x), Case: fmt.Sprint(x, " ", unit), Ours: contender("controllerkit", ""), Theirs: rival})
		}
	}
	return pairs, nil, nil
}

// informers measures the start of n informers.
func (a *arena) informers(ctx context.Context, m *bench.Meter, n int, start func(ctx context.Context, all []cache.SharedIndexInformer) (wait func() error)) (int, error) {
	if err := a.fillMaps(ctx, max(a.objects, m.N(200))); err != nil { // a tenth for each label
		return 0, err
	}
	config := rest.CopyConfig(a.config)
	config.QPS = -1
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return 0, err
	}
	var all []cache.SharedIndexInformer
	for i := range n {
		factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(a.namespace), informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = "tenth=" + strconv.Itoa(i%10)
		}))
		all = append(all, factory.Core().V1().ConfigMaps().Informer())
	}
	ctx, cancel := context.WithCancel(logr.NewContext(ctx, logr.Discard()))
	defer cancel()
	synced := make([]cache.DoneChecker, n)
	for i, informer := range all {
		synced[i] = informer.HasSyncedChecker()
	}
	before := alive()
	var wait func() error
	ok := false
	m.Measure(func() {
		wait = start(ctx, all)
		ok = cache.WaitFor(ctx, "", synced...)
	})
	m.Count(heap, float64(alive()-before))
	cancel()
	if err := wait(); err != nil || !ok {
		return 0, errors.Join(errors.New("the caches were not filled"), err)
	}
	return n, nil
}

func startSet(ctx context.Context, all []cache.SharedIndexInformer) (wait func() error) {
	set := new(informer.Set)
	for i, one := range all {
		set.Add(fmt.Sprint("informer-", i), one)
	}
	ended := make(chan error, 1)
	go func() { ended <- set.Run(ctx) }()
	return func() error { return <-ended }
}

func startAlone(ctx context.Context, all []cache.SharedIndexInformer) (wait func() error) {
	var wg sync.WaitGroup
	for _, one := range all {
		wg.Go(func() { one.RunWithContext(ctx) })
	}
	return func() error { wg.Wait(); return nil }
}
