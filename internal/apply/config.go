package apply

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// maxBytes is the longest request body that the API server reads.
const maxBytes = 3 << 20

// CheckManager rejects the names of field managers that the API server rejects. It also
// rejects invalid UTF-8, which managedFields in JSON show as another name: the owned fields
// would never be found again.
func CheckManager(name string) error {
	switch {
	case name == "":
		return errors.New("the field manager is empty: use a constant that names the controller")
	case len(name) > 128:
		return fmt.Errorf("the field manager %.32q has %d bytes: use at most 128", name, len(name))
	case strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) || !utf8.ValidString(name):
		return fmt.Errorf("the field manager %q has unprintable characters: use letters, digits and dots", name)
	}
	return nil
}

// Config is an encoded apply configuration. It is for one decision, by Unchanged or Taken:
// further ones have only the rest of its budget.
type Config struct {
	JSON            string
	Name, Namespace string
	UID             string // "" if the configuration omits it
	ResourceVersion string // "" if the configuration omits it

	apiVersion, kind string
	forest           *forest // nil if the configuration is too large to compare
	root             int32
}

type unstructuredContent interface{ UnstructuredContent() map[string]any }

// Encode encodes a configuration. It rejects configurations that the API server would
// reject, or would take for another one. The errors name the field.
func Encode(config any) (*Config, error) {
	if kube.IsNil(config) {
		return nil, errors.New("the configuration is nil")
	}
	encoded, err := encode(config)
	if err != nil {
		return nil, fmt.Errorf("encode the configuration: %w", err)
	}
	if len(encoded) > maxBytes {
		return nil, fmt.Errorf("the size of the configuration is %d bytes: the API server reads at most %d", len(encoded), maxBytes)
	}
	c := &Config{JSON: encoded}
	set, err := c.read()
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	switch {
	case c.apiVersion == "":
		return nil, c.wrong("apiVersion", "is empty: set the version of the API")
	case c.kind == "":
		return nil, c.wrong("kind", "is empty: set the kind of the object")
	case c.Name == "":
		return nil, c.wrong("metadata.name", "is empty: server-side apply needs a name and generates none")
	case set["uid"] && c.UID == "":
		return nil, c.wrong("metadata.uid", "is set and empty, and guards nothing: omit it, or read the object first")
	case set["resourceVersion"] && c.ResourceVersion == "":
		return nil, c.wrong("metadata.resourceVersion", "is set and empty, and guards nothing: omit it, or read the object first")
	case set["managedFields"]:
		return nil, c.wrong("metadata.managedFields", "is set: apply the fields that the manager decides, not an object that was read")
	}
	return c, nil
}

// EncodeFor is Encode for a client of a kind and a namespace. It also rejects the
// configuration of another kind or namespace.
func EncodeFor(config any, kind schema.GroupVersionKind, namespace string) (name string, encoded []byte, err error) {
	c, err := Encode(config)
	if err != nil {
		return "", nil, err
	}
	defer c.Release()
	if got := c.GroupVersionKind(); got != kind {
		return "", nil, fmt.Errorf("apiVersion and kind of the configuration of %q are those of %s: use those of %s", c.Name, got, kind)
	}
	if err := kube.CheckNamespace(&metav1.ObjectMeta{Name: c.Name, Namespace: c.Namespace}, namespace); err != nil {
		return "", nil, err
	}
	return c.Name, []byte(c.JSON), nil
}

func (c *Config) wrong(field, format string, args ...any) error {
	return fmt.Errorf("%s of the configuration of %q "+format, append([]any{field, c.Name}, args...)...)
}

// read sets the fields of c. It returns the names of the fields of the metadata that
// the configuration sets to a text, and managedFields.
func (c *Config) read() (map[string]bool, error) {
	set := map[string]bool{}
	f := newForest(len(c.JSON) / 5) // a node takes about 20 bytes; live and the owned fields follow
	root, err := f.parse(c.JSON)
	if errors.Is(err, errLarge) {
		var header struct {
			APIVersion, Kind string
			Metadata         struct {
				Name, Namespace      string
				UID, ResourceVersion *string
				ManagedFields        json.RawMessage
			}
		}
		// The other members are the large ones: to decode them takes a multiple of this.
		for name, value := range members(c.JSON) {
			var err error
			switch name {
			case "apiVersion":
				err = json.Unmarshal([]byte(value), &header.APIVersion)
			case "kind":
				err = json.Unmarshal([]byte(value), &header.Kind)
			case "metadata":
				err = json.Unmarshal([]byte(value), &header.Metadata)
			}
			if err != nil {
				return nil, err
			}
		}
		m := header.Metadata
		c.apiVersion, c.kind, c.Name, c.Namespace = header.APIVersion, header.Kind, m.Name, m.Namespace
		set["managedFields"] = m.ManagedFields != nil
		if m.UID != nil {
			c.UID, set["uid"] = *m.UID, true
		}
		if m.ResourceVersion != nil {
			c.ResourceVersion, set["resourceVersion"] = *m.ResourceVersion, true
		}
		return set, nil
	}
	if err != nil {
		return nil, err
	}
	c.forest, c.root = f, root
	member := func(of int32, name string) string {
		n := f.nodes[f.member(of, 0, "", name)]
		if n.kind != text {
			return ""
		}
		set[name] = true
		return n.value
	}
	metadata := f.member(root, 0, "", "metadata")
	c.apiVersion, c.kind = member(root, "apiVersion"), member(root, "kind")
	c.Name, c.Namespace = member(metadata, "name"), member(metadata, "namespace")
	c.UID, c.ResourceVersion = member(metadata, "uid"), member(metadata, "resourceVersion")
	set["managedFields"] = f.member(metadata, 0, "", "managedFields") != 0
	return set, nil
}

// GroupVersionKind returns the kind of the configuration. If its apiVersion is not valid,
// the group is empty and the version is all of it.
func (c *Config) GroupVersionKind() schema.GroupVersionKind {
	gv, err := schema.ParseGroupVersion(c.apiVersion)
	if err != nil {
		gv = schema.GroupVersion{Version: c.apiVersion}
	}
	return gv.WithKind(c.kind)
}

// Release frees the memory of a configuration that needs no further decision.
func (c *Config) Release() {
	if c.forest != nil {
		c.forest.release()
		c.forest = nil
	}
}

// Match rejects a live object that is not the object of the configuration.
func (c *Config) Match(live metav1.Object) error {
	if c.Name != live.GetName() {
		return c.wrong("metadata.name", "is not that of live, %q", live.GetName())
	}
	if c.Namespace != "" && c.Namespace != live.GetNamespace() {
		return c.wrong("metadata.namespace", "is %q, and live is in %q", c.Namespace, live.GetNamespace())
	}
	// Objects of typed clients have no kind.
	if typed, ok := live.(interface{ GetObjectKind() schema.ObjectKind }); ok {
		if kind := typed.GetObjectKind().GroupVersionKind().Kind; kind != "" && kind != c.kind {
			return c.wrong("kind", "is %q, and live is a %q", c.kind, kind)
		}
	}
	return nil
}

// encode returns the JSON of an object or of a configuration. It saves a copy of the
// text against json.Marshal.
func encode(v any) (string, error) {
	if u, ok := v.(unstructuredContent); ok {
		v = u.UnstructuredContent()
	}
	var text strings.Builder
	err := json.NewEncoder(&text).Encode(v)
	return strings.TrimSuffix(text.String(), "\n"), err
}

// Guard returns the configuration with the uid of live and, if version is true, with
// its resourceVersion: the apply then changes that object or fails. A uid that the
// configuration has stays. Guard copies what it changes.
//
// Every generated configuration of an object embeds a pointer to
// ObjectMetaApplyConfiguration. Guard finds it by its name, because an import of its
// package brings in most of client-go.
func Guard[C any](c *Config, config C, live metav1.Object, version bool) (C, error) {
	preconditions := map[string]string{}
	if c.UID == "" && live.GetUID() != "" {
		preconditions["uid"] = string(live.GetUID())
	}
	if version && live.GetResourceVersion() != "" {
		preconditions["resourceVersion"] = live.GetResourceVersion()
	}
	if len(preconditions) == 0 {
		return config, nil
	}
	guarded, ok := withPreconditions(config, preconditions)
	if !ok {
		return config, c.wrong("metadata.uid", "is not set, and cannot be set to that of live in a %T: set it", config)
	}
	return guarded, nil
}

func withPreconditions[C any](config C, preconditions map[string]string) (_ C, ok bool) {
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
		for name, value := range preconditions {
			meta[name] = value
		}
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
	fields := map[string]string{"uid": "UID", "resourceVersion": "ResourceVersion"}
	for name, value := range preconditions {
		field := meta.Elem().FieldByName(fields[name])
		if !field.IsValid() || field.Kind() != reflect.Pointer || field.Type().Elem().Kind() != reflect.String {
			return config, false
		}
		field.Set(reflect.New(field.Type().Elem()))
		field.Elem().SetString(value)
	}
	copied.Elem().Set(value.Elem())
	copied.Elem().FieldByName(embedded).Set(meta)
	return copied.Interface().(C), true
}

// withoutManagedFields returns a shallow copy of an object, without its managedFields. It
// reports false for types that it cannot copy.
func withoutManagedFields[T metav1.Object](obj T) (copied T, ok bool) {
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
		// A copy of an object whose metadata is behind a pointer would share it with live.
		meta, ok := value.Type().Elem().FieldByName("ObjectMeta")
		if !ok || len(meta.Index) != 1 || meta.Type.Kind() != reflect.Struct {
			return obj, false
		}
		fresh.Elem().Set(value.Elem())
	}
	copied.SetManagedFields(nil)
	return copied, true
}
