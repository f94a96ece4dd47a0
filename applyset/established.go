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

// errNames is about names that another CustomResourceDefinition has.
var errNames = errors.New("spec.names: the API server does not accept them")

// waitEstablished waits until a CustomResourceDefinition that was applied is
// established, and sets the answer to what it is then.
func (b *Batch) waitEstablished(ctx context.Context, m *member) error {
	client := b.resource(m)
	uid := m.answer.GetUID()
	// What the first answer says of the names can be about those of before. It counts
	// if it is the same a moment later.
	doubtful := m.answer.GetGeneration() > 1
	for {
		patience := time.Duration(math.MaxInt64)
		switch done, err := isEstablished(m.answer); {
		case doubtful && errors.Is(err, errNames):
			patience = time.Second
		case done || err != nil:
			return err
		}
		doubtful = false
		if done, err := m.watch(ctx, client, patience); done || err != nil {
			return err
		}
		// The stream ended, which is nobody's plan for a wait that is this short: there
		// is no event to wait for, and no reason to be quick.
		ended := func() error { return fmt.Errorf("it was applied, and is not established: %w", context.Cause(ctx)) }
		select {
		case <-ctx.Done():
			return ended()
		case <-time.After(time.Second):
		}
		live, err := client.Get(ctx, m.object.GetName(), metav1.GetOptions{})
		switch {
		case err != nil && ctx.Err() != nil:
			return ended()
		case err != nil:
			return fmt.Errorf("see if it is established: %w", err)
		case live.GetUID() != uid:
			return errors.New("it was deleted before it was established, and another one has its name")
		}
		m.answer = live
	}
}

// watch reads events until one says that the CustomResourceDefinition is established,
// or never will be. done is false if there is none within patience, or the stream ends
// before, for whatever reason: a broken connection is an event of type Error as well.
func (m *member) watch(ctx context.Context, client dynamic.ResourceInterface, patience time.Duration) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w, err := client.Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, m.object.GetName()).String(),
		ResourceVersion: m.answer.GetResourceVersion(),
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
		case <-ctx.Done(): // not every stream ends then
			return false, nil
		case event, ok := <-w.ResultChan():
			crd, isObject := event.Object.(*unstructured.Unstructured)
			switch {
			case !ok || event.Type == watch.Error:
				return false, nil
			case event.Type == watch.Deleted:
				return false, errors.New("it was deleted before it was established")
			case isObject && event.Type != watch.Bookmark:
				m.answer = crd
			}
			if done, err := isEstablished(m.answer); done || err != nil {
				return done, err
			}
		}
	}
}

// isEstablished reports whether the API server serves the kinds of a
// CustomResourceDefinition; the error says why it will not.
func isEstablished(crd *unstructured.Unstructured) (bool, error) {
	if crd.GetDeletionTimestamp() != nil {
		return false, errDeleting
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
		return false, fmt.Errorf("%w: %s", errNames, refused)
	}
	return established, nil
}
