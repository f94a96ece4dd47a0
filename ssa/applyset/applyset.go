package applyset

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ErrNotTried is wrapped by the [ObjectError] of an object for which the batch made no
// request, because it stopped before.
var ErrNotTried = errors.New("applyset: not tried")

// errDeleting is the error of a Namespace or CustomResourceDefinition that was applied
// while its deletion waits for a finalizer. New objects in it would be deleted too.
var errDeleting = waiting{errors.New("it is being deleted: apply again after the deletion")}

// errCollected is the error of a wanted object that belongs to an earlier parent of the same name.
var errCollected = waiting{errors.New("it belongs to an earlier parent of this name: apply again after the garbage collector has deleted it")}

// errSkipped is the error of an object for which no request was made because another one has an error. It
// is a wait so that the error of the call is one if those of the others are.
var errSkipped = waiting{fmt.Errorf("%w: another object has failed", ErrNotTried)}

// waiting is a controllerkit.WaitingError: the deletion of an object can end without another user.
type waiting struct{ error }

func (waiting) Waits() time.Duration { return 5 * time.Second }
func (w waiting) Unwrap() error      { return w.error }

// ObjectError is the error of one object of a [Batch] or a [Set].
type ObjectError struct {
	Index           int // the position among the objects of the call; -1 for a former member of a Set
	Kind            schema.GroupVersionKind
	Namespace, Name string // "" if the object has no name
	Err             error
}

// Error names the object.
func (e *ObjectError) Error() string {
	name := e.Name
	if e.Namespace != "" {
		name = e.Namespace + "/" + e.Name
	}
	text := strings.TrimPrefix(e.Err.Error(), "applyset: ") // of ErrNotTried
	name = cmp.Or(e.Kind.Kind, "object without kind") + " " + cmp.Or(name, "without name")
	if e.Index >= 0 {
		name += fmt.Sprintf(" (object %d of the batch)", e.Index)
	}
	return fmt.Sprintf("applyset: %s: %s", name, text)
}

// Unwrap returns Err.
func (e *ObjectError) Unwrap() error { return e.Err }
