package ssa

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// ErrUIDMismatch is wrapped by the error of an apply whose configuration carries a
// uid that no object of that name has: the object was deleted, or deleted and
// created again. There is nothing to apply to; read again.
var ErrUIDMismatch = errors.New("ssa: there is no object with the uid of the configuration")

// FieldManager is the name under which fields are owned: one constant for each
// intent of a controller, the same in every release and every replica. The empty
// name and names of more than 128 bytes are errors.
type FieldManager string

// Applier is the one method of a client that [Apply], [TryApply] and [ApplyChanged]
// call. Typed clients have it; C is a pointer to an apply configuration.
type Applier[T, C any] interface {
	Apply(ctx context.Context, config C, opts metav1.ApplyOptions) (T, error)
}

// StatusApplier is the one method of a client that [ApplyStatus] and
// [TryApplyStatus] call. Typed clients of kinds with a status have it.
type StatusApplier[T, C any] interface {
	ApplyStatus(ctx context.Context, config C, opts metav1.ApplyOptions) (T, error)
}

// Apply applies config as fm, takes its fields from other managers, and returns the
// server's answer. It creates the object if there is none and config has no uid.
// The package comment says why it forces.
func Apply[T, C any](ctx context.Context, fm FieldManager, c Applier[T, C], config C) (T, error) {
	return apply(ctx, fm, c.Apply, config, true)
}

// ApplyStatus is Apply for the status subresource. It creates nothing: a missing
// object is a NotFound. Fields outside the status are ignored by the server.
func ApplyStatus[T, C any](ctx context.Context, fm FieldManager, c StatusApplier[T, C], config C) (T, error) {
	return apply(ctx, fm, c.ApplyStatus, config, true)
}

// TryApply is Apply without force: if another manager owns a field of config
// and its value differs, nothing is written and the error is a [*ConflictError].
func TryApply[T, C any](ctx context.Context, fm FieldManager, c Applier[T, C], config C) (T, error) {
	return apply(ctx, fm, c.Apply, config, false)
}

// TryApplyStatus is ApplyStatus without force, as TryApply is Apply.
func TryApplyStatus[T, C any](ctx context.Context, fm FieldManager, c StatusApplier[T, C], config C) (T, error) {
	return apply(ctx, fm, c.ApplyStatus, config, false)
}

// ApplyChanged is Apply if config differs from what fm owns in live, and otherwise
// returns live, the same pointer, without a request. applied reports whether it
// wrote; it is false when there is an error.
//
// live is the object as the caller knows it, nil if it knows none; then ApplyChanged
// applies. extract finds what a manager owns in an object: the generated
// ExtractX that belongs to config's type. If extract is nil, ApplyChanged always
// applies; if extract fails, it applies too.
//
// A uid or resourceVersion in config is a precondition and not a field to own. One
// that live does not meet makes ApplyChanged apply, so that the server refuses it.
func ApplyChanged[T metav1.Object, C any](ctx context.Context, fm FieldManager, c Applier[T, C], config C, live T, extract func(live T, fieldManager string) (C, error)) (answer T, applied bool, err error) {
	if err := fm.check(); err != nil {
		return answer, false, err
	}
	if extract != nil && !isNil(live) {
		owned, err := extract(live, string(fm))
		switch {
		case err != nil:
			// The generated functions fail if nothing is left in live of what the
			// manager owns: stringData of a Secret, or what a transform took out.
			klog.FromContext(ctx).V(4).Info("Applying because the owned fields cannot be extracted", "fieldManager", string(fm), "err", err)
		case same(config, owned, live):
			return live, false, nil
		}
	}
	answer, err = Apply(ctx, fm, c, config)
	return answer, err == nil, err
}

// ConflictError says which fields of a configuration belong to other managers. It
// wraps the API server's answer.
type ConflictError struct {
	Conflicts []Conflict // at least one, ordered by field: the server's order is random
	Err       error      // the server's answer
}

// Conflict is a field of a configuration with another value under another manager.
type Conflict struct {
	Field   string // the path, such as ".data.color" or ".spec.ports[port=80]"
	Manager string // the field manager that owns it; "" if the server did not name it
}

// Error names the fields and their managers.
func (e *ConflictError) Error() string {
	fields := make([]string, len(e.Conflicts))
	for i, c := range e.Conflicts {
		fields[i] = fmt.Sprintf("%s by %q", c.Field, c.Manager)
	}
	return "ssa: owned by other field managers: " + strings.Join(fields, ", ")
}

// Unwrap returns the server's answer, for which apierrors.IsConflict is true.
func (e *ConflictError) Unwrap() error { return e.Err }

// check refuses what the server would refuse too, without the request.
func (fm FieldManager) check() error {
	switch {
	case fm == "":
		return errors.New("ssa: the field manager is empty: use a constant that names the controller")
	case len(fm) > 128:
		return fmt.Errorf("ssa: the field manager %.32q has %d bytes, the API takes 128", string(fm), len(fm))
	}
	return nil
}

func apply[T, C any](ctx context.Context, fm FieldManager, call func(context.Context, C, metav1.ApplyOptions) (T, error), config C, force bool) (T, error) {
	var none T
	if err := fm.check(); err != nil {
		return none, err
	}
	answer, err := call(ctx, config, metav1.ApplyOptions{FieldManager: string(fm), Force: force})
	if err != nil {
		return none, fmt.Errorf("ssa: apply as %q: %w", fm, explain(err))
	}
	return answer, nil
}

// explain turns the API's two kinds of Conflict, and the two ways in which it says
// that a uid does not match, into what callers can tell apart.
func explain(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err
	}
	s := status.Status()
	var causes []metav1.StatusCause
	if s.Details != nil {
		causes = s.Details.Causes
	}
	var conflicts []Conflict
	for _, cause := range causes {
		switch {
		case cause.Type == metav1.CauseTypeFieldManagerConflict:
			conflicts = append(conflicts, Conflict{Field: cause.Field, Manager: manager(cause.Message)})
		case s.Reason == metav1.StatusReasonInvalid && cause.Field == "metadata.uid":
			// The name was taken again: the uid would have to change.
			return fmt.Errorf("%w: %w", ErrUIDMismatch, err)
		}
	}
	switch {
	case len(conflicts) > 0:
		slices.SortFunc(conflicts, func(a, b Conflict) int {
			return cmp.Or(cmp.Compare(a.Field, b.Field), cmp.Compare(a.Manager, b.Manager))
		})
		return &ConflictError{Conflicts: conflicts, Err: err}
	case s.Reason == metav1.StatusReasonConflict && strings.Contains(s.Message, "uid mismatch"):
		// There is no object of that name, and the API has nothing but the text to say so.
		return fmt.Errorf("%w: %w", ErrUIDMismatch, err)
	}
	return err
}

// manager finds the name in a cause's message: conflict with "name" using v1 at ...
func manager(message string) string {
	_, rest, _ := strings.Cut(message, "conflict with ")
	quoted, err := strconv.QuotedPrefix(rest)
	if err != nil {
		return ""
	}
	name, _ := strconv.Unquote(quoted) // QuotedPrefix accepts only what Unquote does
	return name
}

// same reports whether applying config would leave live as it is, given what the
// manager owns in live.
func same[T metav1.Object, C any](config, owned C, live T) bool {
	rest, uid, resourceVersion := withoutPreconditions(config)
	if uid != "" && uid != string(live.GetUID()) {
		return false
	}
	if resourceVersion != "" && resourceVersion != live.GetResourceVersion() {
		return false
	}
	return apiequality.Semantic.DeepEqual(rest, any(owned))
}

// withoutPreconditions returns config without its uid and resourceVersion, and these
// two. It copies what it changes. Every generated configuration of an object embeds
// a pointer to ObjectMetaApplyConfiguration; it is found by name, because importing
// its package brings in most of client-go. Other types are returned as they are.
func withoutPreconditions(config any) (rest any, uid, resourceVersion string) {
	const embedded = "ObjectMetaApplyConfiguration"
	value := reflect.ValueOf(config)
	if value.Kind() != reflect.Pointer || value.Elem().Kind() != reflect.Struct {
		return config, "", ""
	}
	pointer := value.Elem().FieldByName(embedded)
	if !pointer.IsValid() || pointer.Kind() != reflect.Pointer || pointer.IsNil() {
		return config, "", ""
	}
	meta := reflect.New(pointer.Type().Elem())
	meta.Elem().Set(pointer.Elem())
	take := func(name string) string {
		field := meta.Elem().FieldByName(name)
		if !field.IsValid() || field.Kind() != reflect.Pointer || field.IsNil() {
			return ""
		}
		text := field.Elem().String()
		field.SetZero()
		return text
	}
	uid, resourceVersion = take("UID"), take("ResourceVersion")
	copied := reflect.New(value.Type().Elem())
	copied.Elem().Set(value.Elem())
	copied.Elem().FieldByName(embedded).Set(meta)
	return copied.Interface(), uid, resourceVersion
}

func isNil(v any) bool {
	value := reflect.ValueOf(v)
	return !value.IsValid() || value.Kind() == reflect.Pointer && value.IsNil()
}
