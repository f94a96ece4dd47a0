package ssa

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

// waitForCRDs waits for all CustomResourceDefinitions that were applied. One after the
// other takes no longer than the slowest one.
func (b *Batch) waitForCRDs(ctx context.Context, r *batchRun) {
	timeout := cmp.Or(b.CRDTimeout, 30*time.Second)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("CRDTimeout of %v is over: %w", timeout, context.DeadlineExceeded))
	defer cancel()
	for _, m := range r.crds {
		m.err = b.waitEstablished(ctx, m)
		r.failed = r.failed || m.err != nil
	}
}

// waitEstablished waits until a CustomResourceDefinition that was applied is
// established, and sets the answer to what it is then.
func (b *Batch) waitEstablished(ctx context.Context, m *member) error {
	client := b.resource(m)
	for {
		if done, err := isEstablished(m.answer); done || err != nil {
			return err
		}
		w, err := client.Watch(ctx, metav1.ListOptions{
			FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, m.object.GetName()).String(),
			ResourceVersion: m.answer.GetResourceVersion(),
		})
		if err == nil {
			done, err := m.follow(w.ResultChan())
			w.Stop()
			if done || err != nil {
				return err
			}
		} else if ctx.Err() == nil && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			return fmt.Errorf("watch until it is established: %w", err)
		}
		// The stream ended, which is nobody's plan for a wait that is this short: there
		// is no event to wait for, and no reason to be quick.
		select {
		case <-ctx.Done():
			return fmt.Errorf("it was applied, and is not established: %w", context.Cause(ctx))
		case <-time.After(time.Second):
		}
		live, err := client.Get(ctx, m.object.GetName(), metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("see if it is established: %w", err)
		}
		m.answer = live
	}
}

// follow reads events until one says that the CustomResourceDefinition is established,
// or never will be. done is false if the stream ends before.
func (m *member) follow(events <-chan watch.Event) (done bool, err error) {
	for event := range events {
		crd, ok := event.Object.(*unstructured.Unstructured)
		switch {
		case event.Type == watch.Error:
			if err := apierrors.FromObject(event.Object); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				return false, fmt.Errorf("watch until it is established: %w", err)
			}
			return false, nil
		case event.Type == watch.Deleted:
			return false, errors.New("it was deleted before it was established")
		case ok && event.Type != watch.Bookmark:
			m.answer = crd
		}
		if done, err := isEstablished(m.answer); done || err != nil {
			return done, err
		}
	}
	return false, nil
}

// isEstablished reports whether the API server serves the kinds of a
// CustomResourceDefinition; the error says why it will not.
func isEstablished(crd *unstructured.Unstructured) (bool, error) {
	if crd.GetDeletionTimestamp() != nil {
		return false, errors.New("it is being deleted: apply again when it is gone")
	}
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	established, refused := false, ""
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		switch {
		case condition["type"] == "Established":
			established = condition["status"] == "True"
		case condition["type"] == "NamesAccepted" && condition["status"] == "False":
			refused = fmt.Sprint(condition["reason"], ": ", condition["message"])
		}
	}
	if refused != "" && !established {
		return false, fmt.Errorf("spec.names: the API server does not accept them: %s", refused)
	}
	return established, nil
}
