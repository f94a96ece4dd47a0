package churn_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/operator/internal/churn"
)

const manager = "example.com/test"

// A bench makes applies for one owner.
type bench struct {
	churn.Finder
	t     *testing.T
	logs  testlog.Logs
	ctx   context.Context
	owner *unstructured.Unstructured
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, logs: testlog.New(), owner: object("Shop", "owner", nil)}
	b.ctx = b.logs.Context(t.Context())
	b.owner.SetUID("owner")
	b.owner.SetGeneration(1)
	return b
}

// object returns an object with a spec.
func object(kind, name string, spec map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"namespace": "ns", "name": name}}}
	if spec != nil {
		o.Object["spec"] = spec
	}
	return o
}

// apply applies a configuration that changes the object from before, and is stored as it is.
func (b *bench) apply(config *unstructured.Unstructured, before metav1.Object) {
	b.Applied(b.ctx, churn.Apply{Owner: b.owner, Config: config, Manager: manager, Before: before, After: config.DeepCopy(), Changed: true})
}

// rest applies a configuration that needs no request.
func (b *bench) rest(config *unstructured.Unstructured) {
	b.Applied(b.ctx, churn.Apply{Owner: b.owner, Config: config, Manager: manager, Before: config.DeepCopy()})
}

// want fails the test unless the only line is about the child and the paths.
func (b *bench) want(line, child string, paths ...string) {
	b.t.Helper()
	all := b.logs.All()
	if len(all) != 1 || all[0].Message != line || all[0].Values["child"] != child {
		b.t.Fatalf("logged %+v, want the line %q about %s", all, line, child)
	}
	got, _ := all[0].Values["paths"].([]string)
	if diff := cmp.Diff(paths, got); diff != "" {
		b.t.Errorf("paths (-want +got):\n%s", diff)
	}
}

func (b *bench) quiet() {
	b.t.Helper()
	if all := b.logs.All(); len(all) > 0 {
		b.t.Errorf("logged %+v, want nothing", all)
	}
}

// TestRandom: a random value is named at the fifth change within 90s, and once an hour.
func TestRandom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		change := func(n int) {
			for range n {
				b.apply(object("ConfigMap", "a", map[string]any{"salt": fmt.Sprint(rand.Uint64()), "same": "x"}), nil)
				time.Sleep(time.Second)
			}
		}
		change(4)
		b.quiet()
		change(3)
		b.want(churn.Differs, "ConfigMap ns/a", ".spec.salt")
		change(3000)
		b.want(churn.Differs, "ConfigMap ns/a", ".spec.salt")
		change(1000)
		if n := len(b.logs.Find(churn.Differs)); n != 2 {
			t.Errorf("%d lines after an hour, want 2", n)
		}
	})
}

// TestClock: a time is named at the third apply, also if the child rests between the changes.
func TestClock(t *testing.T) {
	for name, format := range map[string]func(time.Time) any{
		"RFC 3339":     func(t time.Time) any { return t.Format(time.RFC3339) },
		"nanoseconds":  func(t time.Time) any { return fmt.Sprint(t.UnixNano()) },
		"milliseconds": func(t time.Time) any { return t.UnixMilli() },
		"seconds":      func(t time.Time) any { return t.Unix() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				for n := range 3 {
					if n == 2 {
						b.quiet()
					}
					config := object("ConfigMap", "a", map[string]any{"list": []any{map[string]any{"at": format(time.Now())}}})
					b.apply(config, nil)
					b.rest(config)
					time.Sleep(10 * time.Minute)
				}
				b.want(churn.Differs, "ConfigMap ns/a", ".spec.list[0].at")
			})
		})
	}
}

// TestOrder: another order of the same list is named at the second time.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		config := func(args ...any) *unstructured.Unstructured {
			return object("Pod", "a", map[string]any{"containers": []any{map[string]any{"name": "x", "args": args}}})
		}
		b.apply(config("a", "b", "c"), nil)
		b.apply(config("b", "a", "c"), nil)
		b.rest(config("b", "a", "c")) // the same order by chance
		time.Sleep(time.Hour)
		b.quiet()
		b.apply(config("c", "a", "b"), nil)
		b.want(churn.Order, "Pod ns/a", ".spec.containers[0].args")
	})
}

// TestRewritten: a value that is stored as another one is named at the second apply.
func TestRewritten(t *testing.T) {
	b := newBench(t)
	config := object("ConfigMap", "a", map[string]any{"image": "mine", "keep": "x"})
	stored := object("ConfigMap", "a", map[string]any{"image": "theirs", "keep": "x"})
	for n := range 2 {
		if n == 1 {
			b.quiet()
		}
		b.Applied(b.ctx, churn.Apply{Owner: b.owner, Config: config.DeepCopy(), Manager: manager, Before: stored, After: stored})
	}
	b.want(churn.Rewritten, "ConfigMap ns/a", ".spec.image")
}

// TestContested: a field that another writer changes back five times, each 15s after the last time as an HPA does, is
// named with this writer, also if that writes the subresource scale.
func TestContested(t *testing.T) {
	for _, subresource := range []string{"", "scale"} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			config := object("ConfigMap", "a", map[string]any{"replicas": int64(2)})
			theirs := object("ConfigMap", "a", map[string]any{"replicas": int64(3)})
			now, before := metav1.Now(), metav1.NewTime(time.Now().Add(-time.Hour))
			theirs.SetManagedFields([]metav1.ManagedFieldsEntry{
				{Manager: "old", Time: &before}, {Manager: "scaler", Time: &now, Subresource: subresource}, {Manager: manager, Time: &now}, {Manager: "kubelet", Time: &now, Subresource: "status"},
			})
			for n := range 5 {
				if n == 4 {
					b.quiet()
				}
				b.apply(config.DeepCopy(), theirs)
				b.rest(config.DeepCopy()) // the event of the own write
				time.Sleep(15*time.Second + 100*time.Millisecond)
			}
			b.want(churn.Contested, "ConfigMap ns/a", ".spec.replicas")
			if got := b.logs.All()[0].Values["manager"]; got != "scaler" {
				t.Errorf("manager %v, want scaler", got)
			}
		})
	}
}

// TestShared: a status that another writer replaces five times is named.
func TestShared(t *testing.T) {
	report := func(b *bench, was, wanted any) {
		before, after := b.owner.DeepCopy(), b.owner.DeepCopy()
		for o, url := range map[*unstructured.Unstructured]any{before: was, after: wanted} {
			o.Object["status"] = map[string]any{"url": url, "conditions": []any{map[string]any{"type": "Ready", "lastTransitionTime": fmt.Sprint(rand.Int())}}}
		}
		b.Reported(b.ctx, "Shop", before, after)
	}
	b := newBench(t)
	for range 4 {
		report(b, "theirs", "mine")
		report(b, "mine", "mine")
	}
	b.quiet()
	report(b, "theirs", "mine")
	b.want(churn.Shared, "Shop ns/owner", ".url")

	b = newBench(t)
	for range 5 { // another writer removes all of it
		after := b.owner.DeepCopy()
		after.Object["status"] = map[string]any{"url": "mine"}
		b.Reported(b.ctx, "Shop", b.owner, after)
	}
	b.want(churn.Shared, "Shop ns/owner", ".url")

	b = newBench(t)
	for n := range 100 { // progress
		report(b, fmt.Sprint(n), fmt.Sprint(n+1))
	}
	for n := range 100 { // two states
		report(b, fmt.Sprint(n%2), fmt.Sprint((n+1)%2))
	}
	for range 100 { // equal in JSON
		report(b, int64(3), int8(3))
		report(b, []any{"x"}, []string{"x"})
	}
	b.quiet()
	for range 5 {
		report(b, "theirs", []int{1})
	}
	b.want(churn.Shared, "Shop ns/owner", ".url")
}

// TestRenamed: a child that exists under a name of the same form is named.
func TestRenamed(t *testing.T) {
	for _, tt := range []struct {
		name, created, former string
		config, stored        map[string]any
		observed              int64
		named                 bool // the call names the former one
		job                   bool // not a ConfigMap
		applied               bool // the former one, by this process
		managers              []metav1.ManagedFieldsEntry
		found                 bool
	}{
		{name: "a Job for each interval", created: "job-1700000000", former: "job-1600000000", job: true},
		{name: "uid", created: "a-2c7d", former: "a-91fe", found: true},
		{name: "time", created: "job-1700000000", former: "job-1600000000", found: true},
		{name: "applied by the program", created: "a-2c7d", former: "a-91fe", found: true, managers: []metav1.ManagedFieldsEntry{
			{Manager: "kubectl", Operation: metav1.ManagedFieldsOperationApply}, {Manager: manager, Operation: metav1.ManagedFieldsOperationApply},
		}},
		{name: "made by somebody else", created: "a-2c7d", former: "a-91fe", managers: []metav1.ManagedFieldsEntry{
			{Manager: "kubectl", Operation: metav1.ManagedFieldsOperationApply}, {Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate},
		}},
		{name: "content with its name", created: "a-2c7d", former: "a-91fe", config: map[string]any{"app": "x-a-2c7d"}, stored: map[string]any{"app": "x-a-91fe", "default": "y"}, found: true},
		{name: "other content", created: "a-2c7d", former: "a-91fe", config: map[string]any{"app": "x"}, stored: map[string]any{"app": "y"}},
		{name: "less content", created: "a-2c7d", former: "a-91fe", config: map[string]any{"app": "x"}},
		{name: "new spec", created: "a-2c7d", former: "a-91fe", observed: -1},
		{name: "both are named", created: "a-1", former: "a-2", named: true},
		{name: "another word", created: "a-blue", former: "a-gold"},
		{name: "another form", created: "a", former: "a-v2"},
		{name: "another prefix", created: "1-a", former: "2-a"},
		{name: "a release renames", created: "a-v2", former: "a-v1"},
		{name: "a release renames in the middle", created: "a.app12-b", former: "a.app11-b"},
		{name: "a release renames all", created: "v2", former: "v1"},
		{name: "one process numbers", created: "a-v2", former: "a-v1", applied: true, found: true},
		{name: "two numbers", created: "a-v2-b2", former: "a-v1-b1", found: true},
		{name: "ordinal", created: "a-operator-1", former: "a-operator-0", found: true},
		{name: "random text of letters and digits", created: "a-xv1z2", former: "a-xv1z7", found: true},
		{name: "a long number", created: "a-pid4711", former: "a-pid4211", found: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			b.owner.Object["status"] = map[string]any{"observedGeneration": int64(1) + tt.observed}
			former := object("ConfigMap", tt.former, tt.stored)
			former.SetManagedFields(tt.managers)
			created := object("ConfigMap", tt.created, tt.config)
			if tt.job {
				created.SetAPIVersion("batch/v1")
				created.SetKind("Job")
			}
			if tt.applied {
				b.Applied(b.ctx, churn.Apply{Owner: b.owner, Config: former, Manager: manager, After: former, Changed: true})
			}
			b.Created(b.ctx, churn.Apply{Owner: b.owner, Config: created, Manager: manager}, []metav1.Object{former}, func(o metav1.Object) (metav1.Object, bool) {
				if tt.named {
					return nil, true
				}
				return o, true
			})
			if !tt.found {
				b.quiet()
				return
			}
			b.want(churn.Renamed, "ConfigMap ns/"+tt.created)
			if got := b.logs.All()[0].Values["former"]; got != tt.former {
				t.Errorf("former %v, want %s", got, tt.former)
			}
		})
	}
}

// children are those of one kind, of which the reads are counted.
type children struct {
	all  []metav1.Object
	read func()
}

func (c *children) Owned(types.UID) ([]metav1.Object, error) { return c.all, nil }

func (c *children) Whole(string, string) (metav1.Object, bool) {
	c.read()
	return object("ConfigMap", "a-9999", map[string]any{"app": "y"}), true
}

// TestRenamedBound: a call reads at most ten children, and none after its end, however many resemble those that it has
// created.
func TestRenamedBound(t *testing.T) {
	for _, tt := range []struct {
		name          string
		created, ends int // ends is the read that the call ends with
		want          int
	}{
		{name: "one", created: 1, want: 10},
		{name: "many", created: 10, want: 10},
		{name: "the call ends", created: 10, ends: 3, want: 3},
		{name: "the call has ended", created: 10, ends: 0, want: 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			b.owner.Object["status"] = map[string]any{"observedGeneration": int64(1)}
			ctx, cancel := context.WithCancel(b.ctx)
			defer cancel()
			reads := 0
			kind := &children{read: func() {
				if reads++; reads == tt.ends {
					cancel()
				}
			}}
			for n := range 1000 {
				kind.all = append(kind.all, object("ConfigMap", fmt.Sprintf("a-%04d", n+1000), nil))
			}
			var call churn.Call
			for n := range tt.created {
				call.Applied(ctx, &b.Finder, churn.Apply{Owner: b.owner, Config: object("ConfigMap", fmt.Sprintf("a-%04d", n), map[string]any{"app": "x"}), Manager: manager, Changed: true})
			}
			if tt.want == 0 {
				cancel()
			}
			call.End(ctx, &b.Finder, func(schema.GroupKind) churn.Kind { return kind }, func(_ schema.GroupKind, name types.NamespacedName) bool { return name.Name == "a-1000" })
			if reads != tt.want {
				t.Errorf("%d reads, want %d", reads, tt.want)
			}
			b.quiet()
		})
	}
}

// A generated value is a spec whose lists and maps have several levels.
func generated(r *rand.Rand, depth int) any {
	switch r.IntN(6 - min(depth, 2)) {
	case 0:
		return fmt.Sprintf("text %d", r.IntN(100))
	case 1:
		return int64(r.IntN(1000))
	case 2:
		return r.IntN(2) == 0
	case 3:
		list := make([]any, r.IntN(6))
		for i := range list {
			list[i] = generated(r, depth+1)
		}
		return list
	}
	m := map[string]any{}
	for range r.IntN(8) {
		m[fmt.Sprint("k", r.IntN(100))] = generated(r, depth+1)
	}
	return m
}

// TestCorrectVariants: 400 controllers are quiet, in six ways each to change and to keep a child.
func TestCorrectVariants(t *testing.T) {
	variants := map[string]func(b *bench, r *rand.Rand, config func() *unstructured.Unstructured){
		// The configuration follows the owner's spec.
		"new generation": func(b *bench, r *rand.Rand, config func() *unstructured.Unstructured) {
			for n := range 20 {
				b.owner.SetGeneration(int64(n))
				c := config()
				b.apply(c, nil)
				b.apply(c.DeepCopy(), nil)
			}
		},
		// It follows a label or an annotation of the owner.
		"new annotation": func(b *bench, r *rand.Rand, config func() *unstructured.Unstructured) {
			for range 20 {
				b.owner.SetAnnotations(map[string]string{"a": fmt.Sprint(r.Uint64()), "b": "c"})
				b.owner.SetLabels(map[string]string{"a": "b"})
				b.apply(config(), nil)
			}
		},
		// It follows another object, whose events come faster than the child settles, but not always.
		"another input": func(b *bench, r *rand.Rand, config func() *unstructured.Unstructured) {
			for range 20 {
				var c *unstructured.Unstructured
				for range 1 + r.IntN(4) {
					c = config()
					b.apply(c, nil)
				}
				b.rest(c.DeepCopy())
			}
		},
		// The API server adds defaults, and stores other forms of quantities, times and numbers.
		"other forms": func(b *bench, r *rand.Rand, config func() *unstructured.Unstructured) {
			c := config()
			c.Object["more"] = map[string]any{"cpu": "1000m", "for": "60s", "at": "2026-01-01T00:00:00Z", "data": "YWJj\nZGVm", "n": int64(1), "ip": "", "port": int64(0), "null": nil,
				"env": []any{map[string]any{"name": "a", "value": "1"}}}
			stored := c.DeepCopy()
			stored.Object["more"] = map[string]any{"cpu": "1", "for": "1m0s", "at": "2026-01-01T01:00:00+01:00", "data": "YWJjZGVm", "n": 1.0, "ip": "10.0.0.1", "port": int64(30000), "default": "x",
				"env": []any{map[string]any{"name": "theirs", "value": "2"}, map[string]any{"name": "a", "value": "1"}}}
			mount := func(name, path string) any { return map[string]any{"name": name, "mountPath": path} }
			c.Object["mounts"] = []any{mount("data", "/a"), mount("data", "/b")} // a name twice
			stored.Object["mounts"] = []any{mount("data", "/a"), mount("data", "/b")}
			c.Object["injected"] = []any{mount("data", "/a"), mount("data", "/b"), mount("own", "/c")} // one more in front
			stored.Object["injected"] = []any{mount("token", "/t"), mount("data", "/a"), mount("data", "/b"), mount("own", "/c")}
			stored.SetLabels(map[string]string{"theirs": "yes"})
			for range 20 {
				b.Applied(b.ctx, churn.Apply{Owner: b.owner, Config: c.DeepCopy(), Manager: manager, Before: stored, After: stored})
			}
		},
		// Users change the child back now and then.
		"users": func(b *bench, r *rand.Rand, config func() *unstructured.Unstructured) {
			c := config()
			theirs := object(c.GetKind(), c.GetName(), map[string]any{"theirs": "yes"})
			for range 20 {
				b.apply(c.DeepCopy(), theirs)
				if r.IntN(2) == 0 {
					b.rest(c.DeepCopy())
				}
				time.Sleep(time.Duration(20+r.IntN(60)) * time.Second)
			}
		},
		// A list grows and shrinks with other objects.
		"lists": func(b *bench, r *rand.Rand, config func() *unstructured.Unstructured) {
			c := config()
			for n := range 20 {
				items := make([]any, n%5)
				for i := range items {
					items[i] = fmt.Sprint("10.0.0.", i)
				}
				c = c.DeepCopy()
				c.Object["addresses"] = items
				b.apply(c, nil)
				b.rest(c)
			}
		},
	}
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(400) {
			for name, run := range variants {
				b, r := newBench(t), rand.New(rand.NewPCG(seed, 0))
				child := fmt.Sprint("child", r.IntN(3))
				run(b, r, func() *unstructured.Unstructured {
					spec, ok := generated(r, 0).(map[string]any)
					if !ok {
						spec = map[string]any{"v": r.IntN(100)}
						spec["v"] = fmt.Sprint(spec["v"])
					}
					return object("ConfigMap", child, spec)
				})
				if all := b.logs.All(); len(all) > 0 {
					t.Fatalf("%s, seed %d: logged %+v", name, seed, all)
				}
			}
		}
	})
}

// TestBounds: the memory for children, the text of a line and the number of lines are bounded. Two
// children of one kind have one line.
func TestBounds(t *testing.T) {
	b := newBench(t)
	big := strings.Repeat("x", 1<<10)
	for n := range 20_000 {
		b.owner.SetUID(types.UID(fmt.Sprint(n)))
		b.apply(object("ConfigMap", fmt.Sprint(n), map[string]any{"data": strings.Repeat(big, n%100)}), nil)
	}
	children, bytes := b.Held()
	if children > 1024 || bytes > 2<<20 || bytes < 0 {
		t.Errorf("%d children with %d bytes are held", children, bytes)
	}
	b.quiet()

	b = newBench(t)
	for n := range 10 {
		for _, name := range []string{"a", "b"} {
			spec := map[string]any{}
			for i := range 20 {
				spec[fmt.Sprint(i, "\x1b", big)] = fmt.Sprint(n)
			}
			b.apply(object("ConfigMap", name, spec), nil)
		}
	}
	if lines := b.logs.All(); len(lines) != 1 || len(lines[0].Values["paths"].([]string)) != 5 {
		t.Errorf("logged %d lines, want 1 with 5 paths", len(lines))
	}

	b = newBench(t)
	for kind := range 1000 {
		for n := range 5 {
			b.apply(object(fmt.Sprint("Kind", kind), "a", map[string]any{"n": fmt.Sprint(n)}), nil)
		}
	}
	if lines := b.logs.All(); len(lines) != 100 {
		t.Errorf("logged %d lines, want 100", len(lines))
	}
}

// TestTyped: objects of Go types are compared as their JSON.
func TestTyped(t *testing.T) {
	b := newBench(t)
	config := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"namespace": "ns", "name": "a"}, "data": map[string]any{"a": "mine"}}}
	stored := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}, Data: map[string]string{"a": "theirs"}}
	for range 2 {
		b.Applied(b.ctx, churn.Apply{Owner: b.owner, Config: config.DeepCopy(), Manager: manager, Before: stored, After: stored})
	}
	b.want(churn.Rewritten, "ConfigMap ns/a", ".data.a")
}
