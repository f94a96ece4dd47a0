package leader

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

// watch keeps a watch on the Lease until ctx is done. Whether it works only
// matters for how soon news arrives, so failures cost time and nothing else.
func (c *candidate) watch(ctx context.Context) {
	first, limit := c.retryPeriod/4, 16*c.retryPeriod
	for delay := first; ctx.Err() == nil; {
		start := time.Now()
		err := c.watchOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(start) > limit {
			delay = first
		}
		c.logger.V(2).Info("The watch of the Lease ended, reading it instead meanwhile", "err", err, "retryAfter", delay)
		timer := time.NewTimer(jittered(delay))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		delay = min(2*delay, limit)
	}
}

// watchOnce follows one watch to its end.
func (c *candidate) watchOnce(ctx context.Context) error {
	// A connection that is dead without our knowing ends some minutes later.
	lifetime := 5*time.Minute + rand.N(5*time.Minute)
	ctx, cancel := context.WithTimeout(ctx, lifetime)
	defer cancel()
	establish := time.AfterFunc(c.callTimeout, cancel)
	w, err := c.client.Watch(ctx, metav1.ListOptions{
		FieldSelector:  fields.OneTermEqualSelector(metav1.ObjectNameField, c.elector.Name).String(),
		TimeoutSeconds: ptr.To(int64(lifetime / time.Second)),
	})
	establish.Stop()
	if err != nil {
		return err
	}
	defer w.Stop()
	c.setWatching(true)
	defer c.setWatching(false)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, ok := <-w.ResultChan():
			if !ok {
				return errors.New("closed by the server")
			}
			if event.Type == watch.Error {
				return apierrors.FromObject(event.Object)
			}
			if lease, ok := event.Object.(*coordinationv1.Lease); ok && lease.Name == c.elector.Name {
				c.event(event.Type, lease)
			}
		}
	}
}

func (c *candidate) setWatching(on bool) {
	c.mu.Lock()
	c.watching = on
	c.mu.Unlock()
}

// event takes in a watch event. While leading, one that is older than what is
// known says nothing. A newer one ends the term if the Lease was deleted or is in
// a later term. Whatever else is not this Run's record makes the leader renew at
// once, which shows the truth.
func (c *candidate) event(kind watch.EventType, lease *coordinationv1.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.leading; t != nil {
		same := lease.UID == t.LeaseUID
		switch {
		case same && c.olderLocked(lease):
			return
		case same && (kind == watch.Deleted || numberOf(lease) > t.Number):
			t.end()
		case !same || !c.wroteLocked(lease):
			t.renewAtOnce()
			return
		}
	}
	switch {
	case kind != watch.Deleted:
		c.observeLocked(lease)
	case c.seen.lease != nil && c.seen.lease.UID == lease.UID:
		c.observeDeletedLocked(lease)
	}
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// olderLocked reports whether the version is older than the one in view. One
// that cannot be compared is not.
func (c *candidate) olderLocked(lease *coordinationv1.Lease) bool {
	if c.seen.lease == nil {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(lease.ResourceVersion, c.seen.lease.ResourceVersion)
	return err == nil && order < 0
}
