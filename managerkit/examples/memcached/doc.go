// Package memcached is an operator of caches, in two versions: before has the usual patterns
// of programs with controller-runtime, and after takes the packages finalizer, status,
// consistency and ssa. The test explores both.
package memcached

import (
	"context"
	"errors"
)

// A Directory lists the addresses of caches for programs outside of the cluster.
type Directory interface {
	// Register stores the address of a cache, or replaces it.
	Register(ctx context.Context, id, address string) error

	// Unregister removes the address of a cache. If there is none, the error wraps
	// ErrNotRegistered.
	Unregister(ctx context.Context, id string) error
}

// ErrNotRegistered is the error of a Directory for an unknown cache.
var ErrNotRegistered = errors.New("the cache is not registered")
