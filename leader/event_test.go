package leader_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestEvent: one event when a term begins, one when its work has ended, in order.
func TestEvent(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, _ := s.elector("a")
		var got []string
		e.Event = func(obj runtime.Object, eventtype, reason, note string) {
			lease := obj.(*coordinationv1.Lease)
			got = append(got, strings.Join([]string{lease.Kind, lease.APIVersion, lease.Namespace, lease.Name, string(lease.UID), eventtype, reason, note}, " "))
		}
		for range 2 {
			if err := e.Run(t.Context(), func(context.Context) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		const lease = "Lease coordination.k8s.io/v1 ns controller uid-1 Normal LeaderElection "
		want := []string{
			lease + "a became leader in term 0", lease + "a stopped leading in term 0",
			lease + "a became leader in term 1", lease + "a stopped leading in term 1",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

// TestEventBlocks: while Event blocks, the Lease is renewed, lost, acquired again
// and released. Events beyond the queue are dropped. Run waits for Event.
func TestEventBlocks(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		unblock := make(chan struct{})
		calls := 0
		e.Event = func(runtime.Object, string, string, string) {
			<-unblock
			calls++
		}
		r := start(t, e, untilDone)
		ctx := r.leads(t, soon)
		time.Sleep(time.Hour)
		if ctx.Err() != nil {
			t.Errorf("lead's context ended: %v", context.Cause(ctx))
		}
		const losses = 50
		for range losses {
			c.Partition(true)
			<-ctx.Done()
			c.Partition(false)
			ctx = r.leads(t, time.Minute)
		}
		r.cancel(nil)
		time.Sleep(time.Second)
		if lease, _ := s.get(); *lease.Spec.HolderIdentity != "" {
			t.Errorf("holderIdentity = %q, want the Lease released", *lease.Spec.HolderIdentity)
		}
		select {
		case err := <-r.ended:
			t.Errorf("Run() = %v, want it to wait for Event", err)
		default:
		}
		close(unblock)
		if err := <-r.ended; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if want := 1 + 64; calls != want {
			t.Errorf("%d events of %d, want %d", calls, 2*(losses+1), want)
		}
	})
}
