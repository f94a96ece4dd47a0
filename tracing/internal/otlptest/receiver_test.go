package otlptest_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
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
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/crd"
	v1 "github.com/controllerkit/controllerkit/examples/website/api/v1"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/tracing"
	"github.com/controllerkit/controllerkit/tracing/internal/websites"
)

// limit bounds the life of the controllers.
const limit = 2 * time.Minute

var update = flag.Bool("update", false, "write the golden file instead of comparing with it")

func TestMain(m *testing.M) { testserver.Main(m) }

// TestReceiver runs the two controllers of package websites on a real API server, and exports
// their spans by otlptracehttp to the OTLP receiver of the collector, at the stop of the operator.
// The receiver gets the golden tree of TestServerWebsites. With -update, the JSON that the
// collector marshals replaces that of docs/tracing.md; without, only ids, times and the address
// may differ from it.
func TestReceiver(t *testing.T) {
	sink, client := receive(t)
	exporter, err := otlptracehttp.New(t.Context(), otlptracehttp.WithInsecure(), otlptracehttp.WithHTTPClient(client))
	if err != nil {
		t.Fatal(err)
	}
	// The only export is that of the stop.
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter, sdktrace.WithBatchTimeout(time.Hour)),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", "websites"))))
	run(t, provider)

	got := ptrace.NewTraces()
	for _, traces := range sink.AllTraces() {
		traces.ResourceSpans().MoveAndAppendTo(got.ResourceSpans())
	}
	for _, resource := range got.ResourceSpans().All() {
		resource.ScopeSpans().Sort(func(a, b ptrace.ScopeSpans) bool { return a.Scope().Name() > b.Scope().Name() })
		for _, scope := range resource.ScopeSpans().All() {
			scope.Spans().Sort(func(a, b ptrace.Span) bool { return a.StartTimestamp() < b.StartTimestamp() })
		}
	}
	want, err := os.ReadFile("../../testdata/website.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), tree(got)); diff != "" {
		t.Fatalf("the receiver got (-want +got):\n%s", diff)
	}
	encoded, err := (&ptrace.JSONMarshaler{}).MarshalTraces(got)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, append(encoded, '\n'))
}

// run runs the controllers until a Website that a user creates is ready.
func run(t *testing.T, provider *sdktrace.TracerProvider) {
	config, namespace := testserver.Config(t), testserver.Namespace(t)
	source, err := os.ReadFile("../../../examples/website/config/crd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var definition map[string]any
	if err := yaml.Unmarshal(source, &definition); err != nil {
		t.Fatal(err)
	}
	testserver.InstallCRD(t, definition)
	op, r, err := websites.New(config, provider, namespace, false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), limit)
	defer stop()
	ready := false
	r.Settled = func() {
		ready = true
		stop()
	}
	go func() {
		for _, c := range r.Synced { // otherwise the first event could be a list
			select {
			case <-c.Done():
			case <-ctx.Done():
				return
			}
		}
		if err := create(ctx, config, provider, namespace); err != nil {
			t.Error(err)
			stop()
		}
	}()
	if err := op.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if !ready {
		t.Fatalf("the Website is not ready after %v", limit)
	}
}

// create creates a Website as a user does.
func create(ctx context.Context, config *rest.Config, provider *sdktrace.TracerProvider, namespace string) error {
	config = rest.CopyConfig(config)
	config.Wrap(tracing.Transport)
	sites, err := crd.New[*v1.Website](config, websites.Kind(), "websites")
	if err != nil {
		return err
	}
	ctx, span := provider.Tracer("user").Start(ctx, "create a website")
	defer span.End()
	_, err = sites.Namespace(namespace).Create(context.WithoutCancel(ctx), websites.NewSite(ctx), metav1.CreateOptions{})
	return err
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

const (
	file = "../../testdata/received.json"
	page = "../../../docs/tracing.md"
)

var block = regexp.MustCompile("(?s)```json\n.*?```")

// golden compares the JSON of a trace with the golden file, or writes it and the page.
func golden(t *testing.T, got []byte) {
	t.Helper()
	if *update {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text = block.ReplaceAllLiteral(text, slices.Concat([]byte("```json\n"), got, []byte("```")))
		if err := errors.Join(os.WriteFile(page, text, 0o644), os.WriteFile(file, got, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(masked(t, want), masked(t, got)); diff != "" {
		t.Errorf("%s (-want +got), which -update accepts:\n%s", file, diff)
	}
}

// masked returns the JSON of a trace without its times and the address of the server, and with the
// ids numbered in their order.
func masked(t *testing.T, encoded []byte) any {
	var trace any
	if err := json.Unmarshal(encoded, &trace); err != nil {
		t.Fatal(err)
	}
	ids := map[any]string{}
	var mask func(v any)
	mask = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, v := range v {
				mask(v)
			}
		case map[string]any:
			if v["key"] == "server.address" || v["key"] == "reconcile.queue_wait" {
				v["value"] = ""
			}
			for _, key := range slices.Sorted(maps.Keys(v)) {
				value := v[key]
				switch {
				case strings.HasSuffix(key, "TimeUnixNano") || key == "timeUnixNano":
					v[key] = ""
				case strings.HasSuffix(key, "Id") || key == "parentSpanId":
					if ids[value] == "" {
						ids[value] = fmt.Sprint(len(ids))
					}
					v[key] = ids[value]
				default:
					mask(value)
				}
			}
		}
	}
	mask(trace)
	return trace
}
