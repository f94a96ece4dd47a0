package finalizer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// Lister is the one method of a client that lists objects. The typed clients, the dynamic
// client and the metadata client of client-go have it.
type Lister[L runtime.Object] interface {
	List(ctx context.Context, opts metav1.ListOptions) (L, error)
}

// Deleter is the one method of a client that deletes an object. Clients made by client-
// gen have it. The Delete of the dynamic and the metadata client also takes subresources.
// crd.Dynamic adapts a dynamic client; the metadata client needs a small adapter.
type Deleter interface {
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// Children is a client for [DeleteAll]. The client of a namespaced resource must be the
// one of a single namespace.
type Children[L runtime.Object] interface {
	Lister[L]
	Deleter
}

// Remaining returns the selected objects for which mine returns true, whether they are
// being deleted or not. It reads the current list from the API server, so an empty result
// without an error proves that the objects are gone. A cache cannot prove that.
//
// mine is required, because a selector that is too wide selects the objects of others;
// most callers use metav1.IsControlledBy. Remaining reads all pages, with or without a
// Limit in opts. If opts has a resourceVersion, Watch or Continue, Remaining fails
// without a request. The identity needs the verb list.
func Remaining[L runtime.Object](ctx context.Context, c Lister[L], opts metav1.ListOptions, mine func(metav1.Object) bool) ([]metav1.Object, error) {
	switch {
	case kube.IsNil(c):
		return nil, errors.New("finalizer: the client is nil: pass one of the children's resource")
	case mine == nil:
		return nil, errors.New("finalizer: mine is nil: pass a function that reports whether an object belongs to this owner")
	case opts.ResourceVersion != "" || opts.ResourceVersionMatch != "":
		return nil, errors.New("finalizer: opts.ResourceVersion is set: leave it empty, because an old list proves no absence")
	case opts.Watch:
		return nil, errors.New("finalizer: opts.Watch is set: leave it false, because a watch proves no absence")
	case opts.Continue != "":
		return nil, errors.New("finalizer: opts.Continue is set: leave it empty, because a list from the middle proves no absence")
	}
	var left []metav1.Object
	for {
		list, err := c.List(ctx, opts)
		if err != nil {
			return nil, fmt.Errorf("list the remaining objects: %w", err)
		}
		err = meta.EachListItem(list, func(item runtime.Object) error {
			child, err := meta.Accessor(item)
			if err == nil && mine(child) {
				left = append(left, child)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("list the remaining objects: %w", err)
		}
		page, err := meta.ListAccessor(list)
		if err != nil {
			return nil, fmt.Errorf("list the remaining objects: %w", err)
		}
		if opts.Continue = page.GetContinue(); opts.Continue == "" {
			return left, nil
		}
	}
}

// Delete deletes child in the version that the caller has read: the request has the UID
// and the resourceVersion as preconditions. If child changed or another object has its
// name, the error is a Conflict. If child is gone, Delete succeeds. If child is being
// deleted, it sends no request.
//
// The object can outlive a successful Delete; see [Remaining]. propagation decides about
// the objects that child owns and is required, because the API server's default depends
// on the resource. The identity needs the verb delete.
func Delete(ctx context.Context, c Deleter, child metav1.Object, propagation metav1.DeletionPropagation) error {
	switch {
	case kube.IsNil(c):
		return errors.New("finalizer: the client is nil: pass one of the child's resource and namespace")
	case kube.IsNil(child):
		return errors.New("finalizer: the child is nil: pass an object that the API server returned")
	case child.GetName() == "":
		return errors.New("finalizer: the child has no metadata.name: pass an object that the API server returned")
	case child.GetUID() == "":
		return fmt.Errorf("finalizer: child %q has no metadata.uid: pass an object that the API server returned", child.GetName())
	case child.GetResourceVersion() == "":
		return fmt.Errorf("finalizer: child %q has no metadata.resourceVersion: pass an object that the API server returned", child.GetName())
	}
	if err := checkPropagation(propagation); err != nil {
		return err
	}
	if child.GetDeletionTimestamp() != nil {
		return nil
	}
	uid, version := child.GetUID(), child.GetResourceVersion()
	err := c.Delete(ctx, child.GetName(), metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &uid, ResourceVersion: &version},
		PropagationPolicy: &propagation,
	})
	if err != nil && !kube.IsGone(err, child.GetName()) {
		return fmt.Errorf("delete %q: %w", child.GetName(), notServed(err, child.GetName()))
	}
	return nil
}

// DeleteAll is a [Step] that deletes children: it calls [Delete] for each object of
// [Remaining], and is done once Remaining returns an empty list, which can be in the same
// call. Until then its Message has the number of objects that are left. See these
// functions for the arguments.
//
// If a Delete fails, DeleteAll still deletes the other children. Its error joins the
// first errors and counts the others. After half of the time that ctx has left after the
// list, it leaves the rest to the next call. So a Timeout must be longer than a list takes.
//
// The creator of the children must have stopped. The controller that runs the plan has,
// because an object that is being deleted is not live.
func DeleteAll[L runtime.Object](ctx context.Context, c Children[L], opts metav1.ListOptions, mine func(metav1.Object) bool, propagation metav1.DeletionPropagation) (Progress, error) {
	if err := checkPropagation(propagation); err != nil {
		return Progress{}, err
	}
	if kube.IsNil(c) {
		return Progress{}, errors.New("finalizer: the client is nil: pass one of the children's resource")
	}
	left, err := Remaining(ctx, c, opts, mine)
	if err != nil {
		return Progress{}, err
	}
	start := time.Now()
	end, bounded := ctx.Deadline()
	asked, failed := 0, 0
	var errs []error
	var next time.Duration
	for _, child := range left {
		if child.GetDeletionTimestamp() != nil {
			continue
		}
		if bounded && time.Until(end) < time.Since(start) {
			next = time.Second
			break
		}
		asked++
		if err := Delete(ctx, c, child, propagation); err != nil {
			if failed++; failed <= 3 {
				errs = append(errs, err)
			}
		}
		if ctx.Err() != nil {
			break
		}
	}
	if failed > len(errs) {
		errs = append(errs, fmt.Errorf("%d more of %d failed", failed-len(errs), asked))
	}
	if err := errors.Join(errs...); err != nil {
		return Progress{}, err
	}
	if asked > 0 { // objects without finalizers are already gone
		now, err := Remaining(ctx, c, opts, mine)
		switch {
		case err == nil:
			left = now
		case next == 0: // otherwise some are left for sure, and the list can need more time than there is
			return Progress{}, err
		}
	}
	if len(left) == 0 {
		return Progress{Done: true}, nil
	}
	return Progress{After: next, Message: leftover(left)}, nil
}

// leftover describes the objects that are left. The same objects have the same
// description.
func leftover(left []metav1.Object) string {
	names := make([]string, 0, len(left))
	for _, child := range left {
		names = append(names, child.GetName())
	}
	slices.Sort(names)
	more := ""
	if len(names) > 3 {
		names, more = names[:3], ", ..."
	}
	return fmt.Sprintf("%d left: %s%s", len(left), strings.Join(names, ", "), more)
}

func checkPropagation(p metav1.DeletionPropagation) error {
	switch p {
	case metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan:
		return nil
	}
	return fmt.Errorf("finalizer: propagation is %q: use Background, Foreground or Orphan", p)
}
