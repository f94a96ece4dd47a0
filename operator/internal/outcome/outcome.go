// Package outcome makes the status of an object from what a call has come to: the conditions Ready and
// Terminating, the observed generation and the phase.
package outcome

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/fields"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/status"
	"github.com/controllerkit/controllerkit/status/kstatus"
)

// Ready is the type of the condition that is derived.
const Ready = "Ready"

// maxText bounds the text of an error in a condition. It is copied to each replica and each list.
const maxText = 1024

// A Call is what a call has come to.
type Call struct {
	Generation int64                    // of the copy that the function got
	Deleting   bool                     // the function is the cleanup
	Err        error                    // after Judge, as Classify replaced it
	raw        error                    // before Judge
	Class      string                   // of Err, by package reconcile
	Lasting    bool                     // the key has failed for a while, or is not retried any more
	Children   []metav1.Object          // the applied ones
	Rules      kstatus.Rules            // of their kinds
	Phases     map[kstatus.State]string // of the field phase; nil leaves the field alone
	Request    string                   // of the annotation requested-at
}

// Hide removes the condition Ready of a copy before the function gets it, so that Report
// recognizes one that the function sets to the same value. It also removes that of Pause, whose time is over.
func Hide(obj any) {
	if list := conditions(obj); list != nil {
		*list = slices.DeleteFunc(slices.Clone(*list), func(c metav1.Condition) bool { return isReady(c) || isPause(c) })
	}
}

// fill makes a status that is a nil pointer.
func fill(obj any) {
	if stat := member(obj, "status"); stat.Kind() == reflect.Pointer && stat.IsNil() && stat.CanSet() {
		stat.Set(reflect.New(stat.Type().Elem()))
	}
}

// HasConditions reports whether objects of the type have conditions that Report sets.
func HasConditions(obj any) bool {
	fill(obj)
	return conditions(obj) != nil
}

// Report completes the status of after, the copy that the function got from Hide and has changed.
// before is the object without these changes. It modifies only the status of after.
func Report(before, after any, c Call) error {
	derived, decided := c.ready()
	if decided {
		fill(after)
	}
	list := conditions(after)
	if list != nil {
		own := find(*list)
		restore(list, before)
		if own != nil {
			derived, decided = *own, true
		}
		set := make([]metav1.Condition, 0, 2)
		if decided {
			set = append(set, derived)
		}
		if blocked, _ := Blocked(c.cause()); blocked != nil && c.Deleting {
			terminating := blocked.Condition(c.Generation)
			terminating.Message = kube.Printable(blocked.Error(), maxText)
			set = append(set, terminating)
		}
		if err := status.Set(list, c.Generation, set...); err != nil {
			return err
		}
	}
	if !decided {
		return nil
	}
	stat := member(after, "status")
	was := member(before, "status")
	observed := value(stat, "observedGeneration")
	if held, ok := pointed(observed); ok && held.CanInt() && held.Int() == intOf(value(was, "observedGeneration")) { // the function has not set it
		held.SetInt(c.Generation)
		store(observed, held)
	}
	handled := value(stat, "lastHandledReconcileAt")
	if held, ok := pointed(handled); c.Request != "" && ok && held.Kind() == reflect.String && held.String() == textOf(value(was, "lastHandledReconcileAt")) {
		held.SetString(c.Request)
		store(handled, held)
	}
	c.setPhase(stat, derived)
	return nil
}

// restore puts the Ready of before into a list in place of its own, so that a Ready that is set then keeps its time if
// its status stays.
func restore(list *[]metav1.Condition, before any) {
	var former []metav1.Condition
	if list := conditions(before); list != nil {
		former = *list
	}
	*list = slices.DeleteFunc(slices.Clone(*list), isReady)
	if i := slices.IndexFunc(former, isReady); i >= 0 {
		*list = slices.Insert(*list, min(i, len(*list)), former[i])
	}
}

// setPhase sets the phase in a status by its condition Ready.
func (c *Call) setPhase(stat reflect.Value, ready metav1.Condition) {
	if phase := value(stat, "phase"); len(c.Phases) > 0 && phase.Kind() == reflect.String && phase.CanSet() {
		if name, ok := c.Phases[c.state(ready)]; ok {
			phase.SetString(name)
		}
	}
}

// cause returns the error that the function has returned.
func (c *Call) cause() error {
	if c.raw != nil {
		return c.raw
	}
	return c.Err
}

// ready returns the condition Ready, unless the call leaves it unchanged.
func (c *Call) ready() (ready metav1.Condition, decided bool) {
	var unsent controllerkit.UnsentError
	var lost controllerkit.LostError
	switch {
	case c.Err == nil && c.Deleting:
		return ready, false // the object is gone
	case c.Err == nil && len(c.Children) == 0:
		return status.True(Ready, "Reconciled", "the object is reconciled"), true
	case c.Err == nil:
		return c.Rules.Condition(c.Children...), true
	case errors.As(c.cause(), &unsent) && unsent.NotSent(), errors.As(c.cause(), &lost) && lost.LeadershipLost():
		return ready, false
	}
	if blocked, alone := Blocked(c.Err); alone && c.Deleting {
		return status.False(Ready, "Terminating", kube.Printable(blocked.Error(), maxText)), true
	}
	if kube.Waits(c.Err) > 0 {
		return status.False(Ready, "Waiting", message(c.Err)), true
	}
	switch c.Class {
	case controllerkit.ResultConflict, controllerkit.ResultStale, controllerkit.ResultCancelled:
		return ready, false
	case controllerkit.ResultTerminal, controllerkit.ResultRejected, controllerkit.ResultForbidden:
	default:
		if !c.Lasting {
			return ready, false
		}
	}
	return status.False(Ready, camel(c.Class), message(c.Err)), true
}

// message returns the text of an error for the author of the object: without the words that the
// reason has already, and with what to do if the API server does not say it.
func message(err error) string {
	text := err.Error()
	if panicked, ok := errors.AsType[*reconcile.PanicError](err); ok {
		text = fmt.Sprintf("%v: the log has the stack", panicked.Value)
	}
	for _, sentinel := range []error{reconcile.ErrRejected, reconcile.ErrTerminal} {
		text = strings.TrimPrefix(text, sentinel.Error()+": ")
		text = strings.TrimSuffix(text, ": "+sentinel.Error())
	}
	if strings.HasSuffix(text, tooLarge) {
		text += ": an object has at most 1.5 MiB, so divide its content among several"
	}
	return kube.Printable(text, maxText)
}

// tooLarge is etcd's error, which the API server passes on.
const tooLarge = "etcdserver: request is too large"

// state is the state of the object, by its condition Ready.
func (c *Call) state(ready metav1.Condition) kstatus.State {
	switch {
	case c.Deleting:
		return kstatus.Terminating
	case ready.Status == metav1.ConditionTrue:
		return kstatus.Ready
	case c.Err != nil && kube.Waits(c.Err) == 0, ready.Reason == string(kstatus.Failed):
		return kstatus.Failed
	}
	return kstatus.Progressing
}

// camel returns a class as the reason of a condition: "server_delay" is ServerDelay.
func camel(class string) string {
	var text strings.Builder
	for word := range strings.SplitSeq(class, "_") {
		for i, r := range word {
			if i == 0 {
				r = unicode.ToUpper(r)
			}
			text.WriteRune(r)
		}
	}
	return text.String()
}

// Take sets the status of target to that of from, an object of the same type.
func Take(target, from any) {
	if to := member(target, "status"); to.CanSet() {
		to.Set(member(from, "status"))
	}
}

// Changed reports whether the status of two objects of one type differs.
func Changed(before, after any) bool {
	return !apiequality.Semantic.DeepEqual(fields.Of(before), fields.Of(after))
}

// HasStatus reports whether objects of the type have a status.
func HasStatus(obj any) bool { return member(obj, "status").IsValid() }

// Metadata returns the name of the first field of the metadata in which two objects of one type
// differ, such as "metadata.labels", or "".
func Metadata(before, after metav1.Object) string {
	if sameMetadata(before, after) {
		return ""
	}
	a, b := member(before, "metadata"), member(after, "metadata")
	if !a.IsValid() || a.Kind() != reflect.Struct || apiequality.Semantic.DeepEqual(a.Interface(), b.Interface()) {
		return ""
	}
	for i := range a.NumField() {
		if !apiequality.Semantic.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			name, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("json"), ",")
			return "metadata." + cmp.Or(name, a.Type().Field(i).Name)
		}
	}
	return "metadata"
}

// sameMetadata reports whether the metadata of generated types is surely the same. In each call it saves a
// comparison by reflection, which takes longer than all the rest.
func sameMetadata(before, after metav1.Object) bool {
	a, ok := before.(metav1.ObjectMetaAccessor)
	b, ok2 := after.(metav1.ObjectMetaAccessor)
	if !ok || !ok2 {
		return false
	}
	x, ok := a.GetObjectMeta().(*metav1.ObjectMeta)
	y, ok2 := b.GetObjectMeta().(*metav1.ObjectMeta)
	return ok && ok2 && x.Name == y.Name && x.GenerateName == y.GenerateName && x.Namespace == y.Namespace &&
		x.UID == y.UID && x.ResourceVersion == y.ResourceVersion && x.Generation == y.Generation && x.CreationTimestamp.Equal(&y.CreationTimestamp) &&
		x.DeletionTimestamp.Equal(y.DeletionTimestamp) && ptr.Equal(x.DeletionGracePeriodSeconds, y.DeletionGracePeriodSeconds) &&
		maps.Equal(x.Labels, y.Labels) && maps.Equal(x.Annotations, y.Annotations) && slices.Equal(x.Finalizers, y.Finalizers) &&
		slices.EqualFunc(x.OwnerReferences, y.OwnerReferences, func(a, b metav1.OwnerReference) bool {
			return a.APIVersion == b.APIVersion && a.Kind == b.Kind && a.Name == b.Name && a.UID == b.UID &&
				ptr.Equal(a.Controller, b.Controller) && ptr.Equal(a.BlockOwnerDeletion, b.BlockOwnerDeletion)
		}) && slices.EqualFunc(x.ManagedFields, y.ManagedFields, func(a, b metav1.ManagedFieldsEntry) bool {
		return a.Manager == b.Manager && a.Operation == b.Operation && a.APIVersion == b.APIVersion && a.FieldsType == b.FieldsType && a.Subresource == b.Subresource &&
			a.Time.Equal(b.Time) && (a.FieldsV1 == b.FieldsV1 || a.FieldsV1 != nil && b.FieldsV1 != nil && a.FieldsV1.Equal(*b.FieldsV1))
	})
}

// Wrong returns an error if the status of T cannot have the phases.
func Wrong(obj any, phases map[kstatus.State]string) error {
	switch {
	case len(phases) == 0:
		return nil
	case value(member(obj, "status"), "phase").Kind() != reflect.String:
		return fmt.Errorf("Reconciler.Phases is set, and the status of %T has no text field phase: add it, or remove Phases", obj)
	}
	for state := range phases {
		if !slices.Contains([]kstatus.State{kstatus.Ready, kstatus.Progressing, kstatus.Failed, kstatus.Terminating}, state) {
			return fmt.Errorf("Reconciler.Phases has the state %q: use Ready, Progressing, Failed and Terminating of package kstatus", state)
		}
	}
	return nil
}

func isReady(c metav1.Condition) bool { return c.Type == Ready }

func find(list []metav1.Condition) *metav1.Condition {
	if i := slices.IndexFunc(list, isReady); i >= 0 {
		found := list[i]
		return &found
	}
	return nil
}

// conditions returns the conditions of obj, a pointer to a struct, or nil.
func conditions(obj any) *[]metav1.Condition {
	list := value(member(obj, "status"), "conditions")
	if !list.CanAddr() {
		return nil
	}
	own := reflect.TypeFor[*[]metav1.Condition]()
	if !list.Addr().CanConvert(own) { // a type of its own can be one of such conditions
		return nil
	}
	found, _ := list.Addr().Convert(own).Interface().(*[]metav1.Condition)
	return found
}

// pointed returns a copy of what a field has or points to, which can be set, and the zero value for a nil pointer. It
// is not ok if the field cannot be set.
func pointed(field reflect.Value) (held reflect.Value, ok bool) {
	if !field.CanSet() {
		return field, false
	}
	typ := field.Type()
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	held = reflect.New(typ).Elem()
	if v := reflect.Indirect(field); v.IsValid() {
		held.Set(v)
	}
	return held, true
}

// store sets a field, or the pointer in it, to what pointed has returned.
func store(field, held reflect.Value) {
	if field.Kind() == reflect.Pointer {
		field.Set(held.Addr())
		return
	}
	field.Set(held)
}

// intOf returns the number that v is or points to, otherwise 0.
func intOf(v reflect.Value) int64 {
	if v = reflect.Indirect(v); v.CanInt() {
		return v.Int()
	}
	return 0
}

// textOf returns the text that v is or points to, otherwise "".
func textOf(v reflect.Value) string {
	if v = reflect.Indirect(v); v.Kind() == reflect.String {
		return v.String()
	}
	return ""
}

// member returns a field of obj by its name in JSON, otherwise the zero Value.
func member(obj any, name string) reflect.Value {
	return fields.Member(reflect.Indirect(reflect.ValueOf(obj)), name)
}

// value returns a field of a struct, or of the one that v points to.
func value(v reflect.Value, name string) reflect.Value {
	return fields.Member(reflect.Indirect(v), name)
}
