package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// Applier is the one method of a client that [Apply] calls. Typed clients of kinds
// with a status have it; C is a pointer to an apply configuration. The method of the
// dynamic client has the name as a parameter of its own: with a type that takes it
// from the configuration, T and C are *unstructured.Unstructured.
type Applier[T, C any] interface {
	ApplyStatus(ctx context.Context, config C, opts metav1.ApplyOptions) (T, error)
}

// Apply makes set the conditions that fieldManager owns, by server-side apply, for
// controllers that share the conditions of one object. It sends these conditions
// and nothing else: those of others stay, those that fieldManager owned and that set
// does not have any more go, and those of set are written whoever wrote them before.
// It returns the server's answer, or live itself, the same pointer, when there was
// nothing to write.
//
// The schema must have the conditions as a map by type, which [CheckDefinition] tells:
// in any other list the server replaces those of others.
//
// A type belongs to one manager. What two have written can be changed, but not given
// up: the server keeps the part of the other one, and answers Invalid if that is no
// condition. Remove such a condition with [Update], which takes it from all.
//
// live is the object as the caller knows it, with name, uid, resourceVersion and
// managedFields; T has status.conditions of type []metav1.Condition. The conditions
// are for live's generation and follow the rules of [Set]. config is a new
// configuration of the same name with nothing in it, such as
// policyac.PodDisruptionBudget(name, namespace); Apply fills a copy.
//
// fieldManager is one name for the conditions of one controller, the same in every
// release and replica, at most 128 bytes, and not one that it uses to apply other
// fields of the status: an apply gives up what it does not send.
//
// The apply carries the uid and resourceVersion of live. Without them a stale copy
// could take back a newer generation or a transition time, so a write of anybody
// else in between is a Conflict, as with [Update]: reconcile again from a newer
// copy. A cache that drops managedFields costs a request for each call, and so does a
// fake clientset, which does not say in them what an apply was for.
func Apply[T metav1.Object, C any](ctx context.Context, fieldManager string, c Applier[T, C], live T, config C, set ...metav1.Condition) (T, error) {
	var none T
	if fieldManager == "" {
		return none, errors.New("status: fieldManager is empty: use a constant that names the controller")
	}
	if errs := validation.ValidateFieldManager(fieldManager, nil); len(errs) > 0 {
		return none, fmt.Errorf("status: fieldManager %.32q: %w", fieldManager, errs.ToAggregate())
	}
	if err := identified(c, live); err != nil {
		return none, err
	}
	current := read(live)
	if !current.conditioned {
		return none, fmt.Errorf("status: %T has no status.conditions of type []metav1.Condition", live)
	}
	next := current.conditions
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
	if slices.Equal(next, current.conditions) && owns(live, fieldManager, body["apiVersion"], own) {
		return live, nil
	}
	full, err := fill(config, body, own)
	if err != nil {
		return none, err
	}
	answer, err := c.ApplyStatus(ctx, full, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if err != nil {
		return none, fmt.Errorf("status: apply as %q: %w", fieldManager, err)
	}
	return answer, nil
}

// owns reports whether the fields that the manager applied to the status of live
// are those of the conditions, no more and no less.
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
	// Without any entry nothing is known about who owns what.
	return len(conditions) == 0 && len(live.GetManagedFields()) > 0
}

// envelope returns what config is in JSON, with the guard of live.
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
	// The server stores labels and finalizers that come with the status of built-in kinds.
	for name, value := range metadata {
		if name != "name" && name != "namespace" && value != nil {
			return nil, fmt.Errorf("status: config has metadata.%s: Apply sends conditions alone", name)
		}
	}
	maps.Copy(metadata, guard(live))
	return body, nil
}

// fill returns a configuration of config's type with that content and the
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
	if _, ok := any(filled).(unstructuredContent); !ok && len(conditions) > 0 {
		f := member(reflect.Indirect(reflect.ValueOf(statusOf(filled))), "conditions")
		if f.Kind() != reflect.Slice || f.Len() != len(conditions) {
			return none, fmt.Errorf("status: config of type %T has no status.conditions", config)
		}
	}
	return filled, nil
}
