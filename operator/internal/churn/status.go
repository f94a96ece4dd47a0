package churn

import (
	"context"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/controllerkit/controllerkit/internal/fields"
)

// Reported notes that a call has written the status, and the API server has stored that of after in place of that of
// before, if they differ. kind is that of the objects. A write without an effect counts as none.
func (f *Finder) Reported(ctx context.Context, kind string, before, after metav1.Object) {
	id := child{before.GetUID(), kind, types.NamespacedName{Namespace: before.GetNamespace(), Name: before.GetName()}}
	if reflect.DeepEqual(fields.Of(before), fields.Of(after)) { // most calls change nothing, and statusOf is slow
		f.rest(id)
		return
	}
	was, wanted := statusOf(before), statusOf(after)
	if reflect.DeepEqual(was, wanted) {
		f.rest(id)
		return
	}
	next := &streak{owner: identity(before), config: wanted, size: sizeOf(wanted, maxConfig), began: time.Now()}
	if next.size > maxConfig {
		return
	}
	f.mu.Lock()
	if last := f.streaks[id]; last != nil && last.owner == next.owner && time.Since(last.began) <= window && reflect.DeepEqual(last.config, wanted) {
		next.began, next.same = last.began, last.same+1
	}
	f.setLocked(id, next)
	f.mu.Unlock()
	if next.same >= changes-1 {
		f.log(ctx, Shared, id, "paths", between(was, wanted).paths())
	}
}

// statusOf returns the status of an object as a map, without times of transitions.
func statusOf(obj any) map[string]any {
	var v map[string]any
	if m, ok := fields.Of(obj).(map[string]any); ok {
		text, err := json.Marshal(m) // a call can have set values of any Go type
		if err != nil || json.Unmarshal(text, &v) != nil {
			return nil
		}
	} else {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
		if err != nil {
			return nil
		}
		v, _ = content["status"].(map[string]any)
	}
	conditions, _ := v["conditions"].([]any)
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok {
			delete(c, "lastTransitionTime")
		}
	}
	return v
}
