package leader_test

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/controllerkit/controllerkit/internal/calls"
)

// TestSince tests the ways to the Lease: lead's context has a version that no write of an
// earlier leader exceeds.
func TestSince(t *testing.T) {
	for _, tc := range []struct {
		name     string
		before   func(t *testing.T, s *store)
		released bool
	}{
		{name: "a new Lease", before: func(*testing.T, *store) {}},
		{name: "released", released: true, before: func(t *testing.T, s *store) {
			e, _ := s.elector("last")
			last := start(t, e, untilDone)
			last.leads(t, time.Minute)
			if err := last.stop(); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "expired", before: func(t *testing.T, s *store) {
			e, _ := s.elector("last")
			last := start(t, e, untilDone)
			last.leads(t, time.Minute)
			last.client.Partition(true)
			if err := last.stop(); err != nil {
				t.Log(err)
			}
		}},
		{name: "expired and of nobody known", before: func(t *testing.T, s *store) {
			if _, err := s.Create(stranger(nil)); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				tc.before(t, s)
				before, err := s.get()
				if err != nil {
					before = &coordinationv1.Lease{}
				}
				e, _ := s.elector("next")
				next := start(t, e, untilDone)
				ctx := next.leads(t, time.Hour)
				now, err := s.get()
				if err != nil {
					t.Fatal(err)
				}
				want := now.ResourceVersion
				if tc.released {
					want = before.ResourceVersion
				}
				if got, _ := calls.Since(ctx); got != want {
					t.Errorf("the version is %q, want %q", got, want)
				}
			})
		})
	}
}
