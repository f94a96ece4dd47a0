package ssa

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/internal/apply"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// ErrUIDMismatch is wrapped by the error of an apply whose configuration has a uid, if
// no object of its name has that uid: the object was deleted, or deleted and created
// again. Read the object again before the next apply.
var ErrUIDMismatch = errors.New("ssa: no object has the uid of the configuration")

// FieldManager is the name under which the API server records the owner of fields. Use
// one constant for each intent of a controller, in every release and every replica. The
// API server rejects names that are empty, longer than 128 bytes, or not printable. It
// shows invalid UTF-8 as another name, so the functions of this package reject that, too.
type FieldManager string

// Apply applies config as fm with force, and returns the response of the API server. Fields
// of config that other managers own become fields of fm. If the object does not exist and
// config has no uid, Apply creates it. A field that the kind lacks is an error. No function
// of this package sends a request after ctx is done.
//
// request is the Apply method of a client, for example
// client.CoreV1().ConfigMaps(namespace).Apply, or its ApplyStatus method. An apply to
// the status creates no object: the error for an absent one is NotFound. For
// unstructured objects, request is the result of [Dynamic].
func Apply[T, C any](ctx context.Context, fm FieldManager, request func(context.Context, C, metav1.ApplyOptions) (T, error), config C) (T, error) {
	if _, err := encode(ctx, fm, request, config); err != nil {
		var none T
		return none, err
	}
	return call(ctx, fm, request, config, true)
}

// TryApply is Apply without force. If another manager owns a field of config and its
// value differs, TryApply does not write and returns a [*ConflictError].
//
// The API server reports no conflict if an apply replaces a map or a list by a value of
// another type, as fields without a type in their schema allow. The fields that other
// managers own in that map or list are then lost. It also reports none if null replaces a map or
// list that another manager owns as {} or [], and whose contents fm owned. TryApply finds these
// conflicts in the managedFields of live. It sends the uid and the resourceVersion of live, so that the
// apply changes only that version of the object. If live is stale, the error is a
// Conflict that is no *ConflictError. A live object without managedFields is an error.
//
// If live is nil, TryApply relies on the conflicts that the API server reports. That is
// enough for an object that does not exist, and for kinds whose fields all have types and of
// which none is nullable.
func TryApply[T metav1.Object, C any](ctx context.Context, fm FieldManager, request func(context.Context, C, metav1.ApplyOptions) (T, error), config C, live T) (T, error) {
	var none T
	c, err := encode(ctx, fm, request, config)
	if err != nil {
		return none, err
	}
	if !kube.IsNil(live) {
		if err := c.Match(live); err != nil {
			return none, prefixed(err)
		}
		if err := apply.Taken(ctx, string(fm), c, live); err != nil {
			return none, failed(fm, err)
		}
		if config, err = apply.Guard(c, config, live, true); err != nil {
			return none, prefixed(err)
		}
	}
	return call(ctx, fm, request, config, false)
}

func prefixed(err error) error { return fmt.Errorf("ssa: %w", err) }

// encode checks the arguments of an apply, and its context.
func encode[T, C any](ctx context.Context, fm FieldManager, request func(context.Context, C, metav1.ApplyOptions) (T, error), config C) (*apply.Config, error) {
	if request == nil {
		return nil, errors.New("ssa: request is nil: pass the Apply or ApplyStatus method of a client")
	}
	if err := apply.CheckManager(string(fm)); err != nil {
		return nil, prefixed(err)
	}
	c, err := apply.Encode(config)
	if err != nil {
		return nil, prefixed(err)
	}
	if err := ctx.Err(); err != nil {
		return nil, failed(fm, err)
	}
	return c, nil
}

// call makes the request, unless the context ended during the decision.
func call[T, C any](ctx context.Context, fm FieldManager, request func(context.Context, C, metav1.ApplyOptions) (T, error), config C, force bool) (response T, err error) {
	if err = ctx.Err(); err == nil {
		calls.NoteWrite(ctx, calls.Apply, true)
		response, err = request(ctx, config, metav1.ApplyOptions{FieldManager: string(fm), Force: force})
	}
	if err != nil {
		var none T
		return none, failed(fm, err)
	}
	if !kube.IsNil(response) {
		calls.NoteWritten(ctx, response)
	}
	return response, nil
}

// failed wraps the error of a request, or of a check in its place. The errors of this
// package begin with its name already.
func failed(fm FieldManager, err error) error {
	var conflict *ConflictError
	if err = explain(kube.WithoutValues(kube.AsRemovedVersion(err))); errors.As(err, &conflict) || errors.Is(err, ErrUIDMismatch) {
		return fmt.Errorf("%w: apply as %q", err, fm)
	}
	return fmt.Errorf("ssa: apply as %q: %w", fm, err)
}

// explain makes a conflict about fields a *ConflictError, and both responses about
// a uid an ErrUIDMismatch.
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
			// Another object has the name, and the apply would change its uid.
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
		// No object has the name. Only the message of the response shows that.
		return fmt.Errorf("%w: %w", ErrUIDMismatch, err)
	}
	return err
}

// manager finds the name in the message of a cause: conflict with "name" using v1 at ...
func manager(message string) string {
	_, rest, _ := strings.Cut(message, "conflict with ")
	quoted, err := strconv.QuotedPrefix(rest)
	if err != nil {
		return ""
	}
	name, _ := strconv.Unquote(quoted) // QuotedPrefix accepts only what Unquote does
	return name
}
