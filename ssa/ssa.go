package ssa

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrUIDMismatch is wrapped by the error of an apply whose configuration carries a
// uid that no object of that name has: the object was deleted, or deleted and
// created again. There is nothing to apply to; read again.
var ErrUIDMismatch = errors.New("ssa: there is no object with the uid of the configuration")

// FieldManager is the name under which fields are owned: one constant for each
// intent of a controller, the same in every release and every replica. The empty
// name, names of more than 128 bytes, and characters that cannot be printed are errors.
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
	if isNil(c) {
		return noClient[T]()
	}
	return apply(ctx, fm, c.Apply, config, true)
}

// ApplyStatus is Apply for the status subresource. It creates nothing: a missing
// object is a NotFound. Fields outside the status are ignored by the server.
func ApplyStatus[T, C any](ctx context.Context, fm FieldManager, c StatusApplier[T, C], config C) (T, error) {
	if isNil(c) {
		return noClient[T]()
	}
	return apply(ctx, fm, c.ApplyStatus, config, true)
}

// TryApply is Apply without force: if another manager owns a field of config
// and its value differs, nothing is written and the error is a [*ConflictError].
func TryApply[T, C any](ctx context.Context, fm FieldManager, c Applier[T, C], config C) (T, error) {
	if isNil(c) {
		return noClient[T]()
	}
	return apply(ctx, fm, c.Apply, config, false)
}

// TryApplyStatus is ApplyStatus without force, as TryApply is Apply.
func TryApplyStatus[T, C any](ctx context.Context, fm FieldManager, c StatusApplier[T, C], config C) (T, error) {
	if isNil(c) {
		return noClient[T]()
	}
	return apply(ctx, fm, c.ApplyStatus, config, false)
}

// ApplyChanged is Apply if config would change live, and otherwise returns live, the
// same pointer, without a request. applied reports whether it made a successful
// request; it is false when there is an error.
//
// live is the object as the caller knows it, nil if it knows none; then ApplyChanged
// applies, and creates what is missing. With live it applies to the object with that
// uid or to none: if live is gone or was replaced the error is [ErrUIDMismatch], and
// nothing comes back that a user has deleted. A live object of another name or
// namespace than config is an error.
//
// The decision is made from the managedFields of live. extract answers what they leave
// open: it is the generated ExtractX that belongs to config's type, and nil means that
// there is none. Where a doubt remains ApplyChanged applies, as a dry run would be a
// request as well. [Memory] makes doubts rare, and decisions fast.
//
// A uid or resourceVersion in config is a precondition and not a field to own. One
// that live does not meet makes ApplyChanged apply, so that the server refuses it.
func ApplyChanged[T metav1.Object, C any](ctx context.Context, fm FieldManager, c Applier[T, C], config C, live T, extract func(live T, fieldManager string) (C, error)) (answer T, applied bool, err error) {
	return applyChanged(ctx, nil, fm, c, config, live, extract)
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
	case strings.ContainsFunc(string(fm), func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }):
		return fmt.Errorf("ssa: the field manager %q has characters that cannot be printed", string(fm))
	}
	return nil
}

func apply[T, C any](ctx context.Context, fm FieldManager, request func(context.Context, C, metav1.ApplyOptions) (T, error), config C, force bool) (answer T, err error) {
	if err := fm.check(); err != nil {
		return answer, err
	}
	e, err := encodeConfig(config)
	if err != nil {
		return answer, err
	}
	if err := e.read(nil); err != nil {
		return answer, err
	}
	return call(ctx, fm, request, config, force)
}

func noClient[T any]() (none T, err error) {
	return none, errors.New("ssa: the client is nil: pass one of the resource that the configuration is for")
}

func call[T, C any](ctx context.Context, fm FieldManager, request func(context.Context, C, metav1.ApplyOptions) (T, error), config C, force bool) (T, error) {
	answer, err := request(ctx, config, metav1.ApplyOptions{FieldManager: string(fm), Force: force})
	if err != nil {
		var none T
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
