package ssa

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// maxBytes is the longest body that the API server reads.
const maxBytes = 3 << 20

// encoded is a configuration as it is sent.
type encoded struct {
	json       []byte
	forest     *forest
	root, meta int32
}

func (e *encoded) text(of int32, name string) (string, bool) {
	n := e.forest.nodes[e.forest.member(of, 0, "", name)]
	return n.value, n.kind == text
}

// unstructuredContent is what unstructured objects have.
type unstructuredContent interface{ UnstructuredContent() map[string]any }

func encode(v any) ([]byte, error) {
	if u, ok := v.(unstructuredContent); ok {
		return json.Marshal(u.UnstructuredContent())
	}
	return json.Marshal(v)
}

// encodeText is encode to a text, without a copy.
func encodeText(v any) (string, error) {
	var text strings.Builder
	if u, ok := v.(unstructuredContent); ok {
		v = u.UnstructuredContent()
	}
	err := json.NewEncoder(&text).Encode(v)
	return text.String(), err
}

// encodeConfig encodes a configuration, and refuses what no server could apply.
func encodeConfig(config any) (*encoded, error) {
	if isNil(config) {
		return nil, errors.New("ssa: the configuration is nil")
	}
	b, err := encode(config)
	if err != nil {
		return nil, fmt.Errorf("ssa: encode the configuration: %w", err)
	}
	return &encoded{json: b}, nil
}

// read reads what was encoded, and refuses what the server would refuse or, worse,
// would take for something else. live is nil if there is none.
func (e *encoded) read(live metav1.Object) (err error) {
	if e.forest == nil {
		// A node stands for about 20 bytes. What is compared with goes there too.
		e.forest = newForest(len(e.json) / 5)
	}
	e.forest.nodes = e.forest.nodes[:1]
	if e.root, err = e.forest.parse(string(e.json)); err != nil {
		return fmt.Errorf("ssa: read the configuration: %w", err)
	}
	e.meta = e.forest.member(e.root, 0, "", "metadata")
	name, _ := e.text(e.meta, "name")
	namespace, _ := e.text(e.meta, "namespace")
	wrong := func(field, format string, args ...any) error {
		return fmt.Errorf("ssa: %s of the configuration of %q: %s", field, name, fmt.Sprintf(format, args...))
	}
	for _, field := range []string{"apiVersion", "kind"} {
		if value, _ := e.text(e.root, field); value == "" {
			return wrong(field, "is empty: say what is to be applied")
		}
	}
	if name == "" {
		return wrong("metadata.name", "is empty: server-side apply needs a name and generates none")
	}
	for _, field := range []string{"uid", "resourceVersion"} {
		if value, ok := e.text(e.meta, field); ok && value == "" {
			return wrong("metadata."+field, "is set and empty, which guards nothing: leave it out, or read the object first")
		}
	}
	if e.forest.member(e.meta, 0, "", "managedFields") != 0 {
		return wrong("metadata.managedFields", "is set: apply what the manager decides, not what was read")
	}
	if len(e.json) > maxBytes {
		return wrong("size", "%d bytes, the API server reads at most %d", len(e.json), maxBytes)
	}
	if live == nil {
		return nil
	}
	if name != live.GetName() {
		return wrong("metadata.name", "live is %q, which is another object", live.GetName())
	}
	if namespace != "" && namespace != live.GetNamespace() {
		return wrong("metadata.namespace", "is %q, and live is in %q", namespace, live.GetNamespace())
	}
	// Objects of typed clients have no kind.
	if typed, ok := live.(interface{ GetObjectKind() schema.ObjectKind }); ok {
		kind, _ := e.text(e.root, "kind")
		if of := typed.GetObjectKind().GroupVersionKind().Kind; of != "" && of != kind {
			return wrong("kind", "is %q, and live is a %q", kind, of)
		}
	}
	return nil
}

// withUID returns the configuration with a uid, so that it is applied to that object
// or to none. It copies what it changes. Every generated configuration of an object
// embeds a pointer to ObjectMetaApplyConfiguration; it is found by name, because
// importing its package brings in most of client-go. ok is false for other types.
func withUID[C any](config C, uid string) (_ C, ok bool) {
	value := reflect.ValueOf(config)
	if value.Kind() != reflect.Pointer || value.Elem().Kind() != reflect.Struct {
		return config, false
	}
	copied := reflect.New(value.Type().Elem())
	if u, ok := any(config).(unstructuredContent); ok {
		set, settable := copied.Interface().(interface{ SetUnstructuredContent(map[string]any) })
		content := maps.Clone(u.UnstructuredContent())
		meta, isMap := content["metadata"].(map[string]any)
		if !settable || !isMap {
			return config, false
		}
		meta = maps.Clone(meta)
		meta["uid"] = uid
		content["metadata"] = meta
		set.SetUnstructuredContent(content)
		return copied.Interface().(C), true
	}
	const embedded = "ObjectMetaApplyConfiguration"
	pointer := value.Elem().FieldByName(embedded)
	if !pointer.IsValid() || pointer.Kind() != reflect.Pointer || pointer.IsNil() {
		return config, false
	}
	meta := reflect.New(pointer.Type().Elem())
	meta.Elem().Set(pointer.Elem())
	field := meta.Elem().FieldByName("UID")
	if !field.IsValid() || field.Kind() != reflect.Pointer || field.Type().Elem().Kind() != reflect.String {
		return config, false
	}
	field.Set(reflect.New(field.Type().Elem()))
	field.Elem().SetString(uid)
	copied.Elem().Set(value.Elem())
	copied.Elem().FieldByName(embedded).Set(meta)
	return copied.Interface().(C), true
}

// withManagedFields returns a shallow copy of an object with other managedFields.
// ok is false if the type is not one that can be copied.
func withManagedFields[T metav1.Object](obj T, entries []metav1.ManagedFieldsEntry) (copied T, ok bool) {
	value := reflect.ValueOf(obj)
	if value.Kind() != reflect.Pointer || value.Elem().Kind() != reflect.Struct {
		return obj, false
	}
	fresh := reflect.New(value.Type().Elem())
	copied, ok = fresh.Interface().(T)
	if !ok {
		return obj, false
	}
	if u, isU := any(obj).(unstructuredContent); isU {
		content := maps.Clone(u.UnstructuredContent())
		if meta, ok := content["metadata"].(map[string]any); ok {
			content["metadata"] = maps.Clone(meta)
		}
		set, isSet := any(copied).(interface{ SetUnstructuredContent(map[string]any) })
		if !isSet {
			return obj, false
		}
		set.SetUnstructuredContent(content)
	} else {
		// With its metadata behind a pointer the copy would share them with live.
		meta, ok := value.Type().Elem().FieldByName("ObjectMeta")
		if !ok || len(meta.Index) != 1 || meta.Type.Kind() != reflect.Struct {
			return obj, false
		}
		fresh.Elem().Set(value.Elem())
	}
	copied.SetManagedFields(entries)
	return copied, true
}

func isNil(v any) bool {
	value := reflect.ValueOf(v)
	return !value.IsValid() || value.Kind() == reflect.Pointer && value.IsNil()
}
