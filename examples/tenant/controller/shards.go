package controller

import (
	"context"
	"errors"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/shard"
)

// shards divides the tenants among the replicas of a group. All replicas cache all tenants,
// and each reconciles the tenants of its shards.
type shards struct {
	group   *shard.Group
	loop    *reconcile.Controller[types.NamespacedName]
	tenants cache.Indexer // with the index byShard

	mu    sync.Mutex
	owned map[int]*owned
}

// owned is a shard of this replica.
type owned struct {
	ctx   context.Context // of its work
	calls sync.WaitGroup  // reconciles
}

// byShard is the index of the tenants of each shard. Without it, each shard would read those of all.
const byShard = "shard"

// index is the function of byShard.
func (s *shards) index(obj any) ([]string, error) {
	if t, ok := obj.(metav1.Object); ok {
		if i, err := s.group.Ranges.Of(t); err == nil {
			return []string{strconv.Itoa(i)}, nil
		}
	}
	return nil, nil // no replica reconciles it
}

// of returns the names of the tenants of a shard.
func (s *shards) of(index int) ([]string, error) {
	return s.tenants.IndexKeys(byShard, strconv.Itoa(index))
}

// enqueue queues the tenants of a shard.
func (s *shards) enqueue(q workqueue.TypedInterface[types.NamespacedName], index int) error {
	names, err := s.of(index)
	for _, name := range names {
		q.Add(types.NamespacedName{Name: name})
	}
	return err
}

// work is the work of one shard: its tenants are queued, and reconciled until ctx is done.
func (c *Controller) work(q workqueue.TypedInterface[types.NamespacedName]) func(context.Context, shard.Shard) error {
	return func(ctx context.Context, s shard.Shard) error {
		o := &owned{ctx: ctx}
		c.shards.mu.Lock()
		c.shards.owned[s.Index] = o
		c.shards.mu.Unlock()
		err := c.shards.enqueue(q, s.Index) // a tenant that comes later has an event
		if err == nil {
			<-ctx.Done()
		}
		c.shards.mu.Lock()
		delete(c.shards.owned, s.Index)
		c.shards.mu.Unlock()
		o.calls.Wait()
		// Without the shard a call succeeds and writes nothing. So the loop forgets the tenants that
		// failed: from now on the next owner counts them.
		return errors.Join(err, c.shards.enqueue(q, s.Index))
	}
}

// objects returns the number of tenants of this replica.
func (c *Controller) objects() int64 {
	c.shards.mu.Lock()
	defer c.shards.mu.Unlock()
	number := 0
	for i := range c.shards.owned {
		names, _ := c.shards.of(i)
		number += len(names)
	}
	return int64(number)
}

// begin begins the reconcile of an object. It returns its context, which ends if the shard
// is lost, and false if the object is of another replica.
func (s *shards) begin(ctx context.Context, key types.NamespacedName, obj metav1.Object) (_ context.Context, end func(), ok bool) {
	o := s.call(obj)
	if o == nil {
		return nil, nil, false
	}
	ctx, cancel := context.WithCancelCause(both{ctx, o.ctx})
	stop := context.AfterFunc(o.ctx, func() {
		if cause := context.Cause(o.ctx); errors.Is(cause, shard.ErrLost) {
			cancel(cause) // otherwise the shard waits for the end of the call
		}
	})
	if !consistency.LiveRead(ctx) { // the loop has asked the Gate before the shard was known
		ctx = s.loop.Gate.Begin(ctx, key)
	}
	return ctx, func() { stop(); cancel(nil); o.calls.Done() }, true
}

// call counts a reconcile of the shard of an object, and returns the shard, or nil if another replica has it.
func (s *shards) call(obj metav1.Object) *owned {
	i, err := s.group.Ranges.Of(obj)
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.owned[i]
	if err != nil || o == nil {
		return nil
	}
	o.calls.Add(1)
	return o
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
