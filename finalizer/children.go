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

// Lister is the one method of a client that reads objects. The typed clients, the
// dynamic client and the metadata client of client-go have it.
type Lister[L runtime.Object] interface {
	List(ctx context.Context, opts metav1.ListOptions) (L, error)
}

// Deleter is the one method of a client that deletes an object. The clients made
// by client-gen have it. Those of the dynamic and the metadata client take
// subresources too and need a type around them that leaves these out.
type Deleter interface {
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// Children is a client that [DeleteAll] can use. That of a namespaced resource must
// be of one namespace.
type Children[L runtime.Object] interface {
	Lister[L]
	Deleter
}

// Remaining returns the objects that are still there, being deleted or not, out of
// those that opts selects and mine reports true for. It is how a cleanup proves
// that something is gone: the API server answers with what is stored at the time
// of the call, which a cache cannot. An error proves nothing.
//
// mine is required, as a selector that is too wide costs other people's objects;
// that is metav1.IsControlledBy for most. opts needs no Limit; with one, all pages
// are read. A resourceVersion in opts, which would allow an old answer, Watch and a
// Continue are refused before any request. The identity needs the verb list.
func Remaining[L runtime.Object](ctx context.Context, c Lister[L], opts metav1.ListOptions, mine func(metav1.Object) bool) ([]metav1.Object, error) {
	switch {
	case kube.IsNil(c):
		return nil, errors.New("finalizer: the client is nil: pass one of the children's resource")
	case mine == nil:
		return nil, errors.New("finalizer: mine is nil: pass a function that tells which objects are this owner's")
	case opts.ResourceVersion != "" || opts.ResourceVersionMatch != "":
		return nil, errors.New("finalizer: opts.ResourceVersion is set: leave it empty, an old answer proves no absence")
	case opts.Watch:
		return nil, errors.New("finalizer: opts.Watch is set: leave it false, a watch has no end and proves no absence")
	case opts.Continue != "":
		return nil, errors.New("finalizer: opts.Continue is set: leave it empty, an answer that starts in the middle proves no absence")
	}
	var left []metav1.Object
	for {
		list, err := c.List(ctx, opts)
		if err != nil {
			return nil, fmt.Errorf("list what remains: %w", err)
		}
		err = meta.EachListItem(list, func(item runtime.Object) error {
			child, err := meta.Accessor(item)
			if err == nil && mine(child) {
				left = append(left, child)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("list what remains: %w", err)
		}
		page, err := meta.ListAccessor(list)
		if err != nil {
			return nil, fmt.Errorf("list what remains: %w", err)
		}
		if opts.Continue = page.GetContinue(); opts.Continue == "" {
			return left, nil
		}
	}
}

// Delete asks for the deletion of child in the version that the caller has seen: it
// sends the UID and the resourceVersion as preconditions. That the object is gone
// is success. That it changed, or another one has its name, is a Conflict: read
// again and decide again. It does nothing, without a request, if child is being
// deleted already.
//
// That Delete succeeds does not mean that the object is gone; see [Remaining].
// propagation says what becomes of the objects that child owns, and is required:
// the default of the API server depends on the resource. The identity needs the
// verb delete.
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

// DeleteAll is the step of a [Plan] that deletes children: it calls [Delete] for
// each object that [Remaining] finds and says done once Remaining finds none, which
// may be in the same call. Until then its Message tells how many are left. The
// arguments are those of the two functions.
//
// A child that fails does not keep the others from being deleted; the first errors
// are joined and the others counted. After half of the time that ctx has, the rest is
// left to the next call: that more children are left than a Timeout is long enough for
// is no failure. Whoever creates the children must have stopped when it runs, or what
// is made after it said done stays; the controller that runs it does so by itself, as
// an object that is being deleted is not live.
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
	if asked > 0 { // without finalizers they are gone at once
		if left, err = Remaining(ctx, c, opts, mine); err != nil {
			return Progress{}, err
		}
	}
	if len(left) == 0 {
		return Progress{Done: true}, nil
	}
	return Progress{After: next, Message: leftover(left)}, nil
}

// leftover says what is left, the same for the same objects.
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
