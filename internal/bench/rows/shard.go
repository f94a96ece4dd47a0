package rows

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/internal/bench"
	"github.com/controllerkit/controllerkit/shard"
	"github.com/controllerkit/controllerkit/shard/filter"
)

const (
	shardReplicas = 4
	shardCount    = 32
	oneReplica    = "one replica"
	bytesRead     = "B read"
)

func init() {
	bench.Register(bench.Row{
		Name:  "shard/objects",
		About: "One of four replicas with 8 of 32 shards, beside a replica with all: the heap of an informer with its part of 5,000 ConfigMaps of 1 KiB, and the bytes that the API server with the feature ShardedListAndWatch sends it. The figures are those of the largest of the four.",
		Op:    "replica",
		Goals: []bench.Goal{{Figure: heap, Rival: oneReplica, AtMost: 0.3}, {Figure: bytesRead, Rival: oneReplica, AtMost: 0.3}},
		Pairs: func(ctx context.Context) ([]bench.Pair, func(), error) {
			a, err := openArena(ctx, "--", "--feature-gates=ShardedListAndWatch=true")
			if err != nil {
				return nil, nil, err
			}
			hold := func(name string, replicas int) bench.Contender {
				return bench.Contender{Name: name, Run: func(ctx context.Context, m *bench.Meter) (int, error) { return a.hold(ctx, m, replicas) }}
			}
			return []bench.Pair{{Ours: hold("controllerkit", shardReplicas), Theirs: hold(oneReplica, 1)}}, a.stop, nil
		},
	})
}

// hold measures each of the replicas, which share the shards, after the other.
func (a *arena) hold(ctx context.Context, m *bench.Meter, replicas int) (int, error) {
	n := m.N(5000)
	if err := a.fillMaps(ctx, n); err != nil {
		return 0, err
	}
	var most, read int64
	all := 0
	for replica := range replicas {
		var shards []int
		for s := replica; s < shardCount; s += replicas {
			shards = append(shards, s)
		}
		objects, held, got, err := a.inform(ctx, shard.Ranges{N: shardCount}, shards)
		if err != nil {
			return 0, err
		}
		all, most, read = all+objects, max(most, held), max(read, got)
	}
	if all != n {
		return 0, fmt.Errorf("the replicas have %d objects, want %d", all, n)
	}
	m.Count(heap, float64(most))
	m.Count(bytesRead, float64(read))
	return 1, nil
}

// inform fills an informer with the objects of the shards. It returns their number, their heap,
// and the bytes of the responses.
func (a *arena) inform(ctx context.Context, ranges shard.Ranges, shards []int) (objects int, held, read int64, err error) {
	got := new(atomic.Int64)
	config := rest.CopyConfig(a.config)
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return readCounter{rt, got} })
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return 0, 0, 0, err
	}
	selector, err := ranges.Selector(shards)
	if err != nil {
		return 0, 0, 0, err
	}
	lw := cache.NewFilteredListWatchFromClient(kube.CoreV1().RESTClient(), "configmaps", a.namespace, func(*metav1.ListOptions) {})
	source, err := filter.Objects(lw, selector)
	if err != nil {
		return 0, 0, 0, err
	}
	before := alive()
	informer := cache.NewSharedIndexInformer(source, &corev1.ConfigMap{}, 0, nil)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { informer.RunWithContext(ctx) })
	defer wg.Wait()
	defer cancel()
	if !cache.WaitFor(ctx, "", informer.HasSyncedChecker()) {
		return 0, 0, 0, errors.Join(errors.New("the cache was not filled"), context.Cause(ctx))
	}
	held = alive() - before
	return len(informer.GetStore().ListKeys()), held, got.Load(), nil
}

// readCounter counts the bytes of responses.
type readCounter struct {
	http.RoundTripper
	n *atomic.Int64
}

func (c readCounter) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := c.RoundTripper.RoundTrip(r)
	if err == nil {
		response.Body = countedBody{response.Body, c.n}
	}
	return response, err
}

type countedBody struct {
	io.ReadCloser
	n *atomic.Int64
}

func (b countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n.Add(int64(n))
	return n, err
}

// A fleet is replicas of a Group.
type fleet struct {
	*arena
	name    string
	ranges  shard.Ranges
	timings timings
	work    func(ctx context.Context, replica int, s shard.Shard) // optional
	failed  chan error
	changed chan struct{}

	mu      sync.Mutex
	owners  []int // the replica of each shard, or -1
	ended   []time.Time
	longest time.Duration // without an owner
	stops   map[int]func()
}

func (a *arena) fleet(m *bench.Meter, shards int) *fleet {
	f := &fleet{
		arena: a, name: fmt.Sprint("fleet-", a.elections.Add(1)), ranges: shard.Ranges{N: shards}, timings: timingsOf(m),
		failed: make(chan error, 100), changed: make(chan struct{}, 1), ended: make([]time.Time, shards), stops: map[int]func(){},
	}
	if m.Quick { // and no loss on a slow machine
		f.timings.lease, f.timings.renew = timingsOf(new(bench.Meter)).lease, timingsOf(new(bench.Meter)).renew
	}
	f.owners = slices.Repeat([]int{-1}, shards)
	return f
}

// join starts a replica.
func (f *fleet) join(ctx context.Context, replica int, config *rest.Config) error {
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	group := &shard.Group{
		Leases: kube.CoordinationV1().Leases(f.namespace), Namespace: f.namespace, Name: f.name, Ranges: f.ranges,
		LeaseDuration: f.timings.lease, RenewDeadline: f.timings.renew, RetryPeriod: f.timings.retry,
	}
	ctx, cancel := context.WithCancel(logr.NewContext(ctx, logr.Discard()))
	var wg sync.WaitGroup
	wg.Go(func() {
		err := group.Run(ctx, func(ctx context.Context, s shard.Shard) error {
			f.own(s.Index, replica)
			defer f.own(s.Index, -1)
			if f.work != nil {
				f.work(ctx, replica, s)
			}
			<-ctx.Done()
			return nil
		})
		if err != nil {
			f.failed <- err
		}
	})
	f.stops[replica] = func() { cancel(); wg.Wait() }
	return nil
}

// own notes that a shard has another owner.
func (f *fleet) own(s, replica int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.owners[s] = replica; replica < 0 {
		f.ended[s] = time.Now()
	} else if !f.ended[s].IsZero() {
		f.longest = max(f.longest, time.Since(f.ended[s]))
	}
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// balanced waits until each of the replicas has its part.
func (f *fleet) balanced(ctx context.Context, replicas int) error {
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	for {
		f.mu.Lock()
		counts := map[int]int{}
		for _, owner := range f.owners {
			counts[owner]++
		}
		f.mu.Unlock()
		done := counts[-1] == 0
		for replica := range replicas {
			part := counts[replica] - f.ranges.N/replicas
			done = done && (part == 0 || part == 1)
		}
		if done {
			return nil
		}
		select {
		case <-f.changed:
		case err := <-f.failed:
			return err
		case <-limit.C:
			return fmt.Errorf("after a minute the replicas own %v", counts)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// close stops all replicas.
func (f *fleet) close() {
	for _, stop := range f.stops {
		stop()
	}
}
