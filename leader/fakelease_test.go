package leader_test

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/leasetest"
)

type (
	fault   = leasetest.Fault
	client  = leasetest.Client
	watcher = leasetest.Watcher
)

// A store holds one Lease.
type store struct{ *leasetest.Store }

func newStore() *store { return &store{leasetest.New()} }

func (s *store) get() (*coordinationv1.Lease, error) { return s.Get(leaseName) }

// delete deletes the Lease if it exists.
func (s *store) delete() { _ = s.Delete(leaseName, nil) }

// renewed waits until the Lease has just been renewed, in the time of a bubble.
func (s *store) renewed(t *testing.T) {
	t.Helper()
	renewal := func() time.Time {
		lease, err := s.get()
		if err != nil || lease.Spec.RenewTime == nil {
			return time.Time{}
		}
		return lease.Spec.RenewTime.Time
	}
	end := time.Now().Add(time.Minute)
	for before := renewal(); !renewal().After(before); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the Lease is not renewed")
		}
	}
	time.Sleep(100 * time.Millisecond) // and the elector has the response
}

// edit changes the Lease as another user does.
func (s *store) edit(t *testing.T, change func(*coordinationv1.Lease)) {
	t.Helper()
	s.Edit(t, leaseName, change)
}

// A record is one stored version of the Lease; its holder is "<deleted>" if it was deleted.
type record struct {
	at     time.Time
	holder string
	number int32
}

func (s *store) records() (all []record) {
	for _, e := range s.Events() {
		spec := e.Lease().Spec
		r := record{e.At, ptr.Deref(spec.HolderIdentity, ""), ptr.Deref(spec.LeaseTransitions, 0)}
		if e.Type == watch.Deleted {
			r = record{at: e.At, holder: "<deleted>"}
		}
		all = append(all, r)
	}
	return all
}
