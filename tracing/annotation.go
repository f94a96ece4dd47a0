package tracing

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"reflect"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/ssa"
)

// annotation is the annotation of an object that has the traceparent of W3C Trace Context.
const annotation = "traceparent"

// maxValue is the number of bytes of the longest annotation that is parsed. A version after
// 00 can be longer than the 55 bytes of version 00.
const maxValue = 256

// carried returns the sampled span context that an object carries, or an invalid one.
func carried(obj metav1.Object) trace.SpanContext { return parse(obj.GetAnnotations()[annotation]) }

func parse(value string) trace.SpanContext {
	if !maySample(value) {
		return trace.SpanContext{}
	}
	carrier := propagation.MapCarrier{annotation: value}
	sc := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
	if !sc.IsSampled() {
		return trace.SpanContext{}
	}
	return sc
}

// maySample reports whether the flags of a traceparent, the two digits after its ids, have the
// bit of a sampled span. Most annotations need no other check. The length of the value costs
// no time.
func maySample(value string) bool {
	const flags = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0")
	return len(value) > flags && len(value) <= maxValue && strings.IndexByte("13579bdf", value[flags]) >= 0
}

// traceOf returns the trace of a value that may be sampled. Whether the rest of the value is
// valid remains to be checked by parse.
func traceOf(value string) (id trace.TraceID, ok bool) {
	const begin = len("00-")
	_, err := hex.Decode(id[:], []byte(value[begin:begin+2*len(id)]))
	return id, err == nil
}

// current returns the annotation's value for the span of ctx, or "" if it is not sampled.
func current(ctx context.Context) (trace.SpanContext, string) {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() || !sc.IsSampled() {
		return trace.SpanContext{}, ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return sc, carrier[annotation]
}

// Inject writes the trace of ctx into the annotation traceparent of obj. Call it before a
// create, or before an update that is made anyway: an annotation that alone causes an update
// also causes an event. obj must be the caller's own, and not an informer's. If the span of
// ctx is not sampled, obj stays unchanged.
func Inject(ctx context.Context, obj metav1.Object) {
	_, value := current(ctx)
	if value == "" || kube.IsNil(obj) {
		return
	}
	annotations := obj.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[annotation] = value
	obj.SetAnnotations(annotations)
}

// Carry makes an apply carry the trace of its context, in the annotation traceparent. It
// returns request and config for ssa.ApplyChanged, with the same manager and live:
//
//	request, config := tracing.Carry(manager, configMaps.Apply, config, live)
//	_, applied, err := ssa.ApplyChanged(ctx, manager, request, config, live, extract)
//
// Carry adds the annotation that the manager applied before, so that ApplyChanged decides as
// if both had no annotation. If ApplyChanged then calls request, request writes the trace of its
// context in place of that annotation, with these exceptions, which prevent loops:
//
//   - It keeps an annotation of the same trace. A call that the event of an apply caused
//     continues its trace, and so keeps the annotation.
//   - It keeps any annotation in a call without an event in [Events], such as a resync, and in
//     the calls of a Controller whose Window is below one second.
//   - It keeps any annotation if live has no managedFields, which a transform of the informer
//     can remove. ApplyChanged then applies without a change.
//
// config is a configuration of client-go or an unstructured object. Carry and request change
// it; any other type stays unchanged. live is nil or a nil pointer if the object does not
// exist. If the span of the context is not sampled, request writes no new annotation.
func Carry[T metav1.Object, C any](manager ssa.FieldManager, request func(context.Context, C, metav1.ApplyOptions) (T, error), config C, live T) (func(context.Context, C, metav1.ApplyOptions) (T, error), C) {
	if request == nil {
		return nil, config // ApplyChanged returns an error
	}
	exists := !kube.IsNil(live)
	var has string
	if exists {
		has = live.GetAnnotations()[annotation]
	}
	if has != "" && len(has) <= maxValue && applied(live.GetManagedFields(), string(manager)) {
		config = annotated(config, has)
	}
	before := parse(has)
	undecided := exists && len(live.GetManagedFields()) == 0 // ApplyChanged applies, whether or not something changes
	return func(ctx context.Context, config C, options metav1.ApplyOptions) (T, error) {
		now, value := current(ctx)
		if value != "" && now.TraceID() != before.TraceID() && !undecided && (!exists || ctx.Value(keepsKey{}) == nil) {
			config = annotated(config, value)
		}
		return request(ctx, config, options)
	}, config
}

// applied reports whether the manager applied the annotation. Without managedFields, which a
// transform of the informer can remove, it counts as applied.
func applied(fields []metav1.ManagedFieldsEntry, manager string) bool {
	for _, f := range fields {
		if f.Manager != manager || f.Operation != metav1.ManagedFieldsOperationApply || f.Subresource != "" || f.FieldsV1 == nil {
			continue
		}
		var set struct {
			Metadata struct {
				Annotations map[string]any `json:"f:annotations"`
			} `json:"f:metadata"`
		}
		if err := json.Unmarshal(f.FieldsV1.GetRawBytes(), &set); err == nil && set.Metadata.Annotations["f:"+annotation] != nil {
			return true
		}
	}
	return len(fields) == 0
}

// annotated sets the annotation of a configuration. Each configuration of client-go has
// WithAnnotations, which changes and returns it. C can be any, as for the clients of this library.
func annotated[C any](config C, value string) C {
	if kube.IsNil(config) {
		return config
	}
	switch c := any(config).(type) {
	case interface{ WithAnnotations(map[string]string) C }:
		return c.WithAnnotations(map[string]string{annotation: value})
	case metav1.Object:
		annotations := c.GetAnnotations() // a copy, if unstructured
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[annotation] = value
		c.SetAnnotations(annotations)
	default:
		v, with := reflect.ValueOf(config), map[string]string{annotation: value}
		m := v.MethodByName("WithAnnotations")
		if m.IsValid() && m.Type() == reflect.FuncOf([]reflect.Type{reflect.TypeOf(with)}, []reflect.Type{v.Type()}, false) {
			config, _ = m.Call([]reflect.Value{reflect.ValueOf(with)})[0].Interface().(C)
		}
	}
	return config
}
