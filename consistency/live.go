package consistency

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// The errors of [ConfirmLive] for a cached object that is not the newest. Each has a
// method Stale() bool that returns true, by which a reconcile.Controller retries the
// key when the cache has caught up, without counting a failure.
var (
	// ErrGone means that no object has the name.
	ErrGone = kube.ErrGone
	// ErrReplaced means that another object has the name, with another UID.
	ErrReplaced = kube.ErrReplaced
	// ErrChanged means that the object was written after it was cached.
	ErrChanged = kube.ErrChanged
)

// ConfirmLive reads the object from the API server and returns it if it is the cached
// one, in the cached version. Call it before a destructive act, such as a deletion, that
// was decided from a cache, and before the creation of something outside the cluster: the
// cache can be minutes old, and after a restart even older than before. It costs one GET,
// which the API server reads from etcd.
//
// A difference is an error that wraps [ErrGone] and the API's NotFound, [ErrReplaced]
// or [ErrChanged]. Most callers return it, and decide again when the cache has caught
// up. With ErrReplaced and ErrChanged, live is the API server's object, so a caller can
// find out whether the change matters; with other errors live is the zero T. A write to
// the status is also a change: an object with a heartbeat is rarely confirmed.
//
// The object can change after the GET. Give the act the same conditions: pass the UID
// and resource version of live as the Preconditions of a deletion; an update carries
// both.
//
// A 404 that does not name the object, such as a proxy's,
// is not ErrGone. An object looks gone to a client of another namespace. If cached has
// no name, UID or resource version, ConfirmLive sends no request and its error has a
// method Terminal() bool that returns true. cached is not changed.
func ConfirmLive[T metav1.Object](ctx context.Context, c controllerkit.Getter[T], cached metav1.Object) (live T, err error) {
	if err := kube.CheckRead(cached); err != nil {
		return live, fmt.Errorf("consistency: confirm live: %w", err)
	}
	live, err = kube.Live(ctx, c, cached)
	if err == nil && live.GetResourceVersion() != cached.GetResourceVersion() {
		err = fmt.Errorf("%w from resource version %s to %s", ErrChanged, cached.GetResourceVersion(), live.GetResourceVersion())
	}
	if err != nil {
		return live, fmt.Errorf("consistency: confirm %s live: %w", kube.NameOf(cached), err)
	}
	return live, nil
}
