package leader

import (
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// noteLimit bounds the notes that wait while Event blocks.
const noteLimit = 64

// A note is a pending call of Event.
type note struct {
	lease *coordinationv1.Lease
	text  string
}

// note queues an event about the term's Lease. It drops the event if the queue is full,
// because the election must not wait.
func (c *candidate) note(t *term, what string) {
	n := note{
		lease: &coordinationv1.Lease{
			TypeMeta:   metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"},
			ObjectMeta: metav1.ObjectMeta{Namespace: c.elector.Namespace, Name: c.elector.Name, UID: t.LeaseUID},
		},
		text: fmt.Sprintf("%s %s in term %d", c.identity, what, t.Number),
	}
	select {
	case c.notes <- n:
	default:
		c.logger.V(2).Info("Dropped an event, because Event blocks", "note", n.text)
	}
}

// recordEvents calls event for each note, in order, until notes is closed.
func (c *candidate) recordEvents(event func(obj runtime.Object, eventtype, reason, note string)) {
	for n := range c.notes {
		if event != nil {
			event(n.lease, corev1.EventTypeNormal, "LeaderElection", n.text)
		}
	}
}
