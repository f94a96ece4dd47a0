package rows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/bench"
	"github.com/controllerkit/controllerkit/ssa/applyset"
)

// The row about applyset compares a Set of 200 ConfigMaps with the requests that a
// controller without it sends: it applies each object in each reconcile.

const (
	bareApplies = "bare applies"
	setRequests = "requests"
	setWorkers  = 8 // the default of a Set
)

func init() {
	bench.Register(bench.Row{
		Name:  "applyset/set",
		About: "One call for a set of 200 ConfigMaps of a real API server: the first, one without a change, one with a change of one object, and one that prunes 20. The cache of the Set is up to date. The rival applies each object and deletes the 20, with the same 8 workers and without an inventory.",
		Op:    "object",
		Goals: []bench.Goal{
			{Figure: bench.Time, Rival: bareApplies, AtMost: 1.3},
			{Figure: setRequests, Rival: bareApplies, AtMost: 1.05},
		},
		Pairs: func(ctx context.Context) ([]bench.Pair, func(), error) {
			w, err := openSets(ctx)
			if err != nil {
				return nil, nil, err
			}
			return w.pairs(bareApplies, "k8s.io/client-go", w.bare), w.stop, nil
		},
	})
}

// openSets starts the API server of a row.
func openSets(ctx context.Context) (*sets, error) {
	a, err := openArena(ctx)
	if err != nil {
		return nil, err
	}
	config := rest.CopyConfig(a.config)
	config.QPS = -1
	w := &sets{arena: a, sent: new(lifeCounts)}
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return lifeCounter{RoundTripper: rt, counts: w.sent} })
	if w.objects, err = dynamic.NewForConfig(config); err == nil {
		w.metadata, err = metadata.NewForConfig(config)
	}
	if err != nil {
		a.stop()
		return nil, err
	}
	return w, nil
}

// pairs returns a pair for each call of the row.
func (w *sets) pairs(rival, module string, run func(ctx context.Context, m *bench.Meter, work setWork) (int, error)) (pairs []bench.Pair) {
	for _, work := range []setWork{{name: "create"}, {name: "no change", before: true}, {name: "one change", before: true, changed: 1}, {name: "prune 20", before: true, pruned: 20}} {
		pairs = append(pairs, bench.Pair{
			Case:   work.name,
			Ours:   bench.Contender{Name: "controllerkit", Run: func(ctx context.Context, m *bench.Meter) (int, error) { return w.ours(ctx, m, work) }},
			Theirs: bench.Contender{Name: rival, Module: module, Run: func(ctx context.Context, m *bench.Meter) (int, error) { return run(ctx, m, work) }},
		})
	}
	return pairs
}

// setWork is one call.
type setWork struct {
	name    string
	before  bool // the objects exist
	changed int
	pruned  int
}

// wanted returns the objects of the call.
func (w setWork) wanted(namespace string, run int64, n int) []*unstructured.Unstructured {
	var all []*unstructured.Unstructured
	for i := range n - min(w.pruned, n/2) {
		color := "red"
		if i < w.changed {
			color = "blue"
		}
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{"color": color}}}
		u.SetNamespace(namespace)
		u.SetName(fmt.Sprintf("run-%d-%d", run, i))
		all = append(all, u)
	}
	return all
}

// sets is the API server of the row.
type sets struct {
	*arena
	objects  dynamic.Interface
	metadata metadata.Interface
	sent     *lifeCounts
	runs     atomic.Int64
}

func (w *sets) maps() dynamic.ResourceInterface {
	return w.objects.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(w.namespace)
}

// measure calls f, and counts its requests.
func (w *sets) measure(m *bench.Meter, f func() error) (err error) {
	before := w.sent.requests.Load()
	m.Measure(func() { err = f() })
	m.Count(setRequests, float64(w.sent.requests.Load()-before))
	return err
}

// ours does the work with a Set.
func (w *sets) ours(ctx context.Context, m *bench.Meter, work setWork) (n int, err error) {
	n = m.N(200)
	run := w.runs.Add(1)
	configMap := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{{Version: "v1"}})
	mapper.Add(configMap, meta.RESTScopeNamespace)
	set := &applyset.Set{
		Client: w.objects, Metadata: w.metadata, Mapper: mapper, Manager: applier,
		ParentKind: configMap, Finalizer: "example.com/bench", Concurrency: setWorkers,
	}
	parent := new(unstructured.Unstructured)
	parent.SetGroupVersionKind(configMap)
	parent.SetName(fmt.Sprint("parent-", run))
	parent.SetFinalizers([]string{set.Finalizer})
	if parent, err = w.maps().Create(ctx, parent, metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	defer func() {
		_, deleted := set.Delete(ctx, parent)
		_, patched := w.maps().Patch(ctx, parent.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		err = errors.Join(err, deleted, patched)
	}()
	cache := map[string]metav1.Object{}
	apply := func(work setWork) error {
		var wanted []applyset.Member
		for _, o := range work.wanted(w.namespace, run, n) {
			wanted = append(wanted, applyset.Member{Object: o, Live: cache[o.GetName()]})
		}
		results, err := set.Apply(ctx, parent, wanted...)
		for _, r := range results {
			if r.Object != nil {
				cache[r.Name] = r.Object
			}
		}
		return err
	}
	if work.before {
		if err := apply(setWork{}); err != nil {
			return 0, err
		}
		if parent, err = w.maps().Get(ctx, parent.GetName(), metav1.GetOptions{}); err != nil {
			return 0, err
		}
	}
	return n, w.measure(m, func() error { return apply(work) })
}

// bare does the work without a Set.
func (w *sets) bare(ctx context.Context, m *bench.Meter, work setWork) (n int, err error) {
	n = m.N(200)
	run := w.runs.Add(1)
	all := setWork{}.wanted(w.namespace, run, n)
	send := func(objects []*unstructured.Unstructured, request func(o *unstructured.Unstructured) error) error {
		next := make(chan *unstructured.Unstructured)
		errs := make([]error, setWorkers)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() {
				for o := range next {
					errs[i] = errors.Join(errs[i], request(o))
				}
			})
		}
		for _, o := range objects {
			next <- o
		}
		close(next)
		wg.Wait()
		return errors.Join(errs...)
	}
	apply := func(o *unstructured.Unstructured) error {
		data, err := json.Marshal(o)
		if err == nil {
			force := true
			_, err = w.maps().Patch(ctx, o.GetName(), types.ApplyPatchType, data, metav1.PatchOptions{FieldManager: applier, Force: &force})
		}
		return err
	}
	remove := func(o *unstructured.Unstructured) error {
		return w.maps().Delete(ctx, o.GetName(), metav1.DeleteOptions{})
	}
	wanted := work.wanted(w.namespace, run, n)
	defer func() { err = errors.Join(err, send(all[:len(wanted)], remove)) }()
	if work.before {
		if err := send(all, apply); err != nil {
			return 0, err
		}
	}
	return n, w.measure(m, func() error {
		return errors.Join(send(wanted, apply), send(all[len(wanted):], remove))
	})
}
