package watcher

import (
	"context"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/controllerkit/controllerkit"
)

// smallCollection is the number of objects up to which check compares all of them.
const smallCollection = 100

// versions maps objects to their resource versions.
type versions map[types.UID]string

// check returns an error that wraps ErrRestored if the server's history differs from the
// delivered one, because its storage was restored from a backup.
//
// A server that has not reached the position again reports an older version. A server
// that has passed it used the versions in between for other changes, so the collection
// at the position is not the delivered one. Of a large collection, the newest object and
// the last deletion represent the others: a restore that loses any delivered event loses
// the last one.
func (l *loop[T]) check(ctx context.Context) error {
	if l.rv == "" {
		return nil
	}
	selector, want, deleted := l.w.FieldSelector, versions{}, false
	whole := l.complete && len(l.known) <= smallCollection
	if whole {
		for uid, object := range l.known {
			want[uid] = object.GetResourceVersion()
		}
	} else {
		var newest controllerkit.Object
		for _, object := range l.known {
			if newest == nil || newer(object, newest) {
				newest = object
			}
		}
		if newest != nil {
			selector = named(selector, newest)
			want[id(newest)] = newest.GetResourceVersion()
		}
		deleted = l.deleted != nil && (newest == nil || newer(l.deleted, newest))
	}

	got, now, err := l.versions(ctx, selector, "")
	if err != nil {
		return ignoreRefusal(err)
	}
	order, err := resourceversion.CompareResourceVersion(now, l.rv)
	switch {
	case err != nil:
		return nil //nolint:nilerr // a version that cannot be compared shows nothing
	case order < 0:
		return &failure{"check", fmt.Errorf("%w: it is at resource version %q, and was at %q", ErrRestored, now, l.rv)}
	case (whole || len(want) > 0) && !maps.Equal(got, want):
		if err := l.compare(ctx, selector, want); err != nil {
			return err
		}
	}
	if deleted {
		return l.compare(ctx, named(l.w.FieldSelector, l.deleted), versions{})
	}
	return nil
}

// compare returns an error if the objects at the position are not the wanted ones.
func (l *loop[T]) compare(ctx context.Context, selector string, want versions) error {
	got, at, err := l.versions(ctx, selector, l.rv)
	switch {
	case err != nil:
		return ignoreRefusal(err)
	case at != l.rv: // the server does not support the question
		return nil
	case !maps.Equal(got, want):
		return &failure{"check", fmt.Errorf("%w: its objects at resource version %q are not the ones that it reported", ErrRestored, l.rv)}
	}
	return nil
}

// versions lists objects as they are now, or were at a version, and returns the version
// of the list.
func (l *loop[T]) versions(ctx context.Context, selector, at string) (versions, string, error) {
	opts := metav1.ListOptions{
		LabelSelector: l.w.LabelSelector, FieldSelector: selector,
		ResourceVersion: at, Limit: smallCollection + 1,
	}
	if at != "" {
		opts.ResourceVersionMatch = metav1.ResourceVersionMatchExact
	}
	items, listMeta, err := l.page(ctx, "check", opts)
	got := versions{}
	for _, object := range items {
		got[id(object)] = object.GetResourceVersion()
	}
	return got, listMeta.ResourceVersion, err
}

// ignoreRefusal returns nil for a server that does not allow the check, or does not
// support a field selector by name.
func ignoreRefusal(err error) error {
	if apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsInvalid(err) || apierrors.IsMethodNotSupported(err) {
		return nil
	}
	return err
}

// named narrows a field selector to the name and namespace of an object.
func named(selector string, object metav1.Object) string {
	for _, term := range [][2]string{{"metadata.name", object.GetName()}, {"metadata.namespace", object.GetNamespace()}} {
		if term[1] == "" {
			continue
		}
		if selector != "" {
			selector += ","
		}
		selector += fields.OneTermEqualSelector(term[0], term[1]).String()
	}
	return selector
}
