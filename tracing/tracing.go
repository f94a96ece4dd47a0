package tracing

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/reconcile"
)

const (
	scope = "github.com/controllerkit/controllerkit/tracing" // of the instrumentation

	defaultWindow = 5 * time.Minute
	minWindow     = time.Second // in which the event of an apply arrives
	maxText       = 512         // bytes of a key or an error in a span
)

// Controller traces the calls of one reconcile.Controller: set its Hook to [Controller.Hook].
// Its fields must not change while calls run, and it must not be copied after first use. Its
// methods may be called concurrently.
type Controller[K comparable] struct {
	// Name is the name of the controller. A span is named "reconcile" and this name.
	Name string

	// Provider makes the spans. nil means no spans.
	Provider trace.TracerProvider

	// Ratio is the fraction of new traces that is sampled, before the sampler of the
	// Provider decides. A trace begins with an event of [Events], or with a call
	// without an event. Ratio does not leave out an event that continues a sampled
	// trace. A call that Ratio leaves out costs one allocation, its events included.
	// 0 means 1. If it is negative, only calls that continue a sampled trace are sampled.
	Ratio float64

	// Window is the time for which a trace is continued after its first event. 0 means 5m,
	// and a negative value that no trace is continued. If it is below one second, an apply
	// with Carry adds the trace only to an object that it creates.
	Window time.Duration

	// Keys puts the key of the call and the text of its error into the span. Both can
	// contain names of objects.
	Keys bool

	once   sync.Once // makes the fields below
	tracer trace.Tracer
	begin  []trace.SpanStartOption // of each span
	root   []trace.SpanStartOption // of each span that begins a trace
	out    trace.Span              // of calls that are not sampled

	events events[K]
}

func (c *Controller[K]) init() { c.once.Do(c.setUp) }

func (c *Controller[K]) setUp() {
	if kube.IsNil(c.Provider) {
		return
	}
	c.tracer = c.Provider.Tracer(scope)
	attributes := trace.WithAttributes(attribute.String("reconcile.controller", kube.Printable(c.Name, maxText)))
	c.begin = []trace.SpanStartOption{attributes}
	c.root = []trace.SpanStartOption{attributes, trace.WithNewRoot()}
	c.out = unsampled()
}

// unsampled returns a span that is valid and not sampled, so that the spans below it are not
// sampled either. Its ids are random.
func unsampled() trace.Span {
	var config trace.SpanContextConfig
	for i := range config.TraceID {
		config.TraceID[i] = byte(rand.Uint32()) | 1 // not zero
	}
	for i := range config.SpanID {
		config.SpanID[i] = byte(rand.Uint32()) | 1
	}
	return trace.SpanFromContext(trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(config)))
}

// Hook begins the span of a call. It is a Hook of reconcile.Controller: the returned context
// has the span and, for log lines, its ids, and end ends the span.
func (c *Controller[K]) Hook(ctx context.Context, key K) (_ context.Context, end func(result string, err error)) {
	c.init()
	if c.tracer == nil {
		return ctx, nil
	}
	uncaused := c.events.empty() // so the call begins a trace
	if uncaused && c.leavesOut() {
		return trace.ContextWithSpan(ctx, c.out), nil
	}
	return c.start(ctx, key, uncaused)
}

// leavesOut reports whether Ratio leaves out a call that begins a trace.
func (c *Controller[K]) leavesOut() bool {
	return c.Ratio != 0 && (c.Ratio < 0 || rand.Float64() >= c.Ratio)
}

// decided reports whether Ratio left out the events of a call, which has no noted event.
func (c *Controller[K]) decided(call context.Context) bool {
	if c.Ratio == 0 || c.Ratio >= 1 || !c.events.noted.Load() {
		return false
	}
	changed, _ := call.Value(calls.Changed{}).(bool)
	return changed
}

// start begins the span of a call. If chosen is true, Ratio does not leave it out.
func (c *Controller[K]) start(ctx context.Context, key K, chosen bool) (_ context.Context, end func(result string, err error)) {
	caused := c.events.take(key, c.window())
	if caused.before(ctx) { // Ratio decides once about the events of a standby, which can be many
		caused.since, caused.chosen = time.Time{}, false
	}
	options := c.root
	switch {
	case caused.parent.IsValid():
		ctx, options = trace.ContextWithRemoteSpanContext(ctx, caused.parent), c.begin
	case caused.chosen:
	case !chosen && c.leavesOut(), !caused.caused && c.decided(ctx):
		return trace.ContextWithSpan(ctx, c.out), nil
	}
	if len(caused.links) > 0 {
		links := make([]trace.Link, len(caused.links))
		for i, sc := range caused.links {
			links[i].SpanContext = sc
		}
		options = append(options[:len(options):len(options)], trace.WithLinks(links...))
	}
	call := ctx // without the span, for the triggers
	ctx, span := c.tracer.Start(ctx, c.spanName(), options...)
	if !span.IsRecording() {
		return ctx, nil
	}
	c.describe(call, span, key, caused.since)
	if !caused.caused || c.window() < minWindow {
		ctx = context.WithValue(ctx, keepsKey{}, true)
	}
	sc, retry := span.SpanContext(), cause{caused: caused.caused}
	c.events.see(sc.TraceID())
	logger := klog.FromContext(ctx).WithValues("traceID", sc.TraceID().String(), "spanID", sc.SpanID().String())
	return klog.NewContext(ctx, logger), func(result string, err error) {
		span.SetAttributes(attribute.String("reconcile.result", result))
		switch {
		case err == nil:
		case c.Keys:
			span.SetStatus(codes.Error, kube.PrintableError(err, maxText).Error())
		default:
			span.SetStatus(codes.Error, result)
		}
		span.End()
		if result != controllerkit.ResultSuccess && result != controllerkit.ResultTerminal { // the loop runs the key again; after a terminal error rarely
			c.events.add(retry, sc, true, key)
		}
	}
}

// keepsKey is the key of a context value of calls whose applies keep annotations. See Carry.
type keepsKey struct{}

func (c *Controller[K]) spanName() string {
	if c.Name == "" {
		return "reconcile"
	}
	return "reconcile " + c.Name
}

// describe adds the attributes of a call to its span, and the event of its key.
func (c *Controller[K]) describe(call context.Context, span trace.Span, key K, since time.Time) {
	if c.Keys {
		span.SetAttributes(attribute.String("reconcile.key", kube.Printable(fmt.Sprint(key), maxText)))
	}
	if n := reconcile.Attempt(call); n > 0 {
		span.SetAttributes(attribute.Int("reconcile.attempt", n))
	}
	if triggers := reconcile.Triggers(call); triggers != nil {
		span.SetAttributes(attribute.StringSlice("reconcile.triggers", triggers))
	}
	if !since.IsZero() {
		span.AddEvent("queued", trace.WithTimestamp(since), trace.WithAttributes(attribute.Float64("reconcile.queue_wait", time.Since(since).Seconds())))
	}
}

func (c *Controller[K]) window() time.Duration {
	if c.Window == 0 {
		return defaultWindow
	}
	return c.Window
}
