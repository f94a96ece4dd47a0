package objects

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// MaxPrune bounds the deletions of one call. The next one goes on.
const MaxPrune = 100

// Marked is a kind of children, of which some have a label in place of an owner reference.
type Marked interface {
	Info() About
	Marked(ctx context.Context, owner types.UID) ([]metav1.Object, error)
	Remove(ctx context.Context, child metav1.Object) error
	Release(ctx context.Context, child metav1.Object) error
}

// Marked reads the children that have no owner reference from the API server. An informer that is given may have
// shown other namespaces before, so they are listed in all.
func (r *Resource[T]) Marked(ctx context.Context, owner types.UID) ([]metav1.Object, error) {
	return finalizer.Remaining(ctx, r.Client.Namespace(r.Namespace), metav1.ListOptions{LabelSelector: OwnerUID + "=" + string(owner)},
		func(child metav1.Object) bool { return metav1.GetControllerOfNoCopy(child) == nil })
}

// Remove deletes a child in the version that was read.
func (r *Resource[T]) Remove(ctx context.Context, child metav1.Object) error {
	return finalizer.Delete(ctx, r.Client.Namespace(child.GetNamespace()), child, metav1.DeletePropagationBackground)
}

// Release removes the label of a child, in the version that was read, and the annotation with the name of its owner.
func (r *Resource[T]) Release(ctx context.Context, child metav1.Object) error {
	operations := []kube.Operation{kube.TestUID(child), kube.Test("/metadata/resourceVersion", child.GetResourceVersion())}
	remove := func(field, key string, of map[string]string) {
		if _, ok := of[key]; ok {
			operations = append(operations, kube.Operation{Op: "remove", Path: "/metadata/" + field + "/" + strings.ReplaceAll(key, "/", "~1")})
		}
	}
	remove("labels", OwnerUID, child.GetLabels())
	remove("annotations", OwnerName, child.GetAnnotations())
	_, err := kube.Patch[T](ctx, r.Client.Namespace(child.GetNamespace()), child.GetName(), operations, metav1.PatchOptions{})
	if err != nil && !kube.IsGone(err, child.GetName()) {
		return fmt.Errorf("release %q: %w", child.GetName(), err)
	}
	return nil
}

// End deletes the marked children of a deleted owner, or releases them. It returns an error until none are left.
func End[K Marked](ctx context.Context, kinds []K, owner metav1.Object, release bool) error {
	var left []string // names
	var errs []error
	for _, k := range kinds {
		children, err := k.Marked(ctx, owner.GetUID())
		errs = append(errs, err)
		takeTurns(children)
		end, todo, rest := k.Remove, slices.DeleteFunc(slices.Clone(children), deleting), children
		if release {
			end, todo, rest = k.Release, children, children[min(len(children), MaxPrune):]
		}
		for _, child := range todo[:min(len(todo), MaxPrune)] {
			errs = append(errs, end(ctx, child))
		}
		for _, child := range rest {
			left = append(left, ID{k.Info().Kind.GroupKind(), types.NamespacedName{Namespace: child.GetNamespace(), Name: child.GetName()}}.String())
		}
	}
	err := errors.Join(errs...)
	if err == nil && len(left) == 0 {
		return nil
	}
	const again = 2 * time.Second
	message := ""
	if err == nil {
		message = remaining(left)
	}
	return &finalizer.BlockedError{
		Steps: []finalizer.BlockedStep{{Name: "children", Message: message, Err: err, After: again}},
		Since: owner.GetDeletionTimestamp().Time, After: again, Err: err,
	}
}

func deleting(child metav1.Object) bool { return child.GetDeletionTimestamp() != nil }

// takeTurns sorts children such that each namespace has one of the first ones, so that those of one, whose deletion can
// fail, do not keep those of another.
func takeTurns(children []metav1.Object) {
	turns, next := make(map[metav1.Object]int, len(children)), map[string]int{}
	for _, child := range children {
		turns[child] = next[child.GetNamespace()]
		next[child.GetNamespace()]++
	}
	slices.SortStableFunc(children, func(a, b metav1.Object) int { return turns[a] - turns[b] })
}

// remaining describes the children that are left. The same ones have the same description.
func remaining(names []string) string {
	more := ""
	if len(names) > 3 {
		more = ", ..."
	}
	return fmt.Sprintf("%d children in other namespaces or of the cluster are left: %s%s", len(names), strings.Join(names[:min(len(names), 3)], ", "), more)
}
