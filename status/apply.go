package status

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/internal/apply"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/fields"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// Applier is the one method of a client that [Apply] calls. Typed clients of kinds with a
// status have it; C is a pointer to an apply configuration. The ApplyStatus of the
// dynamic client also takes the name: crd.Dynamic adapts it, and T and C are
// *unstructured.Unstructured.
type Applier[T, C any] interface {
	ApplyStatus(ctx context.Context, config C, opts metav1.ApplyOptions) (T, error)
}

// Apply makes set the conditions that fieldManager owns, by server-side apply. It is for
// controllers that share the conditions of an object. It sends only these conditions. The
// conditions of other managers stay. A condition that fieldManager owned and set omits is
// removed. A condition of set is written even if another manager owns it. Apply returns the
// API server's response, or live itself, the same pointer, if it sent no request because
// live has these conditions and shows that fieldManager owns them and no others.
//
// In the schema the conditions must be a map by type: x-kubernetes-list-type: map with
// x-kubernetes-list-map-keys: [type]. In any other list the API server replaces the
// conditions of other managers, and Apply returns an error after its first write.
//
// A type belongs to one manager. If two managers have written a condition, either can
// change it, but not remove it: the API server keeps the other manager's fields, and
// returns Invalid if they are not a complete condition. [Update] removes such a condition
// from all managers.
//
// live is the object as the caller read it, with name, uid, resourceVersion and
// managedFields. Its status.conditions must be of type []metav1.Condition. The conditions
// are for live's generation and follow the rules of [Set]. config is a new, empty
// configuration of the same name, such as policyac.PodDisruptionBudget(name, namespace);
// Apply fills a copy of it.
//
// fieldManager names the conditions of one controller, in every release and replica. It has
// at most 128 bytes of printable UTF-8. Do not use it to apply other fields of the status, because an apply
// removes the fields that it omits.
//
// Apply requires the uid and resourceVersion of live, because a stale copy could restore
// an older generation or transition time. So any other write in between is a Conflict:
// reconcile again from a newer copy. Without managedFields, which some caches drop and
// fake clientsets do not maintain, each call sends a request.
func Apply[T metav1.Object, C any](ctx context.Context, fieldManager string, c Applier[T, C], live T, config C, set ...metav1.Condition) (T, error) {
	var none T
	if err := apply.CheckManager(fieldManager); err != nil {
		return none, fmt.Errorf("status: fieldManager: %w", err)
	}
	if err := identified(c, live); err != nil {
		return none, err
	}
	current := fields.Read(live)
	if !current.Conditioned {
		return none, fmt.Errorf("status: %T has no status.conditions of type []metav1.Condition", live)
	}
	if current.Total > fields.MaxConditions {
		return none, tooMany(current.Total)
	}
	next := current.Conditions
	if err := Set(&next, live.GetGeneration(), set...); err != nil {
		return none, err
	}
	// In the order of live, which the server then keeps.
	var own []metav1.Condition
	for _, c := range next {
		if meta.FindStatusCondition(set, c.Type) != nil {
			own = append(own, c)
		}
	}
	body, err := envelope(config, live)
	if err != nil {
		return none, err
	}
	if slices.Equal(next, current.Conditions) && owns(live, fieldManager, body["apiVersion"], own) {
		calls.NoteWrite(ctx, calls.Status, false)
		return live, nil
	}
	full, err := fill(config, body, own)
	if err != nil {
		return none, err
	}
	calls.NoteWrite(ctx, calls.Status, true)
	stored, err := c.ApplyStatus(ctx, full, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if err != nil {
		return none, fmt.Errorf("status: apply as %q: %w", fieldManager, kube.AsRemovedVersion(err))
	}
	calls.NoteWritten(ctx, stored)
	if len(own) > 0 && ownsList(stored, fieldManager) {
		return none, errNoMap
	}
	return stored, nil
}

// errNoMap is the error for a schema in which the conditions have one owner.
var errNoMap error = &schemaError{} //nolint:errname // a value of the type

type schemaError struct{}

func (*schemaError) Error() string {
	return "status: the API server stored the conditions, but status.conditions is not a map by type in the schema, so each apply removes the conditions of other managers: set x-kubernetes-list-type: map and x-kubernetes-list-map-keys: [type], or use Update"
}

// Rejected marks the error for package reconcile: a retry does not cure it.
func (*schemaError) Rejected() bool { return true }

// ownsList reports whether the manager applied the conditions as a whole: it owns the list and
// no item of it.
func ownsList(stored any, manager string) bool {
	o, ok := stored.(metav1.Object)
	if !ok || kube.IsNil(o) {
		return false
	}
	for _, entry := range o.GetManagedFields() {
		if entry.Manager != manager || entry.Operation != metav1.ManagedFieldsOperationApply || entry.Subresource != "status" {
			continue
		}
		var got struct {
			Status struct {
				Conditions map[string]any `json:"f:conditions"`
			} `json:"f:status"`
		}
		return json.Unmarshal(entry.FieldsV1.GetRawBytes(), &got) == nil && got.Status.Conditions != nil && len(got.Status.Conditions) == 0
	}
	return false
}

// owns reports whether the manager applied exactly the fields of the conditions to the
// status of live.
func owns(live metav1.Object, manager string, apiVersion any, conditions []metav1.Condition) bool {
	for _, entry := range live.GetManagedFields() {
		if entry.Manager != manager || entry.Operation != metav1.ManagedFieldsOperationApply || entry.Subresource != "status" {
			continue
		}
		type set = map[string]any
		want := set{}
		for _, c := range conditions {
			item := set{".": set{}, "f:type": set{}, "f:status": set{}, "f:lastTransitionTime": set{}, "f:reason": set{}, "f:message": set{}}
			if c.ObservedGeneration != 0 {
				item["f:observedGeneration"] = set{}
			}
			want[fmt.Sprintf(`k:{"type":%q}`, c.Type)] = item
		}
		var got any
		return entry.APIVersion == apiVersion && json.Unmarshal(entry.FieldsV1.GetRawBytes(), &got) == nil &&
			reflect.DeepEqual(got, set{"f:status": set{"f:conditions": want}})
	}
	// Without any entry the owners are unknown.
	return len(conditions) == 0 && len(live.GetManagedFields()) > 0
}

// envelope returns config in JSON with the guard of live.
func envelope(config any, live metav1.Object) (map[string]any, error) {
	if kube.IsNil(config) || reflect.TypeOf(config).Kind() != reflect.Pointer {
		return nil, fmt.Errorf("status: config is %T(%v): give the pointer that the generated constructor returns", config, config)
	}
	data, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("status: config cannot be written as JSON: %w", err)
	}
	var body map[string]any
	if err := json.Unmarshal(data, &body); err != nil {
		return nil, fmt.Errorf("status: config of type %T is no JSON object: %w", config, err)
	}
	metadata, _ := body["metadata"].(map[string]any)
	for _, f := range []struct{ name, want string }{{"name", live.GetName()}, {"namespace", live.GetNamespace()}} {
		if got, _ := metadata[f.name].(string); got != f.want {
			return nil, fmt.Errorf("status: config has metadata.%s %q, live has %q", f.name, got, f.want)
		}
	}
	for _, name := range []string{"apiVersion", "kind"} {
		if text, _ := body[name].(string); text == "" {
			return nil, fmt.Errorf("status: config has no %s: give what the generated constructor returns", name)
		}
	}
	for name := range body {
		if name != "apiVersion" && name != "kind" && name != "metadata" {
			return nil, fmt.Errorf("status: config has %s: Apply sends conditions alone", name)
		}
	}
	// The API server stores the labels and finalizers of built-in kinds with their status.
	for name, value := range metadata {
		if name != "name" && name != "namespace" && value != nil {
			return nil, fmt.Errorf("status: config has metadata.%s: Apply sends conditions alone", name)
		}
	}
	maps.Copy(metadata, guard(live))
	return body, nil
}

// fill returns a configuration of config's type with the given content and the
// conditions.
func fill[C any](config C, body map[string]any, conditions []metav1.Condition) (C, error) {
	var none C
	if len(conditions) > 0 {
		body["status"] = map[string]any{"conditions": conditions}
	}
	data, err := json.Marshal(body)
	if err != nil {
		return none, fmt.Errorf("status: config cannot be written as JSON: %w", err)
	}
	if err := sized(len(data)); err != nil {
		return none, err
	}
	filled := reflect.New(reflect.TypeOf(config).Elem()).Interface().(C)
	if err := json.Unmarshal(data, filled); err != nil {
		return none, fmt.Errorf("status: config of type %T does not take the conditions: %w", config, err)
	}
	if _, ok := any(filled).(fields.Unstructured); !ok && len(conditions) > 0 {
		f := fields.Member(reflect.Indirect(reflect.ValueOf(fields.Of(filled))), "conditions")
		if f.Kind() != reflect.Slice || f.Len() != len(conditions) {
			return none, fmt.Errorf("status: config of type %T has no status.conditions", config)
		}
	}
	return filled, nil
}
