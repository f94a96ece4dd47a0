package kstatus

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"math"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/internal/fields"
)

// view is an object, or an item of one of its lists, as the rules read it.
type view struct {
	generation int64
	conditions []condition
	content    any
	path       string  // of content in the object
	wrong      *string // the field of the object that has the wrong type
}

// nameOf returns the name of an object's kind, or of its Go type.
func nameOf(obj metav1.Object) string {
	kind, _ := kindOf(obj)
	return kind.Kind
}

// kindOf returns the kind that an object has or, if that is empty, the kind of its Go type. It
// is not known if that is not a type of a built-in kind.
func kindOf(obj metav1.Object) (_ schema.GroupKind, known bool) {
	if o, ok := obj.(runtime.Object); ok {
		if kind := o.GetObjectKind().GroupVersionKind(); kind.Kind != "" {
			return kind.GroupKind(), true
		}
	}
	t := reflect.TypeOf(obj)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	kind := schema.GroupKind{Group: t.PkgPath(), Kind: t.Name()}
	group, known := groupOf(kind.Group)
	if known {
		kind.Group = group
	}
	return kind, known
}

// groupOf returns the API group of a package of Go types, such as k8s.io/api/rbac/v1.
func groupOf(pkg string) (group string, known bool) {
	dir := pkg[:max(strings.LastIndexByte(pkg, '/'), 0)]
	switch dir {
	case "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions":
		return "apiextensions.k8s.io", true
	case "k8s.io/kube-aggregator/pkg/apis/apiregistration":
		return "apiregistration.k8s.io", true
	}
	switch name := strings.TrimPrefix(dir, "k8s.io/api/"); name {
	case dir: // of another module
	case "core":
		return "", true
	case "apps", "autoscaling", "batch", "extensions", "policy":
		return name, true
	case "admission", "admissionregistration", "apidiscovery", "authentication", "authorization", "certificates", "coordination", "discovery",
		"events", "imagepolicy", "networking", "node", "resource", "scheduling", "storage", "storagemigration":
		return name + ".k8s.io", true
	case "apiserverinternal":
		return "internal.apiserver.k8s.io", true
	case "flowcontrol":
		return "flowcontrol.apiserver.k8s.io", true
	case "rbac":
		return "rbac.authorization.k8s.io", true
	}
	return "", false
}

// read reads an object and its conditions of the types that rules read, and of more types.
func read(obj metav1.Object, more ...string) (*view, error) {
	v := &view{generation: obj.GetGeneration(), wrong: new(string)}
	switch o := obj.(type) {
	case *metav1.PartialObjectMetadata:
		return nil, errors.New("the object has metadata only")
	case *unstructured.Unstructured:
		v.content = o.Object
	default:
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
		if err != nil {
			return nil, fmt.Errorf("read the object as JSON: %w", err)
		}
		v.content = content
	}
	newest := int64(0) // generation that a condition is about
	for c := range v.list("status", "conditions") {
		generation, _ := c.number("observedGeneration")
		newest = max(newest, generation)
		if kind := c.text("type"); (isRead(kind) || slices.Contains(more, kind)) && v.condition(kind) == nil {
			v.conditions = append(v.conditions, condition{kind, c.text("status"), c.text("reason"), c.text("message"), generation, false})
		}
	}
	for i := range v.conditions {
		// A condition without a generation is about no newer one than its neighbors.
		about := cmp.Or(v.conditions[i].generation, newest)
		v.conditions[i].old = about != 0 && about < v.generation
	}
	return v, nil
}

// isRead reports whether a rule reads the conditions of a type.
func isRead(kind string) bool {
	switch kind {
	case "Available", "Complete", "Established", "Failed", "NamesAccepted", "PodScheduled", "Progressing", "Ready", "Reconciling",
		"ReplicaFailure", "Stalled", "Suspended":
		return true
	}
	return false
}

// condition returns the first condition of a type, or nil.
func (v *view) condition(kind string) *condition {
	for i := range v.conditions {
		if v.conditions[i].kind == kind {
			return &v.conditions[i]
		}
	}
	return nil
}

// at returns the field of a path, the zero value if it is absent. It notes a field of
// another type.
func at[T any](v *view, path []string) (result T) {
	value := v.content
	for i, name := range path {
		content, ok := value.(map[string]any)
		if !ok {
			v.note(value, path[:i])
			return result
		}
		value = content[name]
	}
	result, ok := value.(T)
	if !ok {
		v.note(value, path)
	}
	return result
}

func (v *view) note(value any, path []string) {
	if value != nil || len(path) == 0 {
		*v.wrong = strings.Trim(v.path+"."+strings.Join(path, "."), ".")
	}
}

func (v *view) text(path ...string) string {
	return at[string](v, path)
}

// list yields the items of a list.
func (v *view) list(path ...string) iter.Seq[*view] {
	list := at[[]any](v, path)
	return func(yield func(*view) bool) {
		item := &view{path: v.path + strings.Join(path, ".") + "[]", wrong: v.wrong}
		for _, item.content = range list {
			if _, ok := item.content.(map[string]any); !ok {
				*v.wrong = item.path
			}
			if !yield(item) {
				return
			}
		}
	}
}

// number returns an integer. Decoders of JSON make an int64 or a float64 of it.
func (v *view) number(path ...string) (n int64, found bool) {
	value := at[any](v, path)
	switch value := value.(type) {
	case nil:
		return 0, false
	case int64:
		return value, true
	case float64:
		if value == math.Trunc(value) && math.Abs(value) < 1<<53 {
			return int64(value), true
		}
	}
	v.note(value, path)
	return 0, false
}

// observed returns status.observedGeneration. If text is true, the kind can store it as text.
func (v *view) observed(text bool) (n int64, found bool) {
	status, _ := at[any](v, []string{"status"}).(map[string]any)
	if _, isText := status["observedGeneration"].(string); isText && text {
		if n, ok := fields.ObservedGeneration(status); ok {
			return n, true
		}
	}
	return v.number("status", "observedGeneration")
}

// status returns a number of the status, 0 if it is absent.
func (v *view) status(name string) int64 {
	n, _ := v.number("status", name)
	return n
}
