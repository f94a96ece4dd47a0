package leader_test

import (
	"context"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/controllerkit/controllerkit/internal/testserver"
)

// TestServerCoordinated: where the control plane coordinates elections, it writes the Lease of a
// LeaseCandidate, and an Elector refuses that Lease. The Leases without a candidate stay free for
// electors.
func TestServerCoordinated(t *testing.T) {
	server := testserver.Own(t, "--", "--feature-gates=CoordinatedLeaderElection=true", "--runtime-config=coordination.k8s.io/v1beta1=true")
	client := newClient(t, server.Config())
	leases := client.CoordinationV1().Leases("default")
	now := metav1.NowMicro()
	_, err := client.CoordinationV1beta1().LeaseCandidates("default").Create(t.Context(), &coordinationv1beta1.LeaseCandidate{
		ObjectMeta: metav1.ObjectMeta{Name: "replica"},
		Spec: coordinationv1beta1.LeaseCandidateSpec{
			LeaseName: "coordinated", Strategy: coordinationv1.OldestEmulationVersion,
			BinaryVersion: "1.0.0", EmulationVersion: "1.0.0", RenewTime: &now,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w, err := leases.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, "coordinated").String()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	elected := false
	for event := range w.ResultChan() {
		if lease, ok := event.Object.(*coordinationv1.Lease); ok && lease.Spec.Strategy != nil {
			elected = true
			break
		}
	}
	if !elected {
		t.Fatal("the control plane has written no Lease for its candidate")
	}
	e := fast(serverElector(leases, "default", "b"))
	e.Name, e.StartTimeout = "coordinated", time.Second
	if err := e.Run(ctx, untilDone); err == nil || !contains(err.Error(), "default/coordinated", "OldestEmulationVersion", "another name", "LeaseCandidate") {
		t.Errorf("Run() = %v, want an error that names the Lease, its strategy and the cure", err)
	}

	e = fast(serverElector(leases, "default", "c"))
	leads := false
	err = e.Run(ctx, func(context.Context) error {
		leads = true
		cancel()
		return nil
	})
	if err != nil || !leads {
		t.Errorf("Run() of a Lease without candidates = %v, and leads: %t, want to lead", err, leads)
	}
}
