package leader

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// read reads the Lease from the API server. It returns nil if there is none,
// which is no error. A 404 that does not name the Lease, such as that of a proxy,
// is an error.
func (c *candidate) read(ctx context.Context) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, c.callTimeout)
	defer cancel()
	lease, err := c.client.Get(ctx, c.elector.Name, metav1.GetOptions{})
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case kube.IsGone(err, c.elector.Name):
		c.observeNoneLocked()
		return nil, nil
	case err != nil:
		return nil, err
	case c.elsewhere(lease):
		return nil, fmt.Errorf("%w %q and not of Namespace, which is %q", errElsewhere, lease.Namespace, c.elector.Namespace)
	}
	c.observeLocked(lease)
	return lease, nil
}

// elsewhere: Preflight, logs and a Fence would speak of another Lease. Fakes may
// leave the namespace out.
func (c *candidate) elsewhere(lease *coordinationv1.Lease) bool {
	return lease.Namespace != "" && lease.Namespace != c.elector.Namespace
}

var errElsewhere = errors.New("the client in Leases is of namespace")

// write stores a record over the version given, or creates the Lease if that is
// nil. The UID goes along with the resourceVersion: an update of a Lease that
// was deleted meanwhile would create it anew, and only the UID forbids that.
func (c *candidate) write(ctx context.Context, over *coordinationv1.Lease, spec coordinationv1.LeaseSpec) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, c.callTimeout)
	defer cancel()

	// Remembered before it is sent: its record may be seen before its response,
	// or instead of it. One that was forgotten because there are too many counts
	// as another's, which is safe.
	c.mu.Lock()
	c.sent = append(c.sent[max(0, len(c.sent)-sentLimit):], spec)
	c.mu.Unlock()

	var got *coordinationv1.Lease
	var err error
	if over == nil {
		got, err = c.client.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Namespace:   c.elector.Namespace,
				Name:        c.elector.Name,
				Annotations: map[string]string{runAnnotation: c.run},
			},
			Spec: spec,
		}, metav1.CreateOptions{})
	} else {
		lease := over.DeepCopy()
		lease.Spec = spec
		if *spec.HolderIdentity == "" {
			delete(lease.Annotations, runAnnotation)
		} else {
			metav1.SetMetaDataAnnotation(&lease.ObjectMeta, runAnnotation, c.run)
		}
		got, err = c.client.Update(ctx, lease, metav1.UpdateOptions{})
	}
	// The API server answers a conflict of UIDs, client-go's fake that it is gone.
	if over != nil && kube.IsGone(err, c.elector.Name) {
		err = apierrors.NewConflict(coordinationv1.Resource("leases"), c.elector.Name, err)
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// What was sent before can no longer be stored. An admission plugin may have
	// changed what was sent now.
	c.sent = append(c.sent[:0], got.Spec)
	c.stored = got
	c.observeLocked(got)
	return got, nil
}

// isConflict reports whether the Lease is not the version to be replaced. A 409
// of a proxy does not show that.
func isConflict(err error) bool {
	return (apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)) && !apierrors.IsUnexpectedServerError(err)
}

// micro is t as a Lease stores it.
func micro(t time.Time) metav1.MicroTime {
	return metav1.NewMicroTime(t.Truncate(time.Microsecond))
}
