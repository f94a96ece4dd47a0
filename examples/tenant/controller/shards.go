package controller

import (
	"context"
	"errors"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/shard"
)

// shards divides the tenants among the replicas of a group. All replicas cache all tenants,
// and each reconciles the tenants of its shards.
type shards struct {
	group *shard.Group

	mu    sync.Mutex
	owned map[int]*owned
}

// owned is a shard of this replica.
type owned struct {
	ctx   context.Context // of its work
	calls sync.WaitGroup  // reconciles
}

// work is the work of one shard: its tenants are queued, and reconciled until ctx is done.
func (c *Controller) work(q workqueue.TypedInterface[types.NamespacedName]) func(context.Context, shard.Shard) error {
	return func(ctx context.Context, s shard.Shard) error {
		o := &owned{ctx: ctx}
		c.shards.mu.Lock()
		c.shards.owned[s.Index] = o
		c.shards.mu.Unlock()
		// A tenant that comes later has an event.
		tenants, err := c.tenants.List(labels.Everything())
		for _, t := range tenants {
			if i, err := c.shards.group.Ranges.Of(t); err == nil && i == s.Index {
				q.Add(types.NamespacedName{Name: t.Name})
			}
		}
		if err == nil {
			<-ctx.Done()
		}
		c.shards.mu.Lock()
		delete(c.shards.owned, s.Index)
		c.shards.mu.Unlock()
		o.calls.Wait()
		return err
	}
}

// begin begins the reconcile of an object. It returns its context, which ends if the shard
// is lost, and false if the object is of another replica.
func (s *shards) begin(ctx context.Context, obj metav1.Object) (_ context.Context, end func(), ok bool) {
	i, err := s.group.Ranges.Of(obj)
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.owned[i]
	if err != nil || o == nil {
		return nil, nil, false
	}
	o.calls.Add(1)
	ctx, cancel := context.WithCancelCause(both{ctx, o.ctx})
	stop := context.AfterFunc(o.ctx, func() {
		if cause := context.Cause(o.ctx); errors.Is(cause, shard.ErrLost) {
			cancel(cause) // otherwise the shard waits for the end of the call
		}
	})
	return ctx, func() { stop(); cancel(nil); o.calls.Done() }, true
}

// both has the values of two contexts.
type both struct {
	context.Context
	shard context.Context
}

func (b both) Value(key any) any {
	if v := b.Context.Value(key); v != nil {
		return v
	}
	return b.shard.Value(key)
}
