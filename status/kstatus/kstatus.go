package kstatus

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// State is how far the controller of an object has come with its generation.
type State string

const (
	Ready       State = "Ready"       // the object is as its spec wants it
	Progressing State = "Progressing" // on the way to Ready
	Failed      State = "Failed"      // not without a change from outside
	Terminating State = "Terminating" // being deleted
	Unknown     State = "Unknown"     // the status is absent in this form of the object, or not valid
)

// Of returns the state of an object, and a reason for logs and messages. The apiVersion and
// kind of obj can be empty if its Go type is that of a built-in kind, as in the results of a
// lister. A nil object is Progressing, because it is absent. If a field that a rule reads
// has a type that its kind does not allow, Of returns Unknown and names the field.
//
// Of does not modify obj. It copies an object that is not an *unstructured.Unstructured.
func Of(obj metav1.Object) (State, string) { return Rules(nil).Of(obj) }

// A Rule returns the state of an object of its kind, and a reason. It is called after the rules
// of all kinds: obj is not being deleted, and neither status.observedGeneration nor Reconciling
// nor Stalled has decided.
type Rule func(obj metav1.Object) (State, string)

// Rules has rules for kinds without one, such as Gateway.gateway.networking.k8s.io, and rules
// that replace those of the package. Each function of Rules is the function of the package of
// that name, with these rules. A nil Rule is none. Rules can be used concurrently unless it is
// modified.
type Rules map[schema.GroupKind]Rule

// AllTrue returns the Rule of a kind that is Ready once it has a True condition of each type,
// each about the object's generation. Otherwise it is Progressing.
func AllTrue(conditionTypes ...string) Rule {
	return func(obj metav1.Object) (State, string) {
		v, err := read(obj, conditionTypes...)
		if err != nil {
			return Unknown, err.Error()
		}
		if *v.wrong != "" {
			return Unknown, wrongType(v)
		}
		for _, name := range conditionTypes {
			switch c := v.condition(name); {
			case c == nil:
				return Progressing, "the object has no condition " + name
			case !c.isTrue() || c.old:
				return Progressing, c.String()
			}
		}
		return Ready, "True conditions: " + strings.Join(conditionTypes, ", ")
	}
}

// Of returns the state of an object, and a reason. If the rules cannot be told to apply, since
// obj has no kind and its Go type is not that of a built-in kind, it returns Unknown.
func (r Rules) Of(obj metav1.Object) (State, string) {
	if kube.IsNil(obj) {
		return Progressing, "the object is absent"
	}
	if obj.GetDeletionTimestamp() != nil {
		reason := "the object is being deleted"
		if finalizers := obj.GetFinalizers(); len(finalizers) > 0 {
			reason += ", and waits for the finalizer " + short(finalizers[0])
		}
		return Terminating, reason
	}
	v, err := read(obj)
	if err != nil {
		return Unknown, short(err.Error())
	}
	state, reason := r.apply(v, obj)
	if *v.wrong != "" {
		return Unknown, wrongType(v)
	}
	return state, reason
}

func wrongType(v *view) string { return *v.wrong + " has the wrong type" }

// apply applies the rules of all kinds, then that of the kind.
func (r Rules) apply(v *view, obj metav1.Object) (State, string) {
	kind, known := kindOf(obj)
	builtin := rule(kind)
	if observed, found := v.observed(builtin == nil); found && observed != v.generation {
		return Progressing, fmt.Sprintf("status.observedGeneration is %d, and the generation is %d", observed, v.generation)
	}
	for i := range v.conditions {
		switch c := &v.conditions[i]; {
		case !c.isTrue() || c.old:
		case c.kind == "Reconciling":
			return Progressing, c.String()
		case c.kind == "Stalled":
			return Failed, c.String()
		}
	}
	if own := r[kind]; own != nil && known {
		state, reason := own(obj)
		if !slices.Contains([]State{Ready, Progressing, Failed, Terminating, Unknown}, state) {
			return Unknown, fmt.Sprintf("the rule of %s returns the state %q, which is none of kstatus", short(kind.String()), short(string(state)))
		}
		return state, short(reason)
	}
	if len(r) > 0 && !known {
		return Unknown, fmt.Sprintf("no rule can be chosen: the object has no apiVersion and kind, and %T is the type of no built-in kind: set them", obj)
	}
	if builtin != nil {
		return builtin(v)
	}
	c := v.condition("Ready")
	switch {
	case c == nil:
		return Ready, "the object has no condition Ready"
	case c.isTrue() && !c.old:
		return Ready, c.String()
	}
	return Progressing, c.String()
}

// Condition returns a condition of type Ready about objects of any kinds. It is True if
// each object is [Ready], also without objects. Otherwise its reason is the first of
// Failed, Progressing and Unknown that an object has, and a Terminating object is
// Progressing. The status is Unknown with the reason Unknown, and False with the others.
//
// The message has the number of ready objects, and the reasons of the first three others,
// failed ones first. It does not depend on the order of objs. Set the observedGeneration
// and lastTransitionTime as status.Set does.
func Condition(objs ...metav1.Object) metav1.Condition { return Rules(nil).Condition(objs...) }

// Condition returns a condition of type Ready about objects of any kinds.
func (r Rules) Condition(objs ...metav1.Object) metav1.Condition {
	order := []State{Failed, Progressing, Terminating, Unknown}
	others := map[State][]string{}
	ready := 0
	for _, obj := range objs {
		switch state, reason := r.Of(obj); {
		case state == Ready:
			ready++
		case kube.IsNil(obj):
			others[state] = append(others[state], reason)
		default:
			others[state] = append(others[state], short(nameOf(obj))+" "+short(kube.NameOf(obj))+": "+reason)
		}
	}
	c := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: string(Ready)}
	texts := []string{fmt.Sprintf("%d of %d objects are ready", ready, len(objs))}
	for _, state := range slices.Backward(order) {
		switch {
		case len(others[state]) == 0:
			continue
		case state == Unknown:
			c.Status = metav1.ConditionUnknown
		default:
			c.Status = metav1.ConditionFalse
		}
		c.Reason = string(state)
		if state == Terminating {
			c.Reason = string(Progressing)
		}
	}
	for _, state := range order {
		slices.Sort(others[state])
		texts = append(texts, others[state]...)
	}
	const shown = 1 + 3
	if len(texts) > shown {
		texts = append(texts[:shown], fmt.Sprintf("and %d more", len(texts)-shown))
	}
	c.Message = strings.Join(texts, "; ")
	return c
}

// condition is a condition of any kind of object.
type condition struct {
	kind, status, reason, message string
	generation                    int64 // that it is about; 0 means that it does not tell
	old                           bool  // whether it is about an older generation
}

func (c *condition) isTrue() bool { return c != nil && c.status == string(metav1.ConditionTrue) }

func (c *condition) String() string {
	text := "condition " + short(c.kind) + " is " + short(c.status)
	if c.old {
		text += " for an older generation"
	}
	return with(text, c.reason, c.message)
}

// with returns text and those details that are not empty.
func with(text string, details ...string) string {
	for _, detail := range details {
		if detail != "" {
			text += ": " + short(detail)
		}
	}
	return text
}

// short returns a text of another user as a part of a reason.
func short(text string) string { return kube.Printable(text, 256) }

// or returns text, or a word for an empty one.
func or(text string) string { return cmp.Or(short(text), "empty") }
