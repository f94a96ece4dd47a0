package leader

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// read reads the Lease from the API server. It returns nil and no error if the Lease is
// absent. A 404 that does not name the Lease is an error; a proxy returns such a
// response.
func (c *candidate) read(ctx context.Context) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, c.CallTimeout)
	defer cancel()
	sent := time.Now()
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
		return nil, fmt.Errorf("%w %q: use one of Namespace (%q)", errElsewhere, lease.Namespace, c.elector.Namespace)
	}
	c.observeLocked(lease)
	c.promptLocked(lease, sent)
	return lease, nil
}

// elsewhere reports whether the Lease is of another namespace than Preflight, logs and
// package fence assume. Fakes may omit the namespace.
func (c *candidate) elsewhere(lease *coordinationv1.Lease) bool {
	return lease.Namespace != "" && lease.Namespace != c.elector.Namespace
}

var errElsewhere = errors.New("the client in Leases is of namespace")

// write stores a record over the given version, or creates the Lease if over is nil.
// The update carries the UID too: without it, the update of a deleted Lease would
// create the Lease.
func (c *candidate) write(ctx context.Context, over *coordinationv1.Lease, spec coordinationv1.LeaseSpec) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, c.CallTimeout)
	defer cancel()

	// Remembered before it is sent: its record can be seen before its response, or
	// instead of it. A forgotten one counts as another's, which is safe.
	c.mu.Lock()
	if len(c.sent) > sentLimit { // the first one can still be the stored one
		c.sent = slices.Delete(c.sent, 1, 2)
	}
	c.sent = append(c.sent, spec)
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
	// The API server returns a conflict of UIDs; client-go's fake returns 404.
	if over != nil && kube.IsGone(err, c.elector.Name) {
		err = apierrors.NewConflict(coordinationv1.Resource("leases"), c.elector.Name, err)
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// Earlier attempts can no longer be stored. An admission plugin may have changed
	// this one.
	c.sent = append(c.sent[:0], got.Spec)
	c.stored = got
	c.observeLocked(got)
	return got, nil
}
