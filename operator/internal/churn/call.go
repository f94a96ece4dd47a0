package churn

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

const (
	maxCreated = 10 // children of a call whose names are checked
	maxWhole   = 10 // children that a call reads for that: each is decoded
)

// A Call has the children that a call created. It is safe for concurrent use.
type Call struct {
	mu      sync.Mutex // guards created
	created []Apply
}

// Applied notes an apply.
func (c *Call) Applied(ctx context.Context, f *Finder, a Apply) {
	if a.Before == nil && a.Changed {
		c.mu.Lock()
		if len(c.created) < maxCreated {
			c.created = append(c.created, Apply{Owner: a.Owner, Config: a.Config, Manager: a.Manager})
		}
		c.mu.Unlock()
	}
	f.Applied(ctx, a)
}

// A Kind reads the children of one kind in the cache.
type Kind interface {
	Owned(owner types.UID) ([]metav1.Object, error)     // their metadata
	Whole(namespace, name string) (metav1.Object, bool) // one of them
}

// End looks for children that the owner has under another name than that of one which the call created.
// kind returns that of a child, and named reports whether the call applied a child.
func (c *Call) End(ctx context.Context, f *Finder, kind func(schema.GroupKind) Kind, named func(schema.GroupKind, types.NamespacedName) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	read := 0
	more := func() bool { return read < maxWhole && ctx.Err() == nil }
	for _, a := range c.created {
		if !more() {
			return
		}
		k := a.Config.GroupVersionKind().GroupKind()
		children, err := kind(k).Owned(a.Owner.GetUID())
		if err != nil {
			continue // an error of prune
		}
		f.Created(ctx, a, children, func(child metav1.Object) (metav1.Object, bool) {
			if child.GetDeletionTimestamp() != nil || named(k, types.NamespacedName{Namespace: child.GetNamespace(), Name: child.GetName()}) {
				return nil, true
			}
			read++
			whole, _ := kind(k).Whole(child.GetNamespace(), child.GetName())
			return whole, more()
		})
	}
}
