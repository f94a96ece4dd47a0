package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/tracing"
)

// TestCalls runs a loop whose key fails once: each call has one span with all that is known
// of it, and the retry continues the trace. The log lines have the ids.
//
// Proves TR1 and TR3.
func TestCalls(t *testing.T) {
	for _, keys := range []bool{false, true} {
		t.Run(fmt.Sprintf("Keys=%t", keys), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, logs := newRecorder(), testlog.New()
				tr := &controller{Name: "things", Provider: r, Keys: keys}
				ctx, stop := context.WithCancel(logs.Context(t.Context()))
				defer stop()
				calls := 0
				c := &reconcile.Controller[types.NamespacedName]{Name: "things", Queue: queue.New(queue.Config[types.NamespacedName]{}), Hook: tr.Hook}
				c.Reconcile = func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
					time.Sleep(time.Second)
					klog.FromContext(ctx).Info("Working")
					if calls++; calls == 1 {
						return reconcile.Result{}, fmt.Errorf("%s fails", key.Name)
					}
					stop()
					return reconcile.Result{}, nil
				}
				handler := enqueue.Filter(enqueue.Handler(c.Source("things"), enqueue.KeyOf[*corev1.ConfigMap]), notes(tr))
				handler.OnAdd(object(traceparent(1, 2), 1), false)
				time.Sleep(3 * time.Second)
				if err := c.Run(ctx); err != nil {
					t.Fatal(err)
				}

				var got []string
				for _, s := range r.GetSpans() {
					line := fmt.Sprintf("%s parent=%s took=%v %v %q", s.Name, at(s.Parent), s.EndTime.Sub(s.StartTime), s.Status.Code, s.Status.Description)
					for _, a := range s.Attributes {
						line += fmt.Sprintf(" %s=%s", a.Key, a.Value.String())
					}
					for _, e := range s.Events {
						line += fmt.Sprintf(" event %s %v before %s", e.Name, s.StartTime.Sub(e.Time), value(e.Attributes, "reconcile.queue_wait"))
					}
					got = append(got, line)
				}
				spans := r.GetSpans()
				if len(spans) != 2 {
					t.Fatalf("spans %q, want 2", got)
				}
				first, description, attribute := spans[0].SpanContext, "error", ""
				if keys {
					description, attribute = "blue fails", " reconcile.key=default/blue"
				}
				want := []string{
					fmt.Sprintf(`reconcile things parent=1/2 took=1s Error %q reconcile.controller=things%s reconcile.attempt=1 reconcile.triggers=["things add"] reconcile.result=error event queued 3s before 3`, description, attribute),
					fmt.Sprintf(`reconcile things parent=%s took=1s Unset "" reconcile.controller=things%s reconcile.attempt=2 reconcile.triggers=["retry"] reconcile.result=success`, at(first), attribute),
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("spans (-want +got):\n%s", diff)
				}
				if spans[1].SpanContext.TraceID() != first.TraceID() {
					t.Error("the retry has another trace")
				}

				for _, message := range []string{"Working", "Reconcile failed", "Reconciled"} {
					lines := logs.Find(message)
					if len(lines) == 0 {
						t.Errorf("no line %q", message)
					}
					for i, line := range lines {
						if message == "Reconciled" {
							i = 1
						}
						if line.Values["traceID"] != first.TraceID().String() || line.Values["spanID"] != spans[i].SpanContext.SpanID().String() || line.Values["key"] != key {
							t.Errorf("the line %q has the values %v, want those of span %d", message, line.Values, i)
						}
					}
				}
			})
		})
	}
}

// TestOrigin: the span of a call continues the trace of its events if that is one and
// recent, and otherwise begins a trace with links.
//
// Proves TR2 and TR3.
func TestOrigin(t *testing.T) {
	one, two, other := traceparent(1, 1), traceparent(1, 2), traceparent(2, 1)
	created := func(annotation string) event { return event{New: object(annotation, 1), Created: true} }
	updated := func(from, to string) event { return event{Old: object(from, 1), New: object(to, 2)} }
	listed := func(annotation string, age time.Duration) event {
		obj := object(annotation, 1)
		obj.CreationTimestamp = metav1.NewTime(time.Now().Add(-age))
		return event{New: obj, Created: true, Initial: true}
	}
	for _, tt := range []struct {
		name   string
		fn     func(c *controller, note func(event))
		parent string
		links  []string
		queued bool
	}{
		{name: "no event", fn: func(*controller, func(event)) {}},
		{name: "no annotation", queued: true, fn: func(_ *controller, note func(event)) { note(created("")) }},
		{name: "created", queued: true, parent: "1/1", fn: func(_ *controller, note func(event)) { note(created(one)) }},
		{name: "an event without a trace beside it", queued: true, parent: "1/1", fn: func(_ *controller, note func(event)) {
			note(created(""))
			note(created(one))
		}},
		{name: "twice", queued: true, parent: "1/1", fn: func(_ *controller, note func(event)) {
			note(created(one))
			note(updated(one, one))
		}},
		{name: "two spans of a trace", queued: true, parent: "1/1", links: []string{"1/2"}, fn: func(_ *controller, note func(event)) {
			note(created(one))
			note(updated(one, two))
		}},
		{name: "two traces", queued: true, links: []string{"1/1", "2/1"}, fn: func(_ *controller, note func(event)) {
			note(created(one))
			note(updated(one, other))
		}},
		{name: "another trace after eight spans", queued: true, links: []string{"1/1", "1/2", "1/3", "1/4", "1/5", "1/6", "1/7", "2/1"}, fn: func(_ *controller, note func(event)) {
			note(created(one))
			for n := range 8 {
				note(updated(traceparent(1, n+1), traceparent(1, n+2)))
			}
			note(updated(traceparent(1, 9), other))
		}},
		{name: "a new trace", queued: true, parent: "2/1", fn: func(_ *controller, note func(event)) { note(updated(one, other)) }},
		{name: "another change of an old object", queued: true, links: []string{"1/1"}, fn: func(_ *controller, note func(event)) { note(updated(one, one)) }},
		{name: "the annotation removed", queued: true, fn: func(_ *controller, note func(event)) { note(updated(one, "")) }},
		{name: "a later change", queued: true, parent: "1/1", fn: func(c *controller, note func(event)) {
			note(created(one))
			call(context.Background(), c, "success", nil)
			time.Sleep(5*time.Minute - 1)
			note(updated(one, one))
		}},
		{name: "a change after the window", queued: true, links: []string{"1/1"}, fn: func(c *controller, note func(event)) {
			note(created(one))
			call(context.Background(), c, "success", nil)
			time.Sleep(5 * time.Minute)
			note(updated(one, one))
		}},
		{name: "a call after the window", queued: true, links: []string{"1/1"}, fn: func(_ *controller, note func(event)) {
			note(created(one))
			time.Sleep(5 * time.Minute)
		}},
		{name: "a window of its own", queued: true, links: []string{"1/1"}, fn: func(c *controller, note func(event)) {
			c.Window = time.Second
			note(created(one))
			time.Sleep(time.Second)
		}},
		{name: "no window", queued: true, links: []string{"1/1"}, fn: func(c *controller, note func(event)) {
			c.Window = -1
			note(created(one))
		}},
		{name: "a resync", fn: func(_ *controller, note func(event)) { note(event{Old: object(one, 1), New: object(one, 1)}) }},
		{name: "the first list, a new object", queued: true, parent: "1/1", fn: func(_ *controller, note func(event)) { note(listed(one, time.Minute)) }},
		{name: "the first list, an old object", queued: true, links: []string{"1/1"}, fn: func(_ *controller, note func(event)) { note(listed(one, time.Hour)) }},
		{name: "deleted, of a known trace", queued: true, parent: "1/1", fn: func(c *controller, note func(event)) {
			note(created(one))
			call(context.Background(), c, "success", nil)
			note(event{Old: object(one, 1), Deleted: true})
		}},
		{name: "deleted, of an old trace", queued: true, links: []string{"1/1"}, fn: func(_ *controller, note func(event)) {
			note(event{Old: object(one, 1), Deleted: true})
		}},
		{name: "after a success", fn: func(c *controller, note func(event)) {
			note(created(one))
			call(context.Background(), c, "success", nil)
		}},
		{name: "after a terminal error", fn: func(c *controller, note func(event)) {
			note(created(one))
			call(context.Background(), c, "terminal", reconcile.ErrTerminal)
		}},
		{name: "another key", fn: func(_ *controller, note func(event)) {
			obj := object(one, 1)
			obj.Name = "green"
			note(event{New: obj, Created: true})
		}},
		{name: "another owner", queued: true, parent: "1/1", fn: func(_ *controller, note func(event)) {
			obj := object(one, 2)
			obj.Name = "green"
			note(event{Old: object("", 1), New: obj})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRecorder()
				c := &controller{Name: "things", Provider: r}
				pass := notes(c)
				tt.fn(c, func(e event) {
					if !pass(e) {
						t.Error("the predicate does not pass an event")
					}
				})
				r.Reset()
				call(context.Background(), c, "success", nil)
				s := r.only(t)
				if at(s.Parent) != tt.parent {
					t.Errorf("the parent is %s, want %s", at(s.Parent), tt.parent)
				}
				if tt.parent != "" && s.SpanContext.TraceID() != s.Parent.TraceID() {
					t.Error("the trace is not that of the parent")
				}
				var links []string
				for _, l := range s.Links {
					links = append(links, at(l.SpanContext))
				}
				if diff := cmp.Diff(tt.links, links); diff != "" {
					t.Errorf("links (-want +got):\n%s", diff)
				}
				if got := len(s.Events) == 1; got != tt.queued {
					t.Errorf("events %v, want one: %t", s.Events, tt.queued)
				}
			})
		})
	}
}

// TestContinues: each result after which the loop runs the key again continues the trace.
//
// Proves TR3.
func TestContinues(t *testing.T) {
	for result, err := range map[string]error{"requeue": nil, "conflict": errors.New("x"), "error": errors.New("x"), "cancelled": context.Canceled} {
		r := newRecorder()
		c := &controller{Provider: r}
		call(context.Background(), c, result, err)
		call(context.Background(), c, "success", nil)
		spans := r.GetSpans()
		if len(spans) != 2 || spans[1].Parent.SpanID() != spans[0].SpanContext.SpanID() || spans[1].SpanContext.TraceID() != spans[0].SpanContext.TraceID() {
			t.Errorf("%s: the next call does not continue the trace: %v", result, spans)
		}
	}
	// An event with another trace ends that.
	r := newRecorder()
	c := &controller{Provider: r}
	call(context.Background(), c, "error", errors.New("x"))
	notes(c)(event{New: object(traceparent(1, 1), 1), Created: true})
	call(context.Background(), c, "success", nil)
	failed, next := r.GetSpans()[0].SpanContext, r.GetSpans()[1]
	if next.Parent.IsValid() || len(next.Links) != 2 || next.Links[0].SpanContext.TraceID() != failed.TraceID() || at(next.Links[1].SpanContext) != "1/1" {
		t.Errorf("a retry with an event of another trace has parent %v and links %v, want none, and both spans", next.Parent, next.Links)
	}
	// The window does not begin again with each retry.
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder()
		c := &controller{Provider: r}
		for range 3 {
			call(t.Context(), c, "requeue", nil)
			time.Sleep(3 * time.Minute)
		}
		spans := r.GetSpans()
		if first := spans[0].SpanContext.TraceID(); len(spans) != 3 || spans[1].SpanContext.TraceID() != first || spans[2].SpanContext.TraceID() == first {
			t.Errorf("calls after 0, 3 and 6 minutes: %v", spans)
		}
	})
}

// TestOwnTrace: an event of an object that a call wrote continues the trace of the call, also
// if the call began it and the event of the write itself did not pass.
//
// Proves TR2.
func TestOwnTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder()
		c := &controller{Provider: r}
		ctx := call(t.Context(), c, "success", nil)
		obj := object("", 1)
		tracing.Inject(ctx, obj)
		own := obj.Annotations["traceparent"]
		for _, tt := range []struct {
			after     time.Duration
			continues bool
		}{{0, true}, {5*time.Minute - 1, true}, {1, false}} {
			time.Sleep(tt.after)
			r.Reset()
			notes(c)(event{Old: object(own, 1), New: object(own, 2)})
			call(t.Context(), c, "success", nil)
			if got := r.only(t).Parent.Equal(trace.SpanContextFromContext(ctx).WithRemote(true)); got != tt.continues {
				t.Errorf("after %v more the trace continues: %t, want %t", tt.after, got, tt.continues)
			}
		}
	})
}

// TestTermIsNoParent: the span of a call is not below a span of Run's context.
//
// Proves TR2.
func TestTermIsNoParent(t *testing.T) {
	r := newRecorder()
	ctx, span := r.Tracer("x").Start(t.Context(), "term")
	defer span.End()
	call(ctx, &controller{Provider: r}, "success", nil)
	if s := r.only(t); s.Parent.IsValid() || s.SpanContext.TraceID() == span.SpanContext().TraceID() {
		t.Errorf("the span is below %v", s.Parent)
	}
}

// TestUnsampled: a call that is not sampled has an unsampled span in its context, however
// that was decided, so that the spans below it are not sampled either.
//
// Proves TR5.
func TestUnsampled(t *testing.T) {
	for _, tt := range []struct {
		name    string
		ratio   float64
		sampler sdktrace.Sampler
	}{
		{"by Ratio", -1, sdktrace.ParentBased(sdktrace.AlwaysSample())},
		{"by the provider", 0, sdktrace.NeverSample()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRecorder(sdktrace.WithSampler(tt.sampler))
			c := &controller{Provider: r, Ratio: tt.ratio}
			notes(c)(event{New: object("", 1), Created: true})
			term, span := newRecorder().Tracer("x").Start(t.Context(), "term")
			defer span.End()
			ctx, end := c.Hook(term, key)
			if end != nil {
				t.Error("Hook returned an end")
			}
			if sc := trace.SpanContextFromContext(ctx); !sc.IsValid() || sc.IsSampled() || sc.TraceID() == span.SpanContext().TraceID() {
				t.Errorf("the span of the context is %v, want an unsampled one", sc)
			}
			_, below := r.Tracer("y").Start(ctx, "below")
			below.End()
			obj := object("", 1)
			tracing.Inject(ctx, obj)
			if len(r.GetSpans()) > 0 || obj.Annotations != nil {
				t.Errorf("spans %v, annotations %v, want none", names(r.GetSpans()), obj.Annotations)
			}
		})
	}
	t.Run("a sampled trace goes on", func(t *testing.T) {
		r := newRecorder()
		c := &controller{Provider: r, Ratio: -1}
		notes(c)(event{New: object(traceparent(1, 1), 1), Created: true})
		call(t.Context(), c, "success", nil)
		if s := r.only(t); at(s.Parent) != "1/1" {
			t.Errorf("the parent is %s", at(s.Parent))
		}
	})
	t.Run("half of them", func(t *testing.T) {
		r := newRecorder()
		c := &controller{Provider: r, Ratio: 0.5}
		for range 1000 {
			call(t.Context(), c, "success", nil)
		}
		if n := len(r.GetSpans()); n < 350 || n > 650 {
			t.Errorf("%d of 1000 calls are sampled, want about half", n)
		}
	})
}

// TestUnsampledCost: a call that Ratio leaves out costs one allocation. BenchmarkHook measures the
// time.
//
// Proves TR5.
func TestUnsampledCost(t *testing.T) {
	ctx := klog.NewContext(t.Context(), klog.Background())
	for _, ratio := range []float64{-1, 1e-12} {
		c := &controller{Name: "things", Provider: newRecorder(), Ratio: ratio}
		if got := testing.AllocsPerRun(10_000, func() { call(ctx, c, "success", nil) }); got > 1 {
			t.Errorf("Ratio %v: a call made %v allocations, want at most 1", ratio, got)
		}
	}
}

// TestUnsampledEventCost: an event that Ratio leaves out adds no allocation to the call and is not
// remembered, also if its object carries the annotation of an earlier trace.
//
// Proves TR5.
func TestUnsampledEventCost(t *testing.T) {
	for _, ratio := range []float64{-1, 1e-12} {
		synctest.Test(t, func(t *testing.T) {
			ctx := klog.NewContext(t.Context(), klog.Background())
			c := &controller{Name: "things", Provider: newRecorder(), Ratio: ratio}
			note := notes(c)
			unsampled, earlier, unknown := strings.TrimSuffix(traceparent(1, 1), "01")+"00", traceparent(1, 1), traceparent(2, 1)
			note(event{New: object(earlier, 1), Created: true})
			call(ctx, c, "success", nil)
			time.Sleep(5 * time.Minute)
			_, known := tracing.Kept(c)
			for _, e := range []event{
				{New: object("", 1), Created: true},
				{New: object(unsampled, 1), Created: true},
				{New: object(unsampled, 1), Created: true, Initial: true},
				{New: object(unknown, 1), Created: true, Initial: true},
				{Old: object("", 1), New: object(unsampled, 2)},
				{Old: object(unknown, 1), New: object("", 2)},
				{Old: object(unknown, 1), New: object(unknown, 2)},
				{Old: object(earlier, 1), New: object(earlier, 2)},
				{Old: object(strings.Repeat("0", 1<<20), 1), New: object("hello", 2)},
				{Old: object("", 1), Deleted: true},
				{Old: object(earlier, 1), Deleted: true},
			} {
				if got := testing.AllocsPerRun(10_000, func() { note(e); call(ctx, c, "success", nil) }); got > 1 {
					t.Errorf("Ratio %v, %+v: the event and its call made %v allocations, want at most 1", ratio, e, got)
				}
				note(e)
				if keys, traces := tracing.Kept(c); keys > 0 || traces > known {
					t.Errorf("Ratio %v, %+v: %d keys and %d traces are remembered, want none and %d", ratio, e, keys, traces, known)
				}
			}
			fresh := object(traceparent(4, 1), 1)
			fresh.CreationTimestamp = metav1.Now()
			for _, e := range []event{
				{New: object(traceparent(3, 1), 1), Created: true},
				{New: fresh, Created: true, Initial: true},
				{Old: object(earlier, 1), New: object(traceparent(5, 1), 2)},
				{Old: object(traceparent(5, 1), 2), New: object(traceparent(5, 1), 3)},
				{Old: object(traceparent(5, 1), 3), Deleted: true},
			} {
				note(e)
				if keys, _ := tracing.Kept(c); keys != 1 {
					t.Errorf("Ratio %v, %+v: %d keys are remembered, want 1", ratio, e, keys)
				}
				obj := e.New
				if e.Deleted {
					obj = e.Old
				}
				sc := trace.SpanContextFromContext(call(ctx, c, "success", nil))
				if !sc.IsSampled() || !strings.Contains(obj.Annotations["traceparent"], sc.TraceID().String()) {
					t.Errorf("Ratio %v, %+v: the call has the span %v, want one that continues the trace", ratio, e, sc)
				}
			}
		})
	}
}

// TestRatioOfEvents runs a loop. An event and its call are sampled by one decision, and so is a
// call without an event.
//
// Proves TR5.
func TestRatioOfEvents(t *testing.T) {
	for _, tt := range []struct {
		name string
		run  func(c *reconcile.Controller[types.NamespacedName], note enqueue.Predicate[*corev1.ConfigMap], n int)
		want string // the link of each span
	}{
		{name: "an event", want: "1/1", run: func(c *reconcile.Controller[types.NamespacedName], note enqueue.Predicate[*corev1.ConfigMap], n int) {
			handler := enqueue.Filter(enqueue.Handler(c.Source("things"), enqueue.KeyOf[*corev1.ConfigMap]), note)
			from, to := object(traceparent(1, 1), 1), object(traceparent(1, 1), 2)
			from.Name, to.Name = fmt.Sprint(n), fmt.Sprint(n)
			handler.OnUpdate(from, to)
		}},
		{name: "an event of a source with a strange name", want: "1/1", run: func(c *reconcile.Controller[types.NamespacedName], note enqueue.Predicate[*corev1.ConfigMap], n int) {
			from, to := object(traceparent(1, 1), 1), object(traceparent(1, 1), 2)
			from.Name, to.Name = fmt.Sprint(n), fmt.Sprint(n)
			note(event{Old: from, New: to})
			c.Source("a resync").Add(types.NamespacedName{Namespace: to.Namespace, Name: to.Name})
		}},
		{name: "no event", run: func(c *reconcile.Controller[types.NamespacedName], _ enqueue.Predicate[*corev1.ConfigMap], n int) {
			c.Source("things")
			c.Queue.Add(types.NamespacedName{Name: fmt.Sprint(n)})
		}},
		{name: "a resync", run: func(c *reconcile.Controller[types.NamespacedName], note enqueue.Predicate[*corev1.ConfigMap], n int) {
			handler := enqueue.Filter(enqueue.Handler(c.Source("things"), enqueue.KeyOf[*corev1.ConfigMap]), note)
			obj := object("", 1)
			obj.Name = fmt.Sprint(n)
			handler.OnUpdate(obj, obj)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRecorder()
				tr := &controller{Name: "things", Provider: r, Ratio: 0.5}
				calls := 0
				c := &reconcile.Controller[types.NamespacedName]{Name: "things", Queue: queue.New(queue.Config[types.NamespacedName]{}), Hook: tr.Hook}
				c.Reconcile = func(context.Context, types.NamespacedName) (reconcile.Result, error) {
					calls++
					return reconcile.Result{}, nil
				}
				note := notes(tr)
				for n := range 1000 {
					tt.run(c, note, n)
				}
				ctx, stop := context.WithCancel(t.Context())
				time.AfterFunc(time.Second, stop)
				if err := c.Run(ctx); err != nil {
					t.Fatal(err)
				}
				spans := r.GetSpans()
				if n := len(spans); calls != 1000 || n < 350 || n > 650 {
					t.Errorf("%d of %d calls are sampled, want about half of 1000", n, calls)
				}
				for _, s := range spans {
					var link string
					if len(s.Links) == 1 {
						link = at(s.Links[0].SpanContext)
					}
					if queued := len(s.Events) == 1; link != tt.want || queued != (tt.want != "") || s.Parent.IsValid() {
						t.Fatalf("a span has the links %v, the events %v and the parent %s, want the link %q", s.Links, s.Events, at(s.Parent), tt.want)
					}
				}
			})
		})
	}
}

// TestNoProvider: without a provider there is no tracing.
func TestNoProvider(t *testing.T) {
	var none *controller
	if pass := notes(none); !pass(event{New: object("", 1), Created: true}) {
		t.Error("the events of no controller do not pass")
	}
	idle := &controller{}
	if ctx, end := idle.Hook(t.Context(), key); end != nil || ctx != t.Context() {
		t.Error("Hook without a provider does something")
	}
	notes(idle)(event{New: object(traceparent(1, 1), 1), Created: true})
	var nilProvider *sdktrace.TracerProvider
	if _, end := (&controller{Provider: nilProvider}).Hook(t.Context(), key); end != nil {
		t.Error("Hook with a nil pointer as provider does something")
	}
}

// TestNames: without Keys no span has the name of an object or the text of an error.
//
// Proves TR6.
func TestNames(t *testing.T) {
	for _, keys := range []bool{false, true} {
		r := newRecorder()
		c := &controller{Name: "things", Provider: r, Keys: keys}
		note := notes(c)
		note(event{New: object("", 1), Created: true})
		call(t.Context(), c, "error", errors.New(`things "blue" is forbidden`+strings.Repeat("!", 1<<20)))
		s := r.only(t)
		text := fmt.Sprint(s.Name, s.Status, s.Attributes, s.Events, s.Links)
		if strings.Contains(text, "blue") != keys || len(text) > 4<<10 {
			t.Errorf("Keys is %t, and the span is %.2000s", keys, text)
		}
	}
}

// TestBounds: a flood of keys, traces and events stays bounded.
//
// Proves TR7.
func TestBounds(t *testing.T) {
	r := newRecorder()
	c := &controller{Provider: r}
	note := notes(c)
	for n := range 100_000 {
		obj := object(traceparent(n+1, 1), 1)
		obj.Name = fmt.Sprint(n)
		note(event{New: obj, Created: true})
	}
	for n := range 1000 {
		note(event{New: object(traceparent(n+1, 1), 1), Created: true})
	}
	keys, traces := tracing.Kept(c)
	if keys != 1<<16 || traces != 1<<12 {
		t.Errorf("%d keys and %d traces are kept, want 2^16 and 2^12", keys, traces)
	}
	for n := range 10 {
		_, end := c.Hook(t.Context(), types.NamespacedName{Namespace: key.Namespace, Name: fmt.Sprint(n)})
		end("success", nil)
	}
	c = &controller{Provider: r}
	note = notes(c)
	for n := range 1000 {
		note(event{New: object(traceparent(n+1, 1), 1), Created: true})
	}
	r.Reset()
	call(t.Context(), c, "success", nil)
	if s := r.only(t); len(s.Links) != 8 {
		t.Errorf("a span has %d links, want 8", len(s.Links))
	}
}

// TestLatestTraces: old traces make room for new ones, and no new one is lost.
//
// Proves TR7.
func TestLatestTraces(t *testing.T) {
	r := newRecorder()
	c := &controller{Provider: r}
	note := notes(c)
	const all, kept = 10_000, 1<<12 - 1 // and that of the call
	for n := 1; n <= all; n++ {
		note(event{New: object(traceparent(n, 1), n), Created: true})
	}
	call(t.Context(), c, "success", nil)
	for _, n := range []int{all, all - kept/2, all - kept + 1, all - kept, 1} { // the calls of the last two begin traces
		// An event of an object that has carried the trace before does not begin its window.
		note(event{Old: object(traceparent(n, 1), 1), New: object(traceparent(n, 1), 2)})
		r.Reset()
		call(t.Context(), c, "success", nil)
		if got, want := r.only(t).Parent.IsValid(), n > all-kept; got != want {
			t.Errorf("a call after an event of trace %d of %d continues it: %v, want %v", n, all, got, want)
		}
	}
}

// TestKeysIsRequired: Events without keys is a mistake in the program.
func TestKeysIsRequired(t *testing.T) {
	defer func() {
		if got := fmt.Sprint(recover()); !strings.Contains(got, "keys is nil") {
			t.Errorf("panic %q", got)
		}
	}()
	tracing.Events[*corev1.ConfigMap](&controller{}, nil)
}

// TestSpanOfPanic: the span of a call that panics has its class.
//
// Proves TR1.
func TestSpanOfPanic(t *testing.T) {
	r := newRecorder()
	call(t.Context(), &controller{Provider: r}, "panic", &reconcile.PanicError{Value: "boom"})
	if s := r.only(t); s.Name != "reconcile" || s.Status.Code != codes.Error || value(s.Attributes, "reconcile.result") != "panic" {
		t.Errorf("span %+v", s)
	}
}
