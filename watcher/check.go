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
)

// smallCollection is the number of objects up to which check compares all of them.
const smallCollection = 100

// check returns an error if the history of the server is not the one that was delivered:
// its storage was restored from a backup. It asks for the collection as it was at the
// position. A server that has not reached the position again rejects that. One that has
// passed it has made other changes with the versions in between, so that what was
// delivered is not in the response.
//
// Of a large collection, the object that was delivered last represents the others: if the
// restore lost a delivered event, it lost that one.
func (l *loop[T]) check(ctx context.Context) error {
	if l.rv == "" {
		return nil
	}
	opts := metav1.ListOptions{
		LabelSelector: l.w.LabelSelector, FieldSelector: l.w.FieldSelector,
		ResourceVersion: l.rv, ResourceVersionMatch: metav1.ResourceVersionMatchExact, Limit: smallCollection + 1,
	}
	want := map[types.UID]string{}
	compare := true
	switch {
	case l.complete && len(l.known) <= smallCollection:
		for uid, object := range l.known {
			want[uid] = object.GetResourceVersion()
		}
	case l.newest != nil:
		opts.FieldSelector = named(opts.FieldSelector, l.newest)
		if !l.gone {
			want[id(l.newest)] = l.newest.GetResourceVersion()
		}
	default: // nothing was delivered yet
		compare = false
		opts.Limit = 1
	}
	items, listMeta, err := l.page(ctx, "check", opts)
	switch {
	case apierrors.IsForbidden(err), apierrors.IsBadRequest(err), apierrors.IsInvalid(err), apierrors.IsMethodNotSupported(err):
		return nil // the server cannot be asked
	case err != nil:
		return err
	}
	got := map[types.UID]string{}
	for _, object := range items {
		got[id(object)] = object.GetResourceVersion()
	}
	switch order, orderErr := resourceversion.CompareResourceVersion(listMeta.ResourceVersion, l.rv); {
	case listMeta.ResourceVersion == l.rv && compare && !maps.Equal(got, want):
		return &failure{"check", fmt.Errorf("%w: at resource version %q it has other objects than it had", ErrRestored, l.rv)}
	case orderErr == nil && order < 0:
		return &failure{"check", fmt.Errorf("%w: it is at resource version %q, which is before %q", ErrRestored, listMeta.ResourceVersion, l.rv)}
	}
	return nil // a server that responds with another version than it was asked for cannot be compared
}

// named narrows a field selector to the name and namespace of an object.
func named(selector string, object metav1.Object) string {
	for field, value := range map[string]string{
		metav1.ObjectNameField: object.GetName(), "metadata.namespace": object.GetNamespace(),
	} {
		if value == "" {
			continue
		}
		if selector != "" {
			selector += ","
		}
		selector += fields.OneTermEqualSelector(field, value).String()
	}
	return selector
}
