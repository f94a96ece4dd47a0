package applyset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/ssa/applyset/internal/definition"
)

// waitForCRDs waits for all applied CustomResourceDefinitions, one after the other: that
// takes no longer than the slowest.
func (c *batchCall) waitForCRDs(ctx context.Context) {
	timeout := cmp.Or(c.CRDTimeout, 30*time.Second)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("CRDTimeout of %v is over: %w", timeout, context.DeadlineExceeded))
	defer cancel()
	for _, o := range c.crds {
		if o.live == nil { // Pending in a Set
			continue
		}
		o.err = c.waitEstablished(ctx, o)
		c.failed = c.failed || o.err != nil
	}
}

// waitEstablished waits until an applied CustomResourceDefinition is established, and
// sets live to the established object.
func (c *batchCall) waitEstablished(ctx context.Context, o *batchObject) error {
	client := c.client(o)
	uid := o.live.GetUID()
	// The first response can have conditions about the previous names. They count if they
	// are the same a second later.
	doubtful := o.live.GetGeneration() > 1
	for {
		patience := time.Duration(math.MaxInt64)
		switch done, err := isEstablished(o.live); {
		case doubtful && errors.Is(err, definition.ErrNames):
			patience = time.Second
		case done || err != nil:
			return err
		}
		doubtful = false
		if done, err := o.watch(ctx, client, patience); done || err != nil {
			return err
		}
		// The stream ended, which is rare in such a short wait. No event shows when a new
		// one can begin.
		ended := func() error { return fmt.Errorf("it was applied and is not established: %w", context.Cause(ctx)) }
		select {
		case <-ctx.Done():
			return ended()
		case <-time.After(time.Second):
		}
		live, err := client.Get(ctx, o.manifest.GetName(), metav1.GetOptions{})
		switch {
		case err != nil && ctx.Err() != nil:
			return ended()
		case err != nil:
			return fmt.Errorf("read it to see whether it is established: %w", err)
		case live.GetUID() != uid:
			return errors.New("it was deleted before it was established, and another one has its name")
		}
		o.live = live
	}
}

// watch reads events until the CustomResourceDefinition is established, or cannot be.
// done is false if patience or the stream ends before. A broken connection is also an
// event of type Error.
func (o *batchObject) watch(ctx context.Context, client dynamic.ResourceInterface, patience time.Duration) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w, err := client.Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, o.manifest.GetName()).String(),
		ResourceVersion: o.live.GetResourceVersion(),
	})
	switch {
	case err == nil:
	case ctx.Err() != nil, apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return false, nil
	default:
		return false, fmt.Errorf("watch until it is established: %w", err)
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done(): // some streams do not end with their context
			return false, nil
		case event, ok := <-w.ResultChan():
			crd, isObject := event.Object.(*unstructured.Unstructured)
			switch {
			case !ok || event.Type == watch.Error:
				return false, nil
			case event.Type == watch.Deleted:
				return false, errors.New("it was deleted before it was established")
			case isObject && event.Type != watch.Bookmark:
				o.live = crd
			}
			if done, err := isEstablished(o.live); done || err != nil {
				return done, err
			}
		}
	}
}

// isEstablished is definition.IsEstablished with an error for one that is being deleted.
func isEstablished(crd *unstructured.Unstructured) (bool, error) {
	if crd.GetDeletionTimestamp() != nil {
		return false, errDeleting
	}
	return definition.IsEstablished(crd)
}
