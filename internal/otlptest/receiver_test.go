package otlptest_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configgrpc"
	"go.opentelemetry.io/collector/config/confignet"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/controllerkit/controllerkit/shutdown"
	"github.com/controllerkit/controllerkit/tracing"
)

var update = flag.Bool("update", false, "write the golden file instead of comparing with it")

// TestReceiver exports the golden trace of TestServerWebsites by otlptracehttp to the OTLP
// receiver of the collector, at the stop of a group with Flush. The receiver gets the golden
// tree, and marshals the JSON that docs/tracing.md shows.
func TestReceiver(t *testing.T) {
	spans := recorded(t)
	sink, client := receive(t)
	exporter, err := otlptracehttp.New(t.Context(), otlptracehttp.WithInsecure(), otlptracehttp.WithHTTPClient(client))
	if err != nil {
		t.Fatal(err)
	}
	batcher := sdktrace.NewBatchSpanProcessor(exporter)
	group := &shutdown.Group{}
	group.Add("tracing", tracing.Flush(batcher, time.Minute))
	group.GracePeriod = 20 * time.Minute
	ctx, stop := context.WithCancel(t.Context())
	group.Add("work", func(context.Context) error {
		for _, span := range spans {
			batcher.OnEnd(span)
		}
		stop()
		return nil
	})
	if err := group.Run(ctx); err != nil {
		t.Fatal(err)
	}

	got := ptrace.NewTraces()
	for _, traces := range sink.AllTraces() {
		traces.ResourceSpans().MoveAndAppendTo(got.ResourceSpans())
	}
	want, err := os.ReadFile("../../tracing/testdata/website.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), tree(got)); diff != "" {
		t.Errorf("the receiver got (-want +got):\n%s", diff)
	}
	encoded, err := (&ptrace.JSONMarshaler{}).MarshalTraces(got)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "../../tracing/testdata/received.json", string(encoded)+"\n")
}

// recorded returns the spans of the golden trace.
func recorded(t *testing.T) []sdktrace.ReadOnlySpan {
	encoded, err := os.ReadFile("../../tracing/testdata/website.json")
	if err != nil {
		t.Fatal(err)
	}
	traces, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(encoded)
	if err != nil {
		t.Fatal(err)
	}
	var stubs tracetest.SpanStubs
	for _, s := range all(traces) {
		sc := trace.SpanContextConfig{TraceID: trace.TraceID(s.TraceID()), SpanID: trace.SpanID(s.SpanID()), TraceFlags: trace.FlagsSampled}
		stub := tracetest.SpanStub{
			Name: s.Name(), SpanContext: trace.NewSpanContext(sc), SpanKind: trace.SpanKind(s.Kind()),
			StartTime: s.StartTimestamp().AsTime(), EndTime: s.EndTimestamp().AsTime(), Attributes: attributes(s.Attributes()),
		}
		if !s.ParentSpanID().IsEmpty() {
			sc.SpanID = trace.SpanID(s.ParentSpanID())
			stub.Parent = trace.NewSpanContext(sc)
		}
		for _, e := range s.Events().All() {
			stub.Events = append(stub.Events, sdktrace.Event{Name: e.Name(), Time: e.Timestamp().AsTime(), Attributes: attributes(e.Attributes())})
		}
		stubs = append(stubs, stub)
	}
	return stubs.Snapshots()
}

func attributes(m pcommon.Map) (list []attribute.KeyValue) {
	for key, value := range m.All() {
		switch value.Type() {
		case pcommon.ValueTypeInt:
			list = append(list, attribute.Int64(key, value.Int()))
		case pcommon.ValueTypeDouble:
			list = append(list, attribute.Float64(key, value.Double()))
		case pcommon.ValueTypeSlice:
			var values []string
			for _, v := range value.Slice().All() {
				values = append(values, v.Str())
			}
			list = append(list, attribute.StringSlice(key, values))
		default:
			list = append(list, attribute.String(key, value.AsString()))
		}
	}
	return list
}

// receive starts the receiver of the collector with its default configuration, on a socket. It
// returns the traces that it gets, and a client of the socket.
func receive(t *testing.T) (*consumertest.TracesSink, *http.Client) {
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	config.Protocols.GRPC = configoptional.None[configgrpc.ServerConfig]()
	dir, err := os.MkdirTemp("", "otlp") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "socket")
	address := &config.Protocols.HTTP.GetOrInsertDefault().ServerConfig.NetAddr
	address.Transport, address.Endpoint = confignet.TransportTypeUnix, socket
	sink := &consumertest.TracesSink{}
	receiver, err := factory.CreateTraces(t.Context(), receivertest.NewNopSettings(factory.Type()), config, sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := receiver.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := receiver.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return sink, &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
}

func all(traces ptrace.Traces) (spans []ptrace.Span) {
	for _, resource := range traces.ResourceSpans().All() {
		for _, scope := range resource.ScopeSpans().All() {
			for _, span := range scope.Spans().All() {
				spans = append(spans, span)
			}
		}
	}
	return spans
}

// tree draws spans as TestServerWebsites does.
func tree(traces ptrace.Traces) string {
	spans := all(traces)
	slices.SortStableFunc(spans, func(a, b ptrace.Span) int { return a.StartTimestamp().AsTime().Compare(b.StartTimestamp().AsTime()) })
	var b strings.Builder
	var draw func(parent pcommon.SpanID, depth int)
	draw = func(parent pcommon.SpanID, depth int) {
		for _, span := range spans {
			if span.ParentSpanID() != parent {
				continue
			}
			fmt.Fprintf(&b, "%s%s", strings.Repeat("    ", depth), span.Name())
			for _, key := range []string{"http.response.status_code", "reconcile.attempt", "reconcile.triggers", "reconcile.result"} {
				if v, ok := span.Attributes().Get(key); ok {
					fmt.Fprintf(&b, " %s=%s", key[strings.LastIndex(key, ".")+1:], v.AsString())
				}
			}
			for _, e := range span.Events().All() {
				fmt.Fprintf(&b, " (%s)", e.Name())
			}
			b.WriteString("\n")
			draw(span.SpanID(), depth+1)
		}
	}
	draw(pcommon.SpanID{}, 0)
	return b.String()
}

// golden compares got with a golden file, or writes it.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got), which -update accepts:\n%s", file, diff)
	}
}
