package ready

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Deadline bounds how long the objects of a condition may be Progressing. conditions are
// the stored ones of the parent. If c has the reason Progressing, and the stored condition
// of its type has been False for d or longer, Deadline returns c with the reason Stalled.
// The message of c then follows d.
//
// Otherwise it returns c. left is the time until it would be Stalled: reconcile again after
// it. left is 0 if c has another reason, is Stalled, or d is 0, which means no deadline.
//
// The time counts from the stored lastTransitionTime, in whole seconds, also if an object
// was Failed since. A new generation does not restart it.
func Deadline(conditions []metav1.Condition, c metav1.Condition, d time.Duration) (_ metav1.Condition, left time.Duration) {
	if d <= 0 || c.Status != metav1.ConditionFalse || c.Reason != string(Progressing) {
		return c, 0
	}
	left = d
	for _, stored := range conditions {
		if stored.Type == c.Type && stored.Status == metav1.ConditionFalse {
			left = min(d, time.Until(stored.LastTransitionTime.Add(d))) // a clock can be ahead
			break
		}
	}
	if left > 0 {
		return c, left
	}
	c.Reason = "Stalled"
	c.Message = fmt.Sprintf("not ready within %v; %s", d, c.Message)
	return c, 0
}
