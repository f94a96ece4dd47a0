package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// objects are ConfigMaps of a fake API server with a running informer, whose handler feeds a
// Controller.
type objects struct {
	t        *testing.T
	client   *fake.Clientset
	informer cache.SharedIndexInformer
	stop     func()
}

func newObjects(t *testing.T, names ...string) *objects {
	o := &objects{t: t, client: fake.NewClientset()}
	for _, name := range names {
		o.create(name)
	}
	o.informer = informers.NewSharedInformerFactory(o.client, 0).Core().V1().ConfigMaps().Informer()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	o.stop = func() { cancel(); <-ended }
	go func() { defer close(ended); o.informer.RunWithContext(testlog.New().Context(ctx)) }()
	synctest.Wait()
	return o
}

func (o *objects) create(name string) {
	_, err := o.client.CoreV1().ConfigMaps("ns").Create(o.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	o.check(err)
}

func (o *objects) update(name, value string) {
	_, err := o.client.CoreV1().ConfigMaps("ns").Update(o.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: value}}, metav1.UpdateOptions{})
	o.check(err)
}

func (o *objects) delete(name string) {
	o.check(o.client.CoreV1().ConfigMaps("ns").Delete(o.t.Context(), name, metav1.DeleteOptions{}))
}

func (o *objects) check(err error) {
	o.t.Helper()
	if err != nil {
		o.t.Fatal(err)
	}
}

// handle makes the informer feed c.
func (o *objects) handle(c *controller) {
	o.t.Helper()
	_, err := c.Handle(o.informer, enqueue.Handler(c.Source("maps"), func(m *corev1.ConfigMap) []string { return []string{m.Name} }))
	o.check(err)
	synctest.Wait()
}

// takeover is the context of a leader that has seen the last write of the former one at the
// given time.
func takeover(t *testing.T, last time.Time) context.Context {
	ctx := context.WithValue(t.Context(), calls.LastRenewal{}, last)
	return context.WithValue(ctx, calls.Validity{}, t.Context())
}

// TestHandleStandby: while no Run is active, the queue stays empty, however many names come
// and go. The next Run begins with the objects, and with the keys of late events, and its
// latencies do not count the time before the former leader's last renewal.
//
// Proves R7.
func TestHandleStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObjects(t, "a", "b", "c")
		defer o.stop()
		q := queue.New(queue.Config[string]{})
		m := &counts{}
		r := &recorder{}
		c := &controller{Name: "x", Queue: q, Reconcile: r.reconcile, Metrics: m}
		o.handle(c)
		for i := range 50 {
			o.create(fmt.Sprint("short", i))
			o.delete(fmt.Sprint("short", i))
		}
		synctest.Wait()
		time.Sleep(time.Hour)
		o.delete("a")
		o.create("d")
		time.Sleep(30 * time.Second)
		last := time.Now() // of the former leader
		time.Sleep(10 * time.Second)
		o.delete("b")
		o.update("c", "7")
		synctest.Wait()
		if got := q.Pending(); len(got) != 0 {
			t.Fatalf("a standby's queue has %q", got)
		}
		time.Sleep(5 * time.Second)
		logs := newLogs()
		running := start(t, logs.Context(takeover(t, last)), c)
		got := slices.Sorted(slices.Values(r.got()))
		if want := []string{"a", "b", "c", "d"}; !slices.Equal(got, want) {
			t.Errorf("the new leader ran %q, want %q", got, want)
		}
		if got, want := slices.Sorted(slices.Values(m.latencies)), []time.Duration{5 * time.Second, 5 * time.Second, 15 * time.Second, 15 * time.Second}; !slices.Equal(got, want) {
			t.Errorf("the latencies are %v, want %v: those of b and c since their events, those of a and d since the last renewal", got, want)
		}
		o.delete("d")
		synctest.Wait()
		if got := r.got(); got[len(got)-1] != "d" {
			t.Errorf("after an event of the running controller: %q, want d as the last", got)
		}
		running.stop()
		if got := logs.Find("Keys were in the queue before this term"); len(got) > 0 {
			t.Errorf("log: %v", got)
		}
	})
}

// TestHandleNextTerm: the end of a Run empties the queue. Its keys run in the next Run, unless
// another leader was there in between: then only those of objects do.
func TestHandleNextTerm(t *testing.T) {
	for name, another := range map[string]bool{"the same leader": false, "another leader in between": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newObjects(t, "fails", "waits")
				defer o.stop()
				q := queue.New(queue.Config[string]{})
				r := &recorder{fn: func(_ context.Context, key string) (reconcile.Result, error) {
					if key == "waits" {
						return reconcile.Result{RequeueAfter: time.Hour}, nil
					}
					return reconcile.Result{}, errors.New("no")
				}}
				c := &controller{Name: "x", Queue: q, Reconcile: r.reconcile}
				o.handle(c)
				begin := time.Now()
				running := start(t, takeover(t, begin), c)
				time.Sleep(10 * time.Minute)
				o.delete("fails")
				c.Source("webhook").Add("outside")
				synctest.Wait()
				running.stop()
				if got := q.Pending(); len(got) != 0 || q.NumRequeues("fails") != 0 {
					t.Errorf("after Run the queue has %q, and %d failures", got, q.NumRequeues("fails"))
				}
				last, want := time.Now(), []string{"fails", "outside", "waits"}
				time.Sleep(time.Hour)
				if another {
					last, want = time.Now(), []string{"waits"}
				}
				r.mu.Lock()
				r.keys = nil
				r.mu.Unlock()
				running = start(t, takeover(t, last), c)
				if got := slices.Sorted(slices.Values(r.got())); !slices.Equal(got, want) {
					t.Errorf("the next term ran %q, want %q", got, want)
				}
				running.stop()
			})
		})
	}
}

// TestHandleWithoutLeader: without a leader's context, all kept keys run, and no event counts as
// older than Run.
func TestHandleWithoutLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObjects(t, "a")
		defer o.stop()
		m, r := &counts{}, &recorder{}
		c := &controller{Name: "x", Queue: queue.New(queue.Config[string]{}), Reconcile: r.reconcile, Metrics: m}
		o.handle(c)
		o.create("b")
		o.delete("b")
		synctest.Wait()
		time.Sleep(time.Hour)
		running := start(t, t.Context(), c)
		if diff := cmp.Diff([]string{"b", "a"}, r.got()); diff != "" {
			t.Errorf("keys (-want +got):\n%s", diff)
		}
		if want := []time.Duration{0}; !slices.Equal(m.latencies, want) {
			t.Errorf("latencies %v, want %v: that of b, because nobody knows when a changed", m.latencies, want)
		}
		running.stop()
	})
}

// TestHandleNoGhost: an object whose deletion the handler gets while Run begins does not come
// again.
func TestHandleNoGhost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObjects(t, "a", "b")
		defer o.stop()
		c := &controller{Name: "x", Queue: queue.New(queue.Config[string]{}), Reconcile: (&recorder{}).reconcile}
		handler := present{enqueue.Handler(c.Source("maps"), func(m *corev1.ConfigMap) []string { return []string{m.Name} }), map[string]bool{}}
		_, err := c.Handle(vanishing{o.informer, func() { o.delete("b"); time.Sleep(time.Millisecond) }}, handler)
		o.check(err)
		running := start(t, t.Context(), c)
		time.Sleep(time.Second)
		running.stop()
		if want := map[string]bool{"a": true}; !maps.Equal(handler.names, want) {
			t.Errorf("the handler knows %v, want %v", handler.names, want)
		}
	})
}

// vanishing is an informer whose objects change after they are listed.
type vanishing struct {
	cache.SharedIndexInformer
	change func()
}

func (v vanishing) GetStore() cache.Store {
	return vanishingStore{v.SharedIndexInformer.GetStore(), v.change}
}

type vanishingStore struct {
	cache.Store
	change func()
}

func (v vanishingStore) List() []any        { defer v.change(); return v.Store.List() }
func (v vanishingStore) ListKeys() []string { defer v.change(); return v.Store.ListKeys() }

// TestHandleTooMany: if a standby sees more deletions than it keeps, it keeps the latest, and a
// line of log of the next Run reports it.
func TestHandleTooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		c := &controller{Name: "x", Queue: queue.New(queue.Config[string]{}), Reconcile: r.reconcile}
		s := c.Source("maps")
		const many, kept = 10_000, 4096
		for i := range many {
			s.Keep("delete", fmt.Sprint(i))
		}
		for i := range many {
			s.Keep("update", fmt.Sprint("updated", i)) // takes no place of a deletion
		}
		logs := newLogs()
		running := start(t, logs.Context(takeover(t, time.Now())), c)
		got := map[string]bool{}
		for _, key := range r.got() {
			got[key] = true
		}
		for i := many - kept; i < many; i++ {
			if !got[fmt.Sprint(i)] {
				t.Fatalf("the deletion of %d of %d is lost", i, many)
			}
		}
		if limit := 4 * kept; len(got) > limit {
			t.Errorf("%d keys were kept, want at most %d", len(got), limit)
		}
		if len(logs.Find("Deletions before this Run were too many to keep: the keys of the earliest do not run")) != 1 {
			t.Errorf("log: %v", logs.All())
		}
		if len(logs.Find("Changes before this Run were too many to keep: the keys of the earliest run only if an object in a store of Handle has them")) != 1 {
			t.Errorf("log: %v", logs.All())
		}
		running.stop()
		s.Keep("delete", "later")
		running = start(t, logs.Context(takeover(t, time.Now())), c)
		if keys := r.got(); keys[len(keys)-1] != "later" {
			t.Errorf("the second Run did not get the kept key: %q", keys[len(keys)-1])
		}
		s.Keep("delete", "ignored")
		synctest.Wait()
		running.stop()
		if keys := r.got(); keys[len(keys)-1] != "later" {
			t.Error("Keep has added a key while Run was active")
		}
	})
}

// TestHandleKeepsAllLeft: the next Run gets each key that a Run left in its queue, however many,
// such as that of a deletion whose call has failed.
//
// Proves R6.
func TestHandleKeepsAllLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObjects(t)
		defer o.stop()
		r := &recorder{}
		failing := true
		c := &controller{Name: "x", Queue: queue.New(queue.Config[string]{})}
		c.Reconcile = func(ctx context.Context, key string) (reconcile.Result, error) {
			if failing {
				return reconcile.Result{}, errors.New("failed")
			}
			return r.reconcile(ctx, key)
		}
		o.handle(c)
		running := start(t, takeover(t, time.Now()), c)
		const keys = 13000 // more than the latest of deletions
		deletion := func(key string) {
			c.Source("others").AddEvent(event(calls.Delete), controllerkit.AddOptions{}, key)
		}
		for i := range keys {
			deletion(fmt.Sprint(i))
		}
		time.Sleep(10 * time.Second)
		running.stop()
		for i := range keys {
			deletion(fmt.Sprint("standby", i))
		}
		failing = false
		running = start(t, takeover(t, time.Now()), c)
		time.Sleep(time.Second)
		running.stop()
		got := slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(r.got()))), func(key string) bool { return strings.HasPrefix(key, "standby") })
		if len(got) != keys {
			t.Errorf("%d of %d keys ran again", len(got), keys)
		}
	})
}

// TestHandleOldDeletion: the former leader may have retried a deletion for some minutes. Its key
// runs, and counts no latency, and a later event of the key counts from its own time.
func TestHandleOldDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObjects(t, "a", "b")
		defer o.stop()
		m, r := &counts{}, &recorder{}
		c := &controller{Name: "x", Queue: queue.New(queue.Config[string]{}), Reconcile: r.reconcile, Metrics: m}
		o.handle(c)
		o.delete("a")
		time.Sleep(6 * time.Minute)
		o.delete("b")
		time.Sleep(14 * time.Minute)
		running := start(t, takeover(t, time.Now()), c)
		if got := r.got(); !slices.Equal(got, []string{"b"}) {
			t.Errorf("the new leader ran %q, want b", got)
		}
		time.Sleep(time.Hour)
		o.create("b")
		synctest.Wait()
		if want := []time.Duration{0}; !slices.Equal(m.latencies, want) {
			t.Errorf("latencies %v, want %v", m.latencies, want)
		}
		running.stop()
	})
}

// TestHandleBeside: a handler that AddEventHandler added beside those of Handle loses no first
// list, and an error of Handle leaves the Sources as they were.
func TestHandleBeside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, other := newObjects(t), newObjects(t, "x", "y")
		defer o.stop()
		defer other.stop()
		r := &recorder{}
		q := queue.New(queue.Config[string]{})
		c := &controller{Name: "x", Queue: q, Reconcile: r.reconcile}
		handler := enqueue.Handler(c.Source("others"), func(m *corev1.ConfigMap) []string { return []string{m.Name} })
		stopped := informers.NewSharedInformerFactory(o.client, 0).Core().V1().Secrets().Informer()
		ended, cancel := context.WithCancel(testlog.New().Context(t.Context()))
		cancel()
		stopped.RunWithContext(ended)
		if _, err := c.Handle(stopped, handler); err == nil {
			t.Fatal("Handle of a stopped informer returned nil")
		}
		_, err := other.informer.AddEventHandler(handler)
		o.check(err)
		synctest.Wait()
		if got := len(q.Pending()); got != 2 {
			t.Errorf("%d keys after an error of Handle, want 2", got)
		}
		q.Clear()
		o.handle(c)
		_, err = other.informer.AddEventHandler(handler)
		o.check(err)
		synctest.Wait()
		if got := q.Pending(); len(got) > 0 {
			t.Errorf("a standby's queue has %q", got)
		}
		running := start(t, takeover(t, time.Now()), c)
		if got := slices.Sorted(slices.Values(r.got())); !slices.Equal(got, []string{"x", "y"}) {
			t.Errorf("the new leader ran %q, want x and y", got)
		}
		running.stop()
	})
}

// TestHandleBesideList: the first list of a handler beside those of Handle comes to a standby once,
// so the next Run has its keys whenever it came.
//
// Proves R7.
func TestHandleBesideList(t *testing.T) {
	for _, ago := range []time.Duration{time.Minute, 3 * time.Hour} {
		t.Run(ago.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o, other := newObjects(t, "a"), newObjects(t, "x", "y")
				defer o.stop()
				defer other.stop()
				m, r := &counts{}, &recorder{}
				c := &controller{Name: "x", Queue: queue.New(queue.Config[string]{}), Reconcile: r.reconcile, Metrics: m}
				o.handle(c)
				time.Sleep(time.Hour)
				_, err := other.informer.AddEventHandler(enqueue.Handler(c.Source("others"), func(m *corev1.ConfigMap) []string { return []string{m.Name} }))
				o.check(err)
				synctest.Wait()
				time.Sleep(ago)
				running := start(t, takeover(t, time.Now()), c)
				if got := slices.Sorted(slices.Values(r.got())); !slices.Equal(got, []string{"a", "x", "y"}) {
					t.Errorf("the new leader ran %q, want a, x and y", got)
				}
				if len(m.latencies) > 0 {
					t.Errorf("latencies %v of objects of lists", m.latencies)
				}
				running.stop()
			})
		})
	}
}

// TestHandleBesideLongList: the first list of a handler beside those of Handle can be longer than what is kept of
// events.
func TestHandleBesideLongList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObjects(t, "a")
		defer o.stop()
		r := &recorder{}
		c := &controller{Name: "x", Queue: queue.New(queue.Config[string]{}), Reconcile: r.reconcile}
		o.handle(c)
		s, many := c.Source("others"), 10_000
		for i := range many {
			s.AddEvent(controllerkit.Event{Kind: calls.List}, controllerkit.AddOptions{}, fmt.Sprint(i))
		}
		logs := newLogs()
		running := start(t, logs.Context(takeover(t, time.Now())), c)
		got := map[string]bool{}
		for _, key := range r.got() {
			got[key] = true
		}
		if len(got) != many+1 {
			t.Errorf("%d keys ran, want a and the %d of the list", len(got), many)
		}
		if got := fmt.Sprint(logs.All()); strings.Contains(got, "too many") {
			t.Errorf("log: %v", got)
		}
		running.stop()
	})
}

// TestHandleBesideDeletion: an object of the first list of a handler beside those of Handle has the key of another
// object, of the same Source or of another, that is deleted later. The next Run has the key whenever that was.
//
// Proves R7.
func TestHandleBesideDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, other := newObjects(t, "x"), newObjects(t, "x", "y", "y-2")
		defer o.stop()
		defer other.stop()
		r := &recorder{}
		c := &controller{Name: "x", Queue: queue.New(queue.Config[string]{}), Reconcile: r.reconcile}
		o.handle(c)
		_, err := other.informer.AddEventHandler(enqueue.Handler(c.Source("others"), func(m *corev1.ConfigMap) []string { return []string{m.Name[:1]} }))
		o.check(err)
		synctest.Wait()
		o.delete("x")
		other.delete("y-2")
		synctest.Wait()
		time.Sleep(3 * time.Hour)
		running := start(t, takeover(t, time.Now()), c)
		if got := slices.Sorted(slices.Values(r.got())); !slices.Equal(got, []string{"x", "y"}) {
			t.Errorf("the new leader ran %q, want x and y", got)
		}
		running.stop()
	})
}

// TestHandleListPriority: an edit overtakes the objects of the first list, which a standby has before it leads,
// and the keys that an earlier term left in the queue without an event. An edit before the term overtakes them,
// too, also if its call has failed.
func TestHandleListPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var names []string
		for i := range 30 {
			names = append(names, fmt.Sprint("map", i))
		}
		o, other := newObjects(t, names...), newObjects(t, "beside")
		defer o.stop()
		defer other.stop()
		r := &recorder{fn: func(_ context.Context, key string) (reconcile.Result, error) {
			switch key {
			case "fails":
				return reconcile.Result{RequeueAfter: time.Hour}, errors.New("no")
			case "beside":
				return reconcile.Result{RequeueAfter: time.Hour}, nil
			}
			time.Sleep(time.Second)
			return reconcile.Result{}, nil
		}}
		m := &counts{}
		c := &controller{Name: "x", Queue: queue.New(queue.Config[string]{}), Reconcile: r.reconcile, Metrics: m}
		o.handle(c)
		_, err := other.informer.AddEventHandler(enqueue.Handler(c.Source("others"), func(m *corev1.ConfigMap) []string { return []string{m.Name} }))
		o.check(err)
		time.Sleep(time.Minute)
		term := func(before, during string, calls int, want ...string) {
			t.Helper()
			o.update(before, "2")
			synctest.Wait()
			r.keys, m.latencies = nil, nil
			running := start(t, takeover(t, time.Now()), c)
			o.update(during, "2") // while the first call runs
			time.Sleep(time.Duration(calls) * time.Second)
			running.stop()
			first := slices.Sorted(slices.Values(r.got()[:len(want)]))
			if slices.Sort(want); !slices.Equal(first, want) {
				t.Errorf("the first calls of the term were of %q, want %q", first, want)
			}
			if want := []time.Duration{time.Second, 2 * time.Second}; !slices.Equal(m.latencies, want) {
				t.Errorf("latencies %v, want %v: those of the edits, of no key of a list", m.latencies, want)
			}
		}
		c.Source("webhook").Add("fails")
		term("map15", "map29", 5, "map15", "map29", "fails")
		term("map14", "map28", 99, "fails", "map14", "map28")
		if got := slices.Compact(slices.Sorted(slices.Values(r.got()))); len(got) != 32 {
			t.Errorf("the second term ran %d keys: %q, want 32", len(got), got)
		}
	})
}

// TestHandleKeepsNoList: a standby does nothing with the first list of a handler of Handle, because the next Run begins with
// all objects. So the memory of a standby is bounded, however many objects enter its informers. The handler's priority stays.
func TestHandleKeepsNoList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObjects(t, "a", "b", "c")
		defer o.stop()
		q, never := queue.New(queue.Config[string]{}), make(checker)
		c := &controller{Name: "x", Queue: q, Reconcile: (&recorder{}).reconcile, HasSynced: []cache.DoneChecker{never}}
		called := 0
		keys := func(m *corev1.ConfigMap) []string { called++; return []string{m.Name} }
		_, err := c.Handle(o.informer, enqueue.Filter(enqueue.HandlerAt(c.Source("maps"), keys, -500), enqueue.ResourceVersionChanged[*corev1.ConfigMap]))
		o.check(err)
		synctest.Wait()
		if called > 0 {
			t.Errorf("the handler of a standby has got %d objects of a list", called)
		}
		o.delete("c")
		synctest.Wait()
		running := start(t, takeover(t, time.Now()), c)
		got := map[string]int{}
		for _, key := range q.Snapshot().Keys {
			got[key.Key] = key.Priority
		}
		if diff := cmp.Diff(map[string]int{"a": -500, "b": -500, "c": 0}, got); diff != "" {
			t.Errorf("the priorities of the queue (-want +got):\n%s", diff)
		}
		running.stop()
	})
}

// TestHandleKinds: a Source of a standby keeps no key of an event that reports no change.
func TestHandleKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		c := &controller{Name: "x", Queue: queue.New(queue.Config[string]{}), Reconcile: r.reconcile}
		s := c.Source("maps")
		for _, kind := range []string{"list", "resync", "unchanged", "add", "update", "delete", ""} {
			s.Keep(kind, "key "+kind)
		}
		running := start(t, t.Context(), c)
		if diff := cmp.Diff([]string{"key ", "key add", "key delete", "key update"}, slices.Sorted(slices.Values(r.got()))); diff != "" {
			t.Errorf("keys (-want +got):\n%s", diff)
		}
		running.stop()
	})
}

// TestHandleForgotten: if keys were queued while the replica did not lead, because a handler was
// added without Handle or adds to the queue, a line of log names the cure.
func TestHandleForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(queue.Config[string]{})
		c := &controller{Name: "x", Queue: q, Reconcile: (&recorder{}).reconcile}
		q.Add("a")
		c.Source("maps").Add("b")
		logs := newLogs()
		running := start(t, logs.Context(takeover(t, time.Now())), c)
		running.stop()
		lines := logs.Find("Keys were in the queue before this term: add event handlers with Handle, and keys with a Source, so that the queue of a replica that does not lead stays empty")
		if len(lines) != 1 || lines[0].Values["keys"] != 2 {
			t.Errorf("log: %v", logs.All())
		}
		q.Add("a")
		logs = newLogs()
		start(t, logs.Context(t.Context()), c).stop()
		if got := logs.All(); strings.Contains(fmt.Sprint(got), "Handle") {
			t.Errorf("without an election: %v", got)
		}
	})
}

// TestHandleSynced: Run waits until the handlers have got the first list.
func TestHandleSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		c := &controller{Name: "x", Queue: queue.New(queue.Config[string]{}), Reconcile: r.reconcile}
		synced := make(checker)
		if _, err := c.Handle(fakeInformer{registration: registered{checker: synced}}, cache.ResourceEventHandlerFuncs{}); err != nil {
			t.Fatal(err)
		}
		running := start(t, t.Context(), c)
		c.Source("maps").Add("a")
		time.Sleep(time.Minute)
		if got := r.got(); len(got) > 0 {
			t.Errorf("before the handlers are synced Run called %q", got)
		}
		close(synced)
		synctest.Wait()
		if got := r.got(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("after it Run called %q", got)
		}
		running.stop()
	})
}

// TestHandleInput: misuse is an error that names it.
func TestHandleInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &controller{Name: "x", Queue: newTestQueue(), Reconcile: (&recorder{}).reconcile}
		none := cache.ResourceEventHandlerFuncs{}
		for want, err := range map[string]error{
			"reconcile: Handle got a nil informer":                          second(c.Handle(nil, none)),
			"reconcile: Handle got a nil handler: use e.g. enqueue.Handler": second(c.Handle(fakeInformer{}, nil)),
			"reconcile: Handle: stopped":                                    second(c.Handle(fakeInformer{err: errors.New("stopped")}, none)),
		} {
			if fmt.Sprint(err) != want {
				t.Errorf("error %v, want %s", err, want)
			}
		}
		start(t, t.Context(), c).stop() // without the failed handlers
	})
}

func second[T any](_ T, err error) error { return err }

type fakeInformer struct {
	registration cache.ResourceEventHandlerRegistration
	err          error
}

func (f fakeInformer) AddEventHandler(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return f.registration, f.err
}
func (f fakeInformer) GetStore() cache.Store { return cache.NewStore(cache.MetaNamespaceKeyFunc) }

type registered struct{ checker }

func (r registered) HasSynced() bool                     { return cache.IsDone(r.checker) }
func (r registered) HasSyncedChecker() cache.DoneChecker { return r.checker }

// present is a handler that knows the objects that exist. It has no lock.
type present struct {
	cache.ResourceEventHandler
	names map[string]bool
}

func (p present) OnAdd(obj any, isInInitialList bool) {
	p.names[obj.(*corev1.ConfigMap).Name] = true
	p.ResourceEventHandler.OnAdd(obj, isInInitialList)
}

func (p present) OnDelete(obj any) {
	delete(p.names, obj.(*corev1.ConfigMap).Name)
	p.ResourceEventHandler.OnDelete(obj)
}

// TestHandleLosesNothing: whatever Runs begin and end while objects change, the last Run has seen
// the last state of each, deleted ones too. The handler is called by one goroutine at a time, and
// gets no object after its deletion.
//
// Proves R7.
func TestHandleLosesNothing(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			o := newObjects(t)
			defer o.stop()
			var mu sync.Mutex
			seen, exists := map[string]bool{}, map[string]bool{} // whether the last call of a name found it; whether it is there
			c := &controller{Name: "x", Queue: queue.New(queue.Config[string]{}), Workers: 2}
			c.Reconcile = func(_ context.Context, key string) (reconcile.Result, error) {
				_, found, _ := o.informer.GetStore().GetByKey("ns/" + key)
				mu.Lock()
				defer mu.Unlock()
				seen[key] = found
				return reconcile.Result{}, nil
			}
			handler := present{enqueue.Handler(c.Source("maps"), func(m *corev1.ConfigMap) []string { return []string{m.Name} }), map[string]bool{}}
			_, err := c.Handle(o.informer, handler)
			o.check(err)
			var running *running
			for range 400 {
				name := fmt.Sprint(random.IntN(20))
				switch random.IntN(5) {
				case 0, 1, 2:
					if exists[name] {
						o.delete(name)
					} else {
						o.create(name)
					}
					exists[name] = !exists[name]
				case 3:
					time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
				case 4:
					if running == nil {
						running = start(t, t.Context(), c)
					} else {
						running.stop()
						running = nil
					}
				}
			}
			if running == nil {
				running = start(t, t.Context(), c)
			}
			time.Sleep(time.Second)
			running.stop()
			if diff := cmp.Diff(exists, seen); diff != "" {
				t.Errorf("seed %d: the objects and what the calls found (-want +got):\n%s", seed, diff)
			}
			for name, there := range exists {
				if handler.names[name] != there {
					t.Errorf("seed %d: the handler knows %s: %v, want %v", seed, name, handler.names[name], there)
				}
			}
		})
	}
}
