package leader

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// record tells of what became of this replica, as an event of the term's Lease.
func (c *candidate) record(t *term, what string) {
	lease := &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Namespace: c.elector.Namespace, Name: c.elector.Name, UID: t.LeaseUID},
	}
	c.events.Eventf(lease, corev1.EventTypeNormal, "LeaderElection", "%s %s in term %d", c.identity, what, t.Number)
}
