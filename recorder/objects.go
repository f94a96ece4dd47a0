package recorder

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// Objects records Events about objects. It is an EventRecorder and an AnnotatedEventRecorder of
// client-go's tools/events, for code that takes one. [Recorder.Objects] makes one.
type Objects struct{ about }

// Objects returns a recorder of Events about objects. If an object does not carry its kind, scheme
// has it. An object of an unknown kind is an Event without a kind: it is dropped, counted and logged as
// invalid. scheme can be nil if all objects carry their kinds. r can be nil, and then drops all.
func (r *Recorder) Objects(scheme *runtime.Scheme) *Objects { return &Objects{about{r, scheme}} }

// Eventf is [Recorder.Event] about an object or a *corev1.ObjectReference. A nil related means none. The
// note is formatted if it has args.
func (o *Objects) Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any) {
	if len(args) > 0 {
		note = fmt.Sprintf(note, args...)
	}
	o.recorder.Event(o.reference(regarding), o.reference(related), eventType, reason, action, note)
}

// AnnotatedEventf is Eventf. The annotations are not written: equal Events become one series, and each
// could have other annotations.
func (o *Objects) AnnotatedEventf(regarding, related runtime.Object, _ map[string]string, eventType, reason, action, note string, args ...any) {
	o.Eventf(regarding, related, eventType, reason, action, note, args...)
}

// Legacy records Events about objects without an action. It is an EventRecorder of client-go's
// tools/record, for code that takes one. [Recorder.Legacy] makes one.
type Legacy struct{ about }

// Legacy returns a recorder with the methods of client-go's tools/record. scheme is as for
// [Recorder.Objects]. The API requires an action, so the reason becomes the action, too.
func (r *Recorder) Legacy(scheme *runtime.Scheme) *Legacy { return &Legacy{about{r, scheme}} }

// Event is [Recorder.Event] about an object or a *corev1.ObjectReference.
func (l *Legacy) Event(object runtime.Object, eventType, reason, message string) {
	l.recorder.Event(l.reference(object), corev1.ObjectReference{}, eventType, reason, reason, message)
}

// Eventf is Event with a message that is formatted if it has args.
func (l *Legacy) Eventf(object runtime.Object, eventType, reason, message string, args ...any) {
	if len(args) > 0 {
		message = fmt.Sprintf(message, args...)
	}
	l.Event(object, eventType, reason, message)
}

// AnnotatedEventf is Eventf. The annotations are not written, as in [Objects.AnnotatedEventf].
func (l *Legacy) AnnotatedEventf(object runtime.Object, _ map[string]string, eventType, reason, message string, args ...any) {
	l.Eventf(object, eventType, reason, message, args...)
}

// about makes references to objects.
type about struct {
	recorder *Recorder
	scheme   *runtime.Scheme
}

// reference returns the reference to an object. That to an object of an unknown kind has no kind.
func (a about) reference(obj runtime.Object) corev1.ObjectReference {
	if kube.IsNil(obj) {
		return corev1.ObjectReference{}
	}
	if ref, ok := obj.(*corev1.ObjectReference); ok {
		return *ref
	}
	o, err := meta.Accessor(obj)
	if err != nil {
		return corev1.ObjectReference{}
	}
	return Reference(o, a.kind(obj))
}

func (a about) kind(obj runtime.Object) schema.GroupVersionKind {
	if kind := obj.GetObjectKind().GroupVersionKind(); kind.Kind != "" && kind.Version != "" || a.scheme == nil {
		return kind
	}
	if kinds, _, err := a.scheme.ObjectKinds(obj); err == nil && len(kinds) > 0 {
		return kinds[0]
	}
	return schema.GroupVersionKind{}
}
