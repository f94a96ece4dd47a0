package kube

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit"
)

// The differences between a cached object and the API server's. Each has a method
// Stale() bool that returns true.
var (
	ErrGone     error = staleError("the object no longer exists")
	ErrReplaced error = staleError("another object has its name")
	ErrChanged  error = staleError("the object changed")
)

type staleError string

func (e staleError) Error() string { return "the cached object is stale: " + string(e) }

// Stale makes the reconcile loop wait for the cache.
func (staleError) Stale() bool { return true }

// Live reads the object that cached is a copy of. It returns ErrGone if the object does
// not exist, and ErrReplaced with the other object if the name has another UID. It does
// not compare resource versions.
func Live[T metav1.Object](ctx context.Context, client controllerkit.Getter[T], cached metav1.Object) (T, error) {
	var zero T
	if IsNil(client) {
		return zero, Terminal(errors.New("the client is nil: pass the client of the object's kind"))
	}
	live, err := client.Get(ctx, cached.GetName(), metav1.GetOptions{})
	switch {
	case IsGone(err, cached.GetName()):
		return zero, fmt.Errorf("%w: %w", ErrGone, err)
	case err != nil:
		return zero, err
	case IsNil(live):
		return zero, errors.New("the client returned neither an object nor an error")
	case live.GetUID() != cached.GetUID():
		return live, fmt.Errorf("%w: uid %q, not %q", ErrReplaced, live.GetUID(), cached.GetUID())
	}
	return live, nil
}

// CheckRead returns a terminal error if obj has no name, UID or resource version, which
// every object has that the API server returned.
func CheckRead(obj metav1.Object) error {
	field := ""
	switch {
	case IsNil(obj):
		return Terminal(errors.New("the object is nil: pass one that the API server returned"))
	case obj.GetName() == "":
		field = "name"
	case obj.GetUID() == "":
		field = "uid"
	case obj.GetResourceVersion() == "":
		field = "resourceVersion"
	default:
		return nil
	}
	return Terminal(fmt.Errorf("object %q has no metadata.%s: pass one that the API server returned", NameOf(obj), field))
}

// Terminal returns err with a method Terminal() bool that returns true. The reconcile
// loop does not retry such an error.
func Terminal(err error) error { return terminalError{err} }

type terminalError struct{ error }

// Terminal ends the retries of the reconcile loop.
func (terminalError) Terminal() bool { return true }

func (e terminalError) Unwrap() error { return e.error }
