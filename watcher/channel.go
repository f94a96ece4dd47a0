package watcher

import (
	"context"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/kube"
)

const maxMessage = 32 << 10 // of the Status in an Error event

// Watch is Events for code that wants a channel, such as UntilWithoutRetry of client-go's
// package tools/watch. The channel has the events of type Added, Modified and Deleted. After a
// later list it has the difference, or Added for each object if the watcher started from a
// ResourceVersion. These events have no mark.
//
// Retrying events are logged. If Events would end with an error, the last event has the type
// Error and a *metav1.Status, unless ctx is done or Stop was called. The channel is then
// closed. For LastResourceVersion, an event is handled when the channel has delivered it.
//
// The caller must call Stop or end ctx. Stop does not wait: the watch has ended when the
// channel is closed.
func (w *RetryWatcher[T]) Watch(ctx context.Context) watch.Interface {
	ctx, cancel := context.WithCancel(ctx)
	c := &channel{events: make(chan watch.Event), cancel: cancel}
	go func() {
		defer close(c.events)
		defer cancel()
		for event, err := range w.Events(ctx) {
			out := watch.Event{Type: event.Type, Object: event.Object}
			switch {
			case err != nil && ctx.Err() != nil:
				return
			case err != nil:
				out = watch.Event{Type: watch.Error, Object: statusOf(err)}
			case event.Type == Retrying:
				klog.FromContext(ctx).Info("Retrying to watch", "err", kube.PrintableError(event.Err, maxMessage), "retryAfter", event.RetryAfter)
				continue
			case event.Type != watch.Added && event.Type != watch.Modified && event.Type != watch.Deleted:
				continue
			}
			select {
			case c.events <- out:
			case <-ctx.Done():
				return
			}
		}
	}()
	return c
}

// statusOf returns the error as the object of an Error event, from which apierrors.FromObject
// makes an error.
func statusOf(err error) *metav1.Status {
	var reported apierrors.APIStatus
	if errors.As(err, &reported) {
		status := reported.Status()
		return &status
	}
	return &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError,
		Message: kube.Printable(err.Error(), maxMessage),
	}
}

// channel is the result of Watch.
type channel struct {
	events chan watch.Event
	cancel context.CancelFunc
}

// ResultChan implements watch.Interface.
func (c *channel) ResultChan() <-chan watch.Event { return c.events }

// Stop implements watch.Interface.
func (c *channel) Stop() { c.cancel() }
