package pause

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// Domain is the default of Annotations.Prefix.
const Domain = "controllerkit.github.io"

// Paused is the type of the condition, and Reason its reason.
const (
	Paused = "Paused"
	Reason = "PausedByAnnotation"
)

const (
	maxRequest = 128 // bytes
	maxNote    = 200 // bytes of a value in a message
)

// Annotations are the two annotations of a controller. The zero value has the prefix Domain.
type Annotations struct {
	// Prefix is the part of their names before the slash, a DNS subdomain. With two prefixes, a user can pause one of
	// two controllers of an object. "" means Domain.
	Prefix string
}

// Check returns an error if Prefix is not valid.
func (a Annotations) Check() error {
	if a.Prefix != "" && len(validation.IsDNS1123Subdomain(a.Prefix)) > 0 {
		return fmt.Errorf("pause: Annotations.Prefix is %q: use a DNS subdomain, e.g. example.com", a.Prefix)
	}
	return nil
}

func (a Annotations) paused() string    { return cmp.Or(a.Prefix, Domain) + "/paused" }
func (a Annotations) requested() string { return cmp.Or(a.Prefix, Domain) + "/requested-at" }

// Paused reports whether the annotation paused pauses obj. Any value does, also an empty one, for example a reason, except
// false and 0. So a mistake in the value pauses too much and not too little.
func (a Annotations) Paused(obj metav1.Object) bool {
	value, found := obj.GetAnnotations()[a.paused()]
	return found && value != "0" && !strings.EqualFold(value, "false")
}

// Request returns the value of the annotation requested-at of obj, and a hash of a long or unprintable
// one. "" means that there is no request. A controller stores it in the status when it has handled the request.
func (a Annotations) Request(obj metav1.Object) string {
	value := obj.GetAnnotations()[a.requested()]
	if len(value) <= maxRequest && !strings.ContainsFunc(value, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return value
	}
	sum := sha256.Sum256([]byte(value))
	return "sha256:" + hex.EncodeToString(sum[:16])
}

// Condition returns the condition Paused of obj, a paused object. An object that is not paused has none: a
// controller that writes it removes it in the first call after the pause, as package operator does.
func (a Annotations) Condition(obj metav1.Object) metav1.Condition {
	return metav1.Condition{
		Type: Paused, Status: metav1.ConditionTrue, Reason: Reason, ObservedGeneration: obj.GetGeneration(),
		Message: fmt.Sprintf("the annotation %s has the value \"%s\": remove it to go on. A deletion is still cleaned up", a.paused(), kube.Printable(obj.GetAnnotations()[a.paused()], maxNote)),
	}
}

// Changed returns a predicate that passes the updates which begin or end a pause, or make a request. It passes creations
// and deletions.
func Changed[T metav1.Object](a Annotations) enqueue.Predicate[T] {
	return func(e enqueue.Event[T]) bool {
		return e.Created || e.Deleted || a.Paused(e.Old) != a.Paused(e.New) || a.Request(e.Old) != a.Request(e.New)
	}
}
