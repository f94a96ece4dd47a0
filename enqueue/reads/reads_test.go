package reads_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/enqueue/reads"
	"github.com/controllerkit/controllerkit/internal/malformed"
	"github.com/controllerkit/controllerkit/reconcile"
)

var key = name{Namespace: "keys", Name: "k"}

// TestErrors: reads that cannot be remembered are errors that name the cure. Proves RM4.
func TestErrors(t *testing.T) {
	var tr, other tracker
	w := newWorld()
	r := read(t, &tr, w, map[string]func(*secret) []string{"by": index})
	foreign := read(t, &other, newWorld(), nil)
	var ended context.Context
	call(t, &tr, key, func(ctx context.Context) { ended = ctx })
	if ended.Err() != nil {
		t.Fatal("the context of a call is done, so its End decides nothing")
	}
	running := tr.Begin(t.Context(), key)
	defer running.End(true)
	var numbers reads.Tracker[int]
	for _, tc := range []struct {
		name string
		err  error
		want string
	}{
		{"no call", second(r.Get(t.Context(), "a", "b")), "reads: Get: the context is not that of a call: pass on the one that the reconcile got"},
		{"ended", second(r.Get(ended, "a", "b")), "reads: Get: the call of the context has returned: wait for goroutines before the reconcile returns"},
		{"ended, List", second(r.List(ended, "a", labels.Everything())), "reads: List: the call of the context has returned"},
		{"ended, List of nothing", second(r.List(ended, "a", labels.Nothing())), "reads: List: the call of the context has returned"},
		{"no call, RememberList of nothing", r.RememberList(t.Context(), "a", labels.Nothing()), "reads: List: the context is not that of a call"},
		{"ended, ByIndex", second(r.ByIndex(ended, "by", "1")), "reads: ByIndex: the call of the context has returned"},
		{"foreign", second(foreign.Get(running, "a", "b")), "reads: Get: the context is that of another controller's call"},
		{"another type of keys", second(r.Get(numbers.Begin(t.Context(), 1), "a", "b")), "the context is not that of a call"},
		{"nil selector", second(r.List(running, "a", nil)), "the selector is nil: use labels.Everything() for all objects"},
		{"no index", second(r.ByIndex(running, "absent", "1")), `there is no index "absent": use one of ["by"]`},
	} {
		if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) || reconcile.Class(tc.err) != controllerkit.ResultRejected {
			t.Errorf("%s: got %v, want a rejected one with %q", tc.name, tc.err, tc.want)
		}
	}
	if n := tr.Len(); n != 0 {
		t.Errorf("%d reads are remembered after errors", n)
	}
	for _, tc := range []struct {
		name string
		err  error
		want string
	}{
		{"no tracker", second(reads.From[*secret, name](nil, resource, w, nil)), "reads: the Tracker is nil"},
		{"no informer", second(reads.From[*secret](&tr, resource, nil, nil)), "reads: the informer of secrets is nil"},
		{"nil index", second(reads.From(&tr, resource, newWorld(), map[string]func(*secret) []string{"x": nil})), `the index "x" of secrets has an empty name or a nil function`},
		{"index twice", second(reads.From(&tr, resource, w, map[string]func(*secret) []string{"by": index})), "reads: index secrets: "},
	} {
		if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.name, tc.err, tc.want)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestRemember: objects that are read elsewhere are remembered like a Get and a List.
func TestRemember(t *testing.T) {
	var tr tracker
	r := read(t, &tr, newWorld(), nil)
	getter, lister := name{Name: "get"}, name{Name: "list"}
	call(t, &tr, getter, func(ctx context.Context) { must(t, r.Remember(ctx, "a", "b")) })
	call(t, &tr, lister, func(ctx context.Context) {
		must(t, r.RememberList(ctx, "a", parse(t, "app=x")))
		must(t, r.RememberList(ctx, "a", labels.Nothing()))
		if err := r.RememberList(ctx, "a", nil); reconcile.Class(err) != controllerkit.ResultRejected {
			t.Errorf("a nil selector has the error %v", err)
		}
	})
	for _, tt := range []struct {
		obj  *secret
		want []name
	}{
		{object("a", "b", "1", nil), []name{getter}},
		{object("a", "c", "1", map[string]string{"app": "x"}), []name{lister}},
		{object("a", "c", "1", nil), nil},
		{object("b", "b", "1", map[string]string{"app": "x"}), nil},
	} {
		if got := r.Keys(tt.obj); !slices.Equal(got, tt.want) {
			t.Errorf("%s/%s with the labels %v concerns %v, want %v", tt.obj.Namespace, tt.obj.Name, tt.obj.Labels, got, tt.want)
		}
	}
	if err := r.RememberList(t.Context(), "a", labels.Everything()); reconcile.Class(err) != controllerkit.ResultRejected {
		t.Errorf("RememberList without a call has the error %v", err)
	}
}

// TestLookAlikes: selectors whose text is the same, because a value is not validated, are two. Proves RM2.
func TestLookAlikes(t *testing.T) {
	for _, alike := range [][2]labels.Selector{
		{labels.SelectorFromSet(labels.Set{"app": "web,tier=db"}), parse(t, "app=web,tier=db")},
		{labels.SelectorFromSet(labels.Set{"app": "=web"}), parse(t, "app==web")},
	} {
		var tr tracker
		r := read(t, &tr, newWorld(), nil)
		if alike[0].String() != alike[1].String() {
			t.Fatalf("%s and %s are not alike", alike[0], alike[1])
		}
		call(t, &tr, name{Name: "other"}, func(ctx context.Context) { must(t, r.RememberList(ctx, "a", alike[0])) })
		call(t, &tr, key, func(ctx context.Context) { must(t, r.RememberList(ctx, "a", alike[1])) })
		if got := r.Keys(object("a", "b", "1", map[string]string{"app": "web", "tier": "db"})); !slices.Equal(got, []name{key}) {
			t.Errorf("%s: the object concerns %v, want %v", alike[1], got, key)
		}
	}
}

// TestCopies: the objects belong to the caller.
func TestCopies(t *testing.T) {
	var tr tracker
	w := newWorld()
	r := read(t, &tr, w, map[string]func(*secret) []string{"by": index})
	must(t, w.indexer.Add(object("a", "b", "1", map[string]string{"index": "1"})))
	call(t, &tr, key, func(ctx context.Context) {
		one, err := r.Get(ctx, "a", "b")
		must(t, err)
		all, err := r.List(ctx, "", labels.Everything())
		must(t, err)
		by, err := r.ByIndex(ctx, "by", "1")
		must(t, err)
		for _, o := range append(append(all, by...), one) {
			o.Labels["index"] = "changed"
		}
		if len(all) != 1 || len(by) != 1 {
			t.Errorf("List has %d objects, ByIndex %d, want 1 each", len(all), len(by))
		}
	})
	item, _, _ := w.indexer.GetByKey("a/b")
	if got := item.(*secret).Labels["index"]; got != "1" {
		t.Errorf("the cache has the label %q, which a caller has set", got)
	}
}

// TestWrongObjects: objects that do not fit are errors, never missing objects.
func TestWrongObjects(t *testing.T) {
	var tr tracker
	w := newWorld()
	r := read(t, &tr, w, nil)
	must(t, w.indexer.Add(&malformed.Object{ObjectMeta: object("a", "bad", "1", nil).ObjectMeta, Err: malformed.Err}))
	must(t, w.indexer.Add(&corev1.Pod{ObjectMeta: object("p", "pod", "1", nil).ObjectMeta}))
	call(t, &tr, key, func(ctx context.Context) {
		if _, err := r.Get(ctx, "a", "bad"); !errors.Is(err, malformed.Err) {
			t.Errorf("Get of a malformed object has the error %v", err)
		}
		if _, err := r.List(ctx, "a", labels.Everything()); !errors.Is(err, malformed.Err) {
			t.Errorf("List of a malformed object has the error %v", err)
		}
		if _, err := r.Get(ctx, "p", "pod"); err == nil || !strings.Contains(err.Error(), "the cache of secrets has a *v1.Pod: use an informer of *v1.Secret") {
			t.Errorf("Get of a Pod has the error %v", err)
		}
		if all, err := r.List(ctx, "p", labels.Nothing()); err != nil || len(all) > 0 {
			t.Errorf("a List of nothing has %d objects and the error %v", len(all), err)
		}
	})
}

// TestClose: a Reader that is closed returns its error, and tells whom it concerns.
func TestClose(t *testing.T) {
	var tr tracker
	r, other := read(t, &tr, newWorld(), nil), read(t, &tr, newWorld(), nil)
	reader, lister, stranger, nothing := name{Name: "get"}, name{Name: "list"}, name{Name: "other"}, name{Name: "nothing"}
	call(t, &tr, reader, func(ctx context.Context) { _, _ = r.Get(ctx, "a", "b"); _, _ = r.Get(ctx, "a", "c") })
	call(t, &tr, lister, func(ctx context.Context) { _, _ = r.List(ctx, "", parse(t, "a=b")) })
	call(t, &tr, stranger, func(ctx context.Context) { _, _ = other.Get(ctx, "a", "b") })
	closed := errors.New("closed")
	if keys := r.Close(closed); len(keys) != 2 || keys[0] != reader && keys[0] != lister || keys[0] == keys[1] {
		t.Errorf("Close returns %v, want the keys that have read", keys)
	}
	call(t, &tr, stranger, func(ctx context.Context) {
		if _, err := r.Get(ctx, "a", "b"); !errors.Is(err, closed) {
			t.Errorf("Get has the error %v", err)
		}
		if _, err := r.List(ctx, "a", labels.Everything()); !errors.Is(err, closed) {
			t.Errorf("List has the error %v", err)
		}
	})
	call(t, &tr, nothing, func(ctx context.Context) {
		if _, err := r.List(ctx, "a", labels.Nothing()); !errors.Is(err, closed) {
			t.Errorf("List of nothing has the error %v", err)
		}
	})
	if keys := r.Close(nil); len(keys) != 4 {
		t.Errorf("Close(nil) returns %v, want four keys: a read that failed is remembered", keys)
	}
	call(t, &tr, key, func(ctx context.Context) {
		if _, err := r.Get(ctx, "a", "b"); !apierrors.IsNotFound(err) {
			t.Errorf("Get has the error %v after Close(nil)", err)
		}
	})
}

// TestGoroutines: a call may read in several goroutines, and calls of several keys at once.
func TestGoroutines(t *testing.T) {
	var tr tracker
	w := newWorld()
	r := read(t, &tr, w, nil)
	h := r.Handler(sink{w})
	var g sync.WaitGroup
	for k := range 4 {
		g.Go(func() {
			for range 20 {
				call(t, &tr, name{Name: fmt.Sprint(k)}, func(ctx context.Context) {
					var own sync.WaitGroup
					for i := range 40 {
						own.Go(func() {
							_, _ = r.Get(ctx, "a", fmt.Sprint(i))
							_, _ = r.List(ctx, "a", labels.Everything())
						})
					}
					own.Wait()
				})
			}
		})
	}
	g.Go(func() {
		for i := range 200 {
			r.Keys(object("a", fmt.Sprint(i%40), "1", nil))
		}
	})
	g.Wait()
	h.OnAdd(object("a", "1", "1", nil), false)
	if got := len(w.take()); got != 4 {
		t.Errorf("%d keys are added, want 4", got)
	}
	if n := tr.Len(); n != 4*41 {
		t.Errorf("%d reads are remembered, want %d", n, 4*41)
	}
}

// TestOverlap: if a caller runs two calls of one key at once, nothing that they read is forgotten before both
// have ended.
func TestOverlap(t *testing.T) {
	var tr tracker
	r := read(t, &tr, newWorld(), nil)
	a, b := tr.Begin(t.Context(), key), tr.Begin(t.Context(), key)
	_, _ = r.Get(a, "a", "1")
	_, _ = r.Get(b, "a", "2")
	a.End(true)
	a.End(true)
	if n := tr.Len(); n != 2 {
		t.Errorf("%d reads are remembered, want 2", n)
	}
	b.End(true)
	if keys := r.Keys(object("a", "2", "", nil)); len(keys) != 1 || tr.Len() != 1 {
		t.Errorf("%v has read the object, and %d reads are remembered", keys, tr.Len())
	}
}

// TestOverlapShared: if two calls of one key that run at once read the same object, it is not forgotten, whichever
// call reads it last and whichever ends last. Proves RM1.
func TestOverlapShared(t *testing.T) {
	for _, tc := range []struct {
		name          string
		readsB, endsB bool // the call that began second reads last, and ends last
	}{
		{"the first reads last", false, true},
		{"the first reads and ends last", false, false},
		{"the second reads last", true, false},
		{"the second reads and ends last", true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var tr tracker
			r := read(t, &tr, newWorld(), nil)
			a, b := tr.Begin(t.Context(), key), tr.Begin(t.Context(), key)
			_, _ = r.Get(a, "a", "other")
			_, _ = r.Get(b, "a", "shared")
			_, _ = r.Get(a, "a", "shared")
			if tc.readsB {
				_, _ = r.Get(b, "a", "shared")
			}
			if tc.endsB {
				a.End(true)
				b.End(true)
			} else {
				b.End(true)
				a.End(true)
			}
			if keys := r.Keys(object("a", "shared", "", nil)); len(keys) != 1 {
				t.Errorf("%v has read the object that both calls have read", keys)
			}
			call(t, &tr, key, func(context.Context) {})
			if n := tr.Len(); n != 0 {
				t.Errorf("%d reads are left after a call that reads nothing", n)
			}
		})
	}
}

// TestResync: an update of the same version adds nothing, and a deletion that was missed adds the key. Proves RM1.
func TestResync(t *testing.T) {
	var tr tracker
	w := newWorld()
	r := read(t, &tr, w, nil)
	h := r.Handler(sink{w})
	call(t, &tr, key, func(ctx context.Context) { _, _ = r.Get(ctx, "a", "b") })
	o := object("a", "b", "1", nil)
	h.OnUpdate(o, o)
	if got := w.take(); len(got) > 0 {
		t.Errorf("a resync adds %v", got)
	}
	h.OnDelete(cache.DeletedFinalStateUnknown{Key: "a/b"})
	if got := w.take(); got[key] != 1 {
		t.Errorf("a deletion that was missed adds %v", got)
	}
}

// TestOnce: an event adds a key once, also if it has read an object in many ways. Proves RM1, RM2 and RM3.
func TestOnce(t *testing.T) {
	var tr tracker
	w := newWorld()
	r := read(t, &tr, w, nil)
	for k := range 40 {
		call(t, &tr, name{Name: fmt.Sprint(k)}, func(ctx context.Context) {
			_, _ = r.Get(ctx, "a", "b")
			_, _ = r.List(ctx, "a", labels.Everything())
			_, _ = r.List(ctx, "", parse(t, "!x"))
		})
		if keys := r.Keys(object("a", "b", "1", nil)); len(keys) != k+1 {
			t.Fatalf("%d keys after %d calls", len(keys), k+1)
		}
	}
	if keys := r.Keys(object("b", "b", "1", map[string]string{"x": ""})); len(keys) > 0 {
		t.Errorf("an object that nobody has read concerns %v", keys)
	}
}

// TestBuckets: a selector that nobody reads any more leaves nothing, while others stay.
func TestBuckets(t *testing.T) {
	var tr tracker
	r := read(t, &tr, newWorld(), nil)
	stays := name{Name: "stays"}
	call(t, &tr, stays, func(ctx context.Context) { _, _ = r.List(ctx, "", parse(t, "app=x")) })
	for _, tt := range []struct {
		selector string
		buckets  int // with that of stays
		forbids  int // namespaces
	}{
		{"app in (a,b,c)", 4, 0}, {"app", 2, 0}, {"!app", 2, 1}, {"!app,app!=x,!tier", 2, 1}, {"!app,tier", 2, 0}, {"app,!tier", 2, 0}, {"app!=x", 2, 0},
		{"app=y,tier in (1,2)", 2, 0}, {"tier in (1,2),app=y", 2, 0}, {"app=x", 2, 0},
	} {
		call(t, &tr, key, func(ctx context.Context) { _, _ = r.List(ctx, "a", parse(t, tt.selector)) })
		if buckets, forbids := tr.Buckets(), tr.Forbidden(); buckets != tt.buckets || forbids != tt.forbids || tr.Len() != 2 {
			t.Errorf("%s: %d buckets, %d namespaces with a forbidden label, and %d reads, want %d, %d and 2", tt.selector, buckets, forbids, tr.Len(), tt.buckets, tt.forbids)
		}
	}
	call(t, &tr, key, func(context.Context) {})
	if keys := r.Keys(object("a", "b", "1", map[string]string{"app": "x"})); tr.Buckets() != 1 || len(keys) != 1 || keys[0] != stays {
		t.Errorf("%d buckets, and %v has listed the object", tr.Buckets(), keys)
	}
}

// TestNoAllocation: an event that concerns nobody allocates nothing.
func TestNoAllocation(t *testing.T) {
	var tr tracker
	r := read(t, &tr, newWorld(), nil)
	call(t, &tr, key, func(ctx context.Context) {
		_, _ = r.Get(ctx, "a", "b")
		_, _ = r.List(ctx, "a", parse(t, "app=x"))
	})
	o := object("a", "c", "1", map[string]string{"app": "y", "tier": "z"})
	if got := testing.AllocsPerRun(100, func() {
		if len(r.Keys(o)) > 0 {
			t.Error("the object concerns a key")
		}
	}); got > 0 {
		t.Errorf("%v allocations", got)
	}
}

// TestManyReads: 10,000 reads in one call cost no more than linear time, and are forgotten like few.
func TestManyReads(t *testing.T) {
	var tr tracker
	r := read(t, &tr, newWorld(), nil)
	for _, n := range []int{10_000, 10_000, 9_000, 1, 0} {
		call(t, &tr, key, func(ctx context.Context) {
			for i := range n {
				_, _ = r.Get(ctx, "a", fmt.Sprint(i))
			}
		})
		if got := tr.Len(); got != n {
			t.Errorf("%d reads are remembered, want %d", got, n)
		}
	}
}

func BenchmarkEventOfNobody(b *testing.B) {
	var tr tracker
	r, _ := reads.From[*secret](&tr, resource, newWorld(), nil)
	for k := range 100_000 {
		call := tr.Begin(b.Context(), name{Name: fmt.Sprint(k)})
		for i := range 3 {
			_, _ = r.Get(call, "a", fmt.Sprint(k, i))
		}
		call.End(true)
	}
	o := object("b", "c", "1", map[string]string{"app": "y", "tier": "z"})
	for b.Loop() {
		r.Keys(o)
	}
}

func BenchmarkSelectors(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		for kind, format := range map[string]string{"equal": "app=x%d", "in": "app in (x%d,y%[1]d),tier", "exists": "app%d", "not": "app!=x%d,nobody%[1]d!=1", "absent": "!app,!nobody%d", "mixed": ""} {
			b.Run(fmt.Sprintf("%s-%d", kind, n), func(b *testing.B) {
				var tr tracker
				r, _ := reads.From[*secret](&tr, resource, newWorld(), nil)
				for k := range n {
					format := format
					if format == "" {
						format = []string{"app=x%d", "app in (x%d,y%[1]d),tier", "app%d"}[k%3]
					}
					selector, err := labels.Parse(fmt.Sprintf(format, k))
					if err != nil {
						b.Fatal(err)
					}
					call := tr.Begin(b.Context(), name{Name: fmt.Sprint(k)})
					_, _ = r.List(call, "", selector)
					call.End(true)
				}
				o := object("b", "c", "1", map[string]string{"app": "x5", "tier": "z", "a": "b", "c": "d"})
				for b.Loop() {
					r.Keys(o)
				}
			})
		}
	}
}

func BenchmarkCall(b *testing.B) {
	var tr tracker
	w := newWorld()
	r, _ := reads.From[*secret](&tr, resource, w, nil)
	b.ReportAllocs()
	for b.Loop() {
		call := tr.Begin(b.Context(), key)
		for _, n := range []string{"x", "y", "z"} {
			_, _ = r.Get(call, "a", n)
		}
		call.End(true)
	}
}
