package tracing_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testcost"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/tracing"
)

const manager ssa.FieldManager = "example.com/things"

// sampled returns a context with a sampled span of the trace.
func sampled(ctx context.Context, traceID byte) context.Context {
	return trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{15: traceID}, SpanID: trace.SpanID{7: 1}, TraceFlags: trace.FlagsSampled,
	}))
}

// TestBadAnnotations: an annotation that is no sampled traceparent counts as absent, and an
// annotation of 1 MiB is not read.
func TestBadAnnotations(t *testing.T) {
	good := traceparent(1, 1)
	for name, bad := range map[string]string{
		"text":              "hello",
		"unsampled":         strings.TrimSuffix(good, "01") + "00",
		"no trace":          traceparent(0, 1),
		"no span":           traceparent(1, 0),
		"too short":         good[:54],
		"too long":          good + "0",
		"capitals":          strings.ReplaceAll(good, "01", "0A"),
		"version ff":        "ff" + good[2:],
		"not hexadecimal":   strings.Replace(good, "0000", "00zz", 1),
		"not UTF-8":         strings.Replace(good, "0000", "00\xff\xfe", 1),
		"1 MiB":             good + strings.Repeat("0", 1<<20),
		"1 MiB of a future": "01" + good[2:] + "-" + strings.Repeat("0", 1<<20),
	} {
		r := newRecorder()
		c := &controller{Provider: r}
		note := notes(c)
		note(event{New: object(bad, 1), Created: true})
		note(event{Old: object(good, 1), New: object(bad, 2)})
		call(t.Context(), c, "success", nil)
		if s := r.only(t); s.Parent.IsValid() || len(s.Links) > 0 {
			t.Errorf("%s: the span has the parent %s and the links %v, want none", name, at(s.Parent), s.Links)
		}
	}

	c := &controller{Provider: newRecorder()}
	note := notes(c)
	old, huge := object(strings.Repeat("0", 1<<20), 1), object(strings.Repeat("0", 1<<20), 2)
	if _, bytes := testcost.Of(func() {
		for range 1000 {
			note(event{Old: old, New: huge})
		}
	}); bytes > 1<<20 {
		t.Errorf("1000 events of an annotation of 1 MiB allocate %d bytes", bytes)
	}
	r := newRecorder()
	c = &controller{Provider: r}
	notes(c)(event{New: object("01"+good[2:]+"-more", 1), Created: true})
	call(t.Context(), c, "success", nil)
	if s := r.only(t); at(s.Parent) != "1/1" {
		t.Errorf("a later version of the format is not read: parent %s", at(s.Parent))
	}
}

// TestInject: the annotation is added beside others, and only for a sampled span.
//
// Proves TR5.
func TestInject(t *testing.T) {
	obj := object("", 1)
	tracing.Inject(t.Context(), obj)
	if obj.Annotations != nil {
		t.Errorf("annotations %v without a span", obj.Annotations)
	}
	obj.Annotations = map[string]string{"other": "1"}
	tracing.Inject(sampled(t.Context(), 1), obj)
	if diff := cmp.Diff(map[string]string{"other": "1", "traceparent": traceparent(1, 1)}, obj.Annotations); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	tracing.Inject(sampled(t.Context(), 1), nil)
	tracing.Inject(sampled(t.Context(), 1), (*corev1.ConfigMap)(nil))
}

// TestCarryAny: a configuration carries the trace, also if the type of the request is that of crd.Client.Apply.
//
// Proves TR4.
func TestCarryAny(t *testing.T) {
	untyped := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
	for _, config := range []any{applycorev1.ConfigMap("a", "ns"), applyappsv1.Deployment("a", "ns"), untyped} {
		var got any
		request, config := tracing.Carry(manager, func(_ context.Context, config any, _ metav1.ApplyOptions) (*corev1.ConfigMap, error) {
			got = config
			return nil, nil
		}, config, nil)
		if _, err := request(sampled(t.Context(), 1), config, metav1.ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(got)
		if err != nil {
			t.Fatal(err)
		}
		if value, _, _ := unstructured.NestedString(content, "metadata", "annotations", "traceparent"); value != traceparent(1, 1) || got != config {
			t.Errorf("a %T has the annotation %q, want %q", config, value, traceparent(1, 1))
		}
	}
	for _, other := range []any{nil, (*applycorev1.ConfigMapApplyConfiguration)(nil), struct{}{}, map[string]any{}} {
		request, _ := tracing.Carry(manager, func(context.Context, any, metav1.ApplyOptions) (*corev1.ConfigMap, error) { return nil, nil }, other, nil)
		if _, err := request(sampled(t.Context(), 1), other, metav1.ApplyOptions{}); err != nil {
			t.Errorf("%T: %v", other, err)
		}
	}
}

// TestServerCarry: the annotation of an apply changes with other changes only.
//
// Proves TR4.
func TestServerCarry(t *testing.T) {
	t.Parallel()
	config, requests := testserver.Counted(t)
	namespace := testserver.Namespace(t)
	client := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps(namespace)
	ctx := t.Context()

	var live *corev1.ConfigMap
	// apply applies data in a context and reports whether a request was sent, and whether it
	// changed the object. It checks the trace of the object after it.
	apply := func(ctx context.Context, step, data string, wantSent, wantWritten bool, want string) {
		t.Helper()
		c := applycorev1.ConfigMap("a", namespace).WithData(map[string]string{"a": data})
		before := requests.Load()
		request, c := tracing.Carry(manager, client.Apply, c, live)
		got, sent, err := ssa.ApplyChanged(ctx, manager, request, c, live, applycorev1.ExtractConfigMap)
		if err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		written := live == nil || got.ResourceVersion != live.ResourceVersion
		if sent != wantSent || requests.Load()-before > 0 != wantSent || written != wantWritten || got.Annotations["traceparent"] != want {
			t.Errorf("%s: sent is %t, want %t; written is %t, want %t; the annotation is %q, want %q", step, sent, wantSent, written, wantWritten, got.Annotations["traceparent"], want)
		}
		live = got
	}
	apply(ctx, "unsampled", "1", true, true, "")
	apply(sampled(ctx, 1), "sampled, but no change", "1", false, false, "")
	apply(sampled(ctx, 1), "a change", "2", true, true, traceparent(1, 1))
	apply(sampled(ctx, 2), "no change", "2", false, false, traceparent(1, 1))
	apply(sampled(ctx, 2), "a change in another trace", "3", true, true, traceparent(2, 1))
	apply(ctx, "an unsampled change", "4", true, true, traceparent(2, 1))
	apply(sampled(ctx, 2), "a change in the same trace", "5", true, true, traceparent(2, 1))

	// A call without an event does not write a new trace, and neither does a Controller that
	// continues none: it would take the event of its own apply for a new one.
	c := &controller{Provider: newRecorder()}
	uncaused, _ := c.Hook(ctx, key)
	apply(uncaused, "a change, without an event", "6", true, true, traceparent(2, 1))
	for n, window := range []time.Duration{-1, time.Second - 1} {
		short := &controller{Provider: newRecorder(), Window: window}
		notes(short)(event{New: object("", 1), Created: true})
		began, _ := short.Hook(ctx, key)
		apply(began, "a change, without a window", fmt.Sprint(7+n), true, true, traceparent(2, 1))
	}
	notes(c)(event{New: object(traceparent(3, 1), 1), Created: true})
	caused, end := c.Hook(ctx, key)
	carried := "00-" + trace.SpanContextFromContext(caused).TraceID().String() + "-" + trace.SpanContextFromContext(caused).SpanID().String() + "-01"
	apply(caused, "a change, with an event", "9", true, true, carried)
	end("success", nil)
	// Without managedFields ApplyChanged cannot decide, and so applies.
	for _, data := range []string{"9", "10", "10"} {
		live.ManagedFields = nil
		apply(sampled(ctx, 4), "without managedFields", data, true, data != live.Data["a"], carried)
	}

	// The annotation of another manager is none of ours.
	var err error
	if live, err = client.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"annotations":{"traceparent":"`+traceparent(9, 9)+`"}}}`), metav1.PatchOptions{FieldManager: "other"}); err != nil {
		t.Fatal(err)
	}
	apply(sampled(ctx, 4), "another manager's annotation", "10", false, false, traceparent(9, 9))
	apply(sampled(ctx, 4), "another manager's annotation, and a change", "11", true, true, traceparent(4, 1))
}

// TestCarryUnstructured: an unstructured object carries the annotation, too, and what cannot
// carry one passes unchanged.
func TestCarryUnstructured(t *testing.T) {
	obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
	var got string
	request := func(_ context.Context, config *unstructured.Unstructured, _ metav1.ApplyOptions) (*unstructured.Unstructured, error) {
		got = config.GetAnnotations()["traceparent"]
		return config, nil
	}
	carrying, config := tracing.Carry(manager, request, obj, nil)
	if _, err := carrying(sampled(t.Context(), 1), config, metav1.ApplyOptions{}); err != nil || got != traceparent(1, 1) {
		t.Errorf("the annotation is %q, error %v", got, err)
	}
	if none, _ := tracing.Carry[*corev1.ConfigMap, *applycorev1.ConfigMapApplyConfiguration](manager, nil, nil, nil); none != nil {
		t.Error("Carry of no request is a request")
	}
	strange := func(_ context.Context, config string, _ metav1.ApplyOptions) (*corev1.ConfigMap, error) {
		got = config
		return nil, nil
	}
	other, text := tracing.Carry(manager, strange, "x", object(traceparent(1, 1), 1))
	if _, err := other(sampled(t.Context(), 2), text, metav1.ApplyOptions{}); err != nil || got != "x" {
		t.Errorf("a configuration of another type became %q", got)
	}
	var none *applycorev1.ConfigMapApplyConfiguration
	nothing := func(_ context.Context, config *applycorev1.ConfigMapApplyConfiguration, _ metav1.ApplyOptions) (*corev1.ConfigMap, error) {
		if config != nil {
			t.Error("a nil configuration became another")
		}
		return nil, nil
	}
	nilRequest, none := tracing.Carry(manager, nothing, none, object(traceparent(1, 1), 1))
	if _, err := nilRequest(sampled(t.Context(), 2), none, metav1.ApplyOptions{}); err != nil {
		t.Error(err)
	}
}
