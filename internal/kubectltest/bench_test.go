package kubectltest_test

import (
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/internal/kubectltest"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa/applyset"
)

// TestServerRequests holds that the Set needs one request for a change of one of 200
// objects, none for a set that did not change, at most half of kubectl's to prune, and at most
// half of those of Flux's manager, but for the three of its inventory. It prints a table. kubectl
// is a new process for each call. The Set and Flux are one process, and the Set has the responses
// of the last call as its cache.
func TestServerRequests(t *testing.T) {
	w := newWorld(t)
	maps := func(namespace string, n int, changed bool) []*unstructured.Unstructured {
		var all []*unstructured.Unstructured
		for i := range n {
			color := "red"
			if changed && i == 0 {
				color = "blue"
			}
			u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{"color": color}}}
			u.SetNamespace(namespace)
			u.SetName(fmt.Sprintf("object-%03d", i))
			all = append(all, u)
		}
		return all
	}
	steps := []struct {
		name    string
		n       int
		changed bool
		most    func(kubectl int64) int64 // requests of the Set
	}{
		{"create 200", 200, false, func(n int64) int64 { return n }},
		{"no change", 200, false, func(int64) int64 { return 0 }},
		{"change 1", 200, true, func(int64) int64 { return 1 }},
		{"prune 20", 180, true, func(n int64) int64 { return n / 2 }},
	}
	type cost struct {
		requests int64
		took     time.Duration
	}
	config, count := testserver.Counted(t)
	measure := func(f func() error) cost {
		before, start := count.Load(), time.Now()
		if err := f(); err != nil {
			t.Fatal(err)
		}
		return cost{count.Load() - before, time.Since(start)}
	}
	kind := schema.GroupVersionKind{Version: "v1", Kind: "Secret"}
	var theirs, fluxes, ours []cost
	for _, step := range steps {
		theirs = append(theirs, measure(func() error {
			return kubectltest.Kubectl(t.Context(), config, w.one, "secrets/parent", maps(w.one, step.n, step.changed)...)
		}))
	}

	apply, err := kubectltest.Flux(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, step := range steps {
		fluxes = append(fluxes, measure(func() error { return apply(t.Context(), maps(w.four, step.n, step.changed)...) }))
	}

	p := w.parent(kind, w.two)
	p.create(t, kind, finalizer)
	s := newSet(t, config, kind)
	if _, err := s.Plan(t.Context(), p.read(t)); err != nil { // discovery
		t.Fatal(err)
	}
	cache := map[string]metav1.Object{}
	for i, step := range steps {
		var wanted []applyset.Member
		for _, o := range maps(w.two, step.n, step.changed) {
			wanted = append(wanted, applyset.Member{Object: o, Live: cache[o.GetName()]})
		}
		parent := p.read(t)
		var results []applyset.Result
		c := measure(func() (err error) {
			results, err = s.Apply(t.Context(), parent, wanted...)
			return err
		})
		ours = append(ours, c)
		for _, r := range results {
			if r.Object != nil {
				cache[r.Name] = r.Object
			}
		}
		if most := step.most(theirs[i].requests); c.requests > most {
			t.Errorf("%s: %d requests, want at most %d", step.name, c.requests, most)
		}
		if most := fluxes[i].requests/2 + 3; c.requests > most {
			t.Errorf("%s: %d requests, want at most %d, which is half of Flux's and three", step.name, c.requests, most)
		}
	}
	// The same objects, without a set.
	names := maps(w.three, 200, false)
	objects := make([]any, len(names))
	for i, o := range names {
		objects[i] = o
	}
	batch := &applyset.Batch{Client: s.Client, Mapper: s.Mapper, Manager: manager}
	bare := measure(func() error { _, err := batch.Apply(t.Context(), objects...); return err })
	var table strings.Builder
	tw := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "\trequests of kubectl\tof Flux\tof a Set\ttime of kubectl\tof Flux\tof a Set\t")
	for i, step := range steps {
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%v\t%v\t%v\t\n", step.name, theirs[i].requests, fluxes[i].requests, ours[i].requests, theirs[i].took.Round(time.Millisecond), fluxes[i].took.Round(time.Millisecond), ours[i].took.Round(100*time.Microsecond))
	}
	tw.Flush()
	t.Logf("\n%s\n200 bare applies by a Batch: %d requests, %v", table.String(), bare.requests, bare.took.Round(time.Millisecond))
	if _, err := s.Delete(t.Context(), p.read(t)); err != nil {
		t.Error(err)
	}
	p.patch(t, `{"metadata":{"finalizers":null}}`)
}
