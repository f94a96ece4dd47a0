package rows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/bench"
	"github.com/controllerkit/controllerkit/internal/bench/internal/contender"
)

const (
	latencyObjects = 2_000 // so many that the library's guard against hot loops delays no key
	latencyWriters = 32
	latencyLimit   = 2 * time.Minute // of a run
	latencyReached = 0.95            // the share of a rate that must be reached
)

// Figures of the row. A quantile is one number for each run.
const (
	latencyMedian = "ns p50"
	latencyTail   = "ns p99"
	cpuTime       = "ns CPU"
)

// latencyCase describes the updates of a run.
type latencyCase struct {
	name    string
	rate    int // updates a second
	updates int
	atMost  bool // whether the API server may be slower than the rate
}

func init() {
	const goals = "at most 1,000 updates/s" // the case with goals
	cases := []latencyCase{
		{name: "100 updates/s", rate: 100, updates: 300},
		{name: "at most 400 updates/s", rate: 400, updates: 1_000, atMost: true}, // where most machines have CPU time to spare
		{name: goals, rate: 1_000, updates: 2_000, atMost: true},
		{name: "at most 3,000 updates/s", rate: 3_000, updates: 2_000, atMost: true},
	}
	bench.Register(bench.Row{
		Name: "event/latency",
		About: fmt.Sprintf("The time from a real API server's response to an update of a ConfigMap until a reconcile of its key has read that version, or a newer one, from the cache. "+
			"If the reconcile is earlier than the response, the time is 0, so the figures with request count from the moment before the request. The controllers are the processes of operator/process, with %d objects of 1 KiB and %d workers, and another process "+
			"updates the objects in turn at a fixed rate. ns p50 and ns p99 are quantiles of a run, ns is the time between two updates, and ns CPU is the controller's "+
			"processor time. The API server, the writer and the controller share the cores. ns shows the reached rate: 1,000,000 for 1,000 updates a second, and 333,333 for 3,000. "+
			"If the API server is slower than 100 updates a second, the row fails.", latencyObjects, contender.Workers),
		Op: "update",
		Goals: []bench.Goal{
			{Figure: latencyTail, Case: goals, Rival: controllerRuntime, AtMost: 0.7},
			{Figure: cpuTime, Case: goals, Rival: controllerRuntime, AtMost: 1},
		},
		Pairs: func(ctx context.Context) (pairs []bench.Pair, _ func(), _ error) {
			p, err := newProcesses(ctx)
			if err != nil {
				return nil, nil, err
			}
			for _, c := range cases {
				beside := p.beside(c.name, func(program string) func(context.Context, *bench.Meter) (int, error) { return p.latency(program, c) })
				if c.name != goals {
					beside = beside[:1] // client-go runs only at the rate of the goals, which saves two minutes
				}
				pairs = append(pairs, beside...)
			}
			return pairs, p.stop, nil
		},
	})
}

// latency returns the work of a contender.
func (p *processes) latency(program string, c latencyCase) func(context.Context, *bench.Meter) (int, error) {
	return func(ctx context.Context, m *bench.Meter) (_ int, err error) {
		ctx, cancel := context.WithTimeout(ctx, latencyLimit)
		defer cancel()
		n, objects := m.N(c.updates), m.N(latencyObjects)
		if err := p.fillMaps(ctx, objects); err != nil {
			return 0, err
		}
		config := rest.CopyConfig(p.config)
		config.QPS = -1
		kube, err := kubernetes.NewForConfig(config)
		if err != nil {
			return 0, err
		}
		l, err := p.launch(ctx, program, objects, "-stay")
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, l.stop()) }()
		client := kube.CoreV1().ConfigMaps(p.namespace)
		w := &writer{objects: objects, put: func(ctx context.Context, i int, text string) (metav1.Object, error) {
			cm := processMap(i)
			cm.Data["update"] = text
			return client.Update(ctx, cm, metav1.UpdateOptions{FieldManager: "bench"})
		}}
		if _, err := l.ask(contender.Command{}); err != nil { // it begins to record sights
			return 0, err
		}
		if _, _, err := w.write(ctx, n/10, c.rate); err != nil { // opens the connections
			return 0, err
		}
		before, err := w.usage(ctx, l)
		if err != nil {
			return 0, err
		}
		updates, took, err := w.write(ctx, n, c.rate)
		if err != nil {
			return 0, err
		}
		if rate := float64(n) / took.Seconds(); !c.atMost && !m.Quick && rate < latencyReached*float64(c.rate) {
			return 0, fmt.Errorf("the API server took %.0f updates a second, want %d: use a faster machine, or stop other programs", rate, c.rate)
		}
		after, sights, err := w.seen(ctx, l, updates)
		if err != nil {
			return 0, err
		}
		m.Count(bench.Time, float64(took))
		m.Count(cpuTime, float64(after.CPU-before.CPU))
		response, _ := latencies(updates, sights, func(u update) time.Time { return u.at })
		request, _ := latencies(updates, sights, func(u update) time.Time { return u.sent })
		for figure, took := range map[string]time.Duration{
			latencyMedian: quantile(response, 0.5), latencyTail: quantile(response, 0.99),
			latencyMedian + ", request": quantile(request, 0.5), latencyTail + ", request": quantile(request, 0.99),
		} {
			m.Count(figure, float64(took)*float64(n)) // the runner divides it by the operations
		}
		return n, nil
	}
}

// A writer updates the objects of a run in turn.
type writer struct {
	put     func(ctx context.Context, i int, text string) (metav1.Object, error) // updates the i-th object; no two texts are equal
	objects int
	next    atomic.Int64 // of the objects
}

// An update is a write and its response.
type update struct {
	name, version string
	sent, at      time.Time // of the request and of the response
}

// update changes the next object.
func (w *writer) update(ctx context.Context) (update, error) {
	i := 1 + int(w.next.Add(1))%w.objects
	sent := time.Now()
	obj, err := w.put(ctx, i, sent.String())
	at := time.Now()
	if err != nil {
		return update{}, err
	}
	return update{name: obj.GetName(), version: obj.GetResourceVersion(), sent: sent, at: at}, nil
}

// write sends n updates at a rate. If responses are late, it sends the next updates as soon as
// a connection is free.
func (w *writer) write(ctx context.Context, n, rate int) ([]update, time.Duration, error) {
	updates := make([]update, n)
	var next atomic.Int64
	begin := time.Now()
	err := together(ctx, latencyWriters, func(ctx context.Context, _ int) (err error) {
		for i := int(next.Add(1)) - 1; i < n && err == nil; i = int(next.Add(1)) - 1 {
			time.Sleep(time.Until(begin.Add(time.Duration(i) * time.Second / time.Duration(rate))))
			updates[i], err = w.update(ctx)
		}
		return err
	})
	return updates, time.Since(begin), err
}

// usage returns the program's usage at the moment when it has read one more update.
func (w *writer) usage(ctx context.Context, l *launched) (contender.Usage, error) {
	u, err := w.update(ctx)
	if err != nil {
		return contender.Usage{}, err
	}
	return l.ask(contender.Command{Name: u.name, Version: u.version})
}

// seen waits until the program has read all updates. It returns its usage, and its sights.
func (w *writer) seen(ctx context.Context, l *launched, updates []update) (usage contender.Usage, sights []contender.Sight, err error) {
	missing := len(updates)
	for missing > 0 {
		if usage, err = w.usage(ctx, l); err != nil {
			return usage, nil, fmt.Errorf("%d updates were not read: %w", missing, err)
		}
		sights = append(sights, usage.Sights...)
		_, missing = latencies(updates, sights, func(u update) time.Time { return u.at })
	}
	return usage, sights, nil
}

// latencies returns the sorted times from a moment of the updates to the first sights, and the
// number of updates without a sight.
func latencies(updates []update, sights []contender.Sight, from func(update) time.Time) (sorted []time.Duration, missing int) {
	of := map[string][]contender.Sight{}
	for _, s := range sights {
		of[s.Name] = append(of[s.Name], s)
	}
	for _, u := range updates {
		i := slices.IndexFunc(of[u.name], func(s contender.Sight) bool { return s.Shows(u.name, u.version) })
		if i < 0 {
			missing++
			continue
		}
		sorted = append(sorted, max(0, time.Unix(0, of[u.name][i].At).Sub(from(u))))
	}
	slices.Sort(sorted)
	return sorted, missing
}
