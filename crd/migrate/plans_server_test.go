package migrate_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

var (
	plans   = flag.Int("plans", 4, "number of plans of TestServerPlans")
	objects = flag.Int("objects", 100, "number of objects of TestServerRestarts")
)

// A crowd writes and reads objects in all served versions while they are migrated.
type crowd struct {
	*kind
	names []string

	mu      sync.Mutex
	serving []string          // versions in which the crowd writes and reads
	values  map[string]string // of the last apply, by manager and object
	applies int
	reads   int
}

// managers are the field managers of the crowd. Each owns one field.
func managers() map[string]string { return map[string]string{"one": "a", "two": "b"} }

func newCrowd(k *kind, n int) *crowd {
	c := &crowd{kind: k, serving: []string{"v1alpha1", "v1"}, values: map[string]string{}}
	for i := range n {
		name := fmt.Sprintf("x-%04d", i)
		c.names = append(c.names, name)
		for by := range managers() {
			c.write(k.t.Context(), by, "v1alpha1", name)
		}
		// A manager that writes once, and owns a map, an item and the status.
		if _, err := k.apply("quiet", "v1alpha1", name, m{"spec": m{"c": "1", "labels": m{"l": name}, "items": []any{m{"name": "i", "value": "1"}}}}); err != nil {
			k.t.Fatal(err)
		}
		if _, err := k.apply("status", "v1alpha1", name, m{"status": m{"n": i}}, "status"); err != nil {
			k.t.Fatal(err)
		}
	}
	return c
}

// write applies the field of a manager, without force.
func (c *crowd) write(ctx context.Context, by, version, name string) {
	c.mu.Lock()
	c.applies++
	value := fmt.Sprint(c.applies)
	c.mu.Unlock()
	obj := c.object(version, name, m{"spec": m{managers()[by]: value}})
	_, err := c.at(version).Apply(ctx, name, obj, metav1.ApplyOptions{FieldManager: by})
	switch {
	case ctx.Err() != nil: // the value is unknown
		value = ""
	case isRestart(err):
		value = ""
	case err != nil:
		c.t.Errorf("apply %s of %s in %s: %v", name, by, version, err)
		return
	}
	c.mu.Lock()
	c.values[by+name] = value
	c.mu.Unlock()
}

// isRestart reports whether a request failed because a kube-apiserver stops.
func isRestart(err error) bool {
	if _, ok := err.(apierrors.APIStatus); err == nil || ok {
		return apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || err != nil && strings.Contains(err.Error(), "storage is (re)initializing")
	}
	return true
}

// during lets the crowd write and read while f runs.
func (c *crowd) during(f func()) {
	ctx, cancel := context.WithCancel(c.t.Context())
	var wg sync.WaitGroup
	versions := slices.Clone(c.serving)
	for by := range managers() {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(rand.Uint64(), 0))
			for ctx.Err() == nil {
				c.write(ctx, by, versions[r.IntN(len(versions))], c.names[r.IntN(len(c.names))])
			}
		})
	}
	wg.Go(func() {
		for ctx.Err() == nil {
			name := c.names[rand.IntN(len(c.names))]
			for _, version := range versions {
				obj, err := c.at(version).Get(ctx, name, metav1.GetOptions{})
				if ctx.Err() != nil || isRestart(err) {
					continue
				}
				if err != nil {
					c.t.Errorf("read %s in %s: %v", name, version, err)
					continue
				}
				c.check(obj, false)
				c.mu.Lock()
				c.reads++
				c.mu.Unlock()
			}
		}
	})
	f()
	cancel()
	wg.Wait()
}

// check checks the fields and the owners of an object. If nobody writes, it also checks the values.
func (c *crowd) check(obj *unstructured.Unstructured, still bool) {
	c.t.Helper()
	all := owned(c.t, obj)
	name := obj.GetName()
	want := map[string][]string{
		"quiet Apply":         {".spec.c", ".spec.items[name=\"i\"].name", ".spec.items[name=\"i\"].value", ".spec.labels.l"},
		"status Apply status": {".status.n"}, "one Apply": {".spec.a"}, "two Apply": {".spec.b"},
	}
	equal(c.t, name+": owners", want, all)
	spec := obj.Object["spec"].(m)
	for by, field := range managers() {
		c.mu.Lock()
		value := c.values[by+name]
		c.mu.Unlock()
		got, ok := spec[field]
		if !ok || still && value != "" && got != value {
			c.t.Errorf("%s: the field %s is %v, want %q", name, field, got, value)
		}
	}
	if spec["c"] != "1" || spec["labels"].(m)["l"] != name || len(spec["items"].([]any)) != 1 {
		c.t.Errorf("%s: spec %v", name, spec)
	}
}

func (c *crowd) checkAll(version string, want []string) {
	c.t.Helper()
	list, err := c.at(version).List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	if len(list.Items) != len(c.names) {
		c.t.Errorf("%d objects, want %d", len(list.Items), len(c.names))
	}
	for i := range list.Items {
		obj := &list.Items[i]
		c.check(obj, true)
		if got := versions(obj); want != nil && !slices.Equal(got, want) {
			c.t.Errorf("%s: managedFields have the versions %q, want %q", obj.GetName(), got, want)
		}
	}
}

// checkStored checks that each object is stored as the API server stores it now.
func (c *crowd) checkStored(version string) {
	c.t.Helper()
	if names := c.unstored(version); len(names) > 0 {
		c.t.Errorf("not stored in %s: %q", version, names)
	}
}

// unstored returns the objects that are not stored as the API server stores them now. A patch without
// changes writes an object only if its stored form would be another one.
func (c *crowd) unstored(version string) (names []string) {
	c.t.Helper()
	for _, name := range c.names {
		before := c.read(version, name)
		after, err := c.at(version).Patch(c.t.Context(), name, types.MergePatchType, []byte("{}"), metav1.PatchOptions{FieldManager: "checker"})
		if err != nil {
			c.t.Fatal(err)
		}
		if before.GetResourceVersion() != after.GetResourceVersion() {
			names = append(names, name)
		}
	}
	return names
}

// lives migrates by processes that die. The first ones die before or after a request, the last one
// lives. Requests of all can fail. It returns the number of processes.
func (c *crowd) lives(kill int, after bool, r *rand.Rand) (n int) {
	var mu sync.Mutex // requests of one process come one after the other, but the race detector does not know
	for n = 1; ; n++ {
		ctx, die := context.WithCancel(c.t.Context())
		requests := 0
		last := n > 3
		client := c.process(func(op *fault.Op) fault.Fault {
			mu.Lock()
			defer mu.Unlock()
			if requests++; requests == kill && !last {
				if after {
					return fault.Fault{After: die, Lose: true}
				}
				die()
				return fault.Fault{Drop: true}
			}
			switch r.IntN(40) {
			case 0:
				return fault.Fault{Response: &fault.Response{Code: 429, Reason: metav1.StatusReasonTooManyRequests, Message: "later"}}
			case 1:
				return fault.Fault{Response: &fault.Response{Code: 503, Reason: metav1.StatusReasonServiceUnavailable, Message: "later"}}
			case 2:
				return fault.Fault{Lose: true}
			}
			return fault.Fault{}
		}, nil)
		migrator := c.migrator(client)
		migrator.SetPage(3)
		_, err := migrator.Once(ctx)
		died := ctx.Err() != nil
		die()
		if err == nil {
			return n
		}
		if !died {
			c.t.Fatalf("kill %d, after %v, process %d: %v", kill, after, n, err)
		}
		mu.Lock()
		if kill = 1 + r.IntN(2*len(c.names)+10); kill%2 == 0 {
			after = !after
		}
		mu.Unlock()
	}
}

// In each plan the storage version changes to the other one, and then the former one is no longer
// served. The process of the migrator dies before or after one request of each migration, requests
// of it fail, and two managers write meanwhile. In the end v1alpha1 is removed.
//
// Proves VM1, VM4, VM6.
func TestServerPlans(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	c := newCrowd(install(t), 8)
	from, to := "v1alpha1", "v1"
	processes := 0
	// The first plans kill at each request, the others at random.
	for plan := range *plans {
		kill, after := 1+plan/2, plan%2 == 1
		if kill > 2*len(c.names)+10 {
			kill = 1 + r.IntN(2*len(c.names)+10)
		}
		c.store(to, true)
		c.serving = []string{from, to}
		c.during(func() { processes += c.lives(kill, after, r) })
		equal(t, "storedVersions", []string{to}, c.stored())
		c.checkAll(to, nil)
		c.checkStored(to)

		c.store(to, false)
		c.serving = []string{to}
		c.during(func() { processes += c.lives(kill, after, r) })
		equal(t, "storedVersions", []string{to}, c.stored())
		c.checkAll(to, []string{to})
		if t.Failed() {
			t.Fatalf("plan %d: kill %d, after %v", plan, kill, after)
		}
		from, to = to, from
		if plan%50 == 49 {
			t.Logf("%d plans, %d processes", plan+1, processes)
		}
	}
	if from != "v1" { // an even number of plans ends in v1alpha1
		c.store("v1", true)
		c.once()
		c.store("v1", false)
		c.once()
	}
	c.edit(func(name string, _ m) bool { return name != "v1alpha1" })
	c.serving = []string{"v1"}
	for _, name := range c.names {
		for by := range managers() {
			c.write(t.Context(), by, "v1", name)
		}
	}
	c.checkAll("v1", []string{"v1"})
	t.Logf("%d plans, %d processes, %d applies, %d reads", *plans, processes, c.applies, c.reads)
}

// Two kube-apiservers stop and start during the migration of many objects.
//
// Proves VM1, VM4.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it needs an API server, which -short leaves out")
	}
	cluster := testserver.StartCluster(t, 1, 2)
	k := installAt(t, cluster.Config(), "default")
	c := newCrowd(k, *objects)
	restart := func() {
		for _, server := range []string{"server-0", "server-1"} {
			cluster.Run(t, "stop "+server, "start "+server, "await "+server)
		}
	}
	migrating := func() {
		var wg sync.WaitGroup
		wg.Go(func() {
			migrator := c.migrator(c.client)
			migrator.Rate = float32(len(c.names)) / 8 // so that the servers restart meanwhile
			if _, err := migrator.Once(t.Context()); err != nil {
				t.Error(err)
			}
		})
		restart()
		wg.Wait()
	}
	c.store("v1", true)
	c.during(migrating)
	equal(t, "storedVersions", []string{"v1"}, c.stored())
	c.checkStored("v1")
	c.store("v1", false)
	c.serving = []string{"v1"}
	c.during(migrating)
	c.edit(func(name string, _ m) bool { return name != "v1alpha1" })
	for _, name := range c.names {
		for by := range managers() {
			c.write(t.Context(), by, "v1", name)
		}
	}
	c.checkAll("v1", []string{"v1"})
	t.Logf("%d objects, %d applies, %d reads", len(c.names), c.applies, c.reads)
}
