package shard_test

import (
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/leasetest"
)

type (
	fault  = leasetest.Fault
	client = leasetest.Client
)

// A store holds the Leases of groups.
type store struct{ *leasetest.Store }

func newStore() *store { return &store{leasetest.New()} }

// get returns a Lease, nil if it is absent.
func (s *store) get(name string) *coordinationv1.Lease {
	lease, _ := s.Get(name)
	return lease
}

// of returns the name of the Lease of the replica with the identity.
func (s *store) of(t *testing.T, identity string) string {
	t.Helper()
	all, err := s.List(metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, lease := range all.Items {
		if ptr.Deref(lease.Spec.HolderIdentity, "") == identity {
			return lease.Name
		}
	}
	t.Fatalf("%s has no Lease", identity)
	return ""
}
