package status

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Debounce delays a flip of a condition. It returns next, or the present condition of its
// type and the time after which to call again. parts are the types of the conditions that
// make next. Debounce returns the present condition until they have had next's status for
// d.
//
// Set the parts first, without a delay. Their transition times in conditions are the only
// memory. They are stored with the object, so a restart or a new leader does not reset
// the wait. now is the time of the clock that set them. Stored times are whole seconds,
// so the wait is between d and a second more.
//
// If next is True, the wait begins with the last transition of all parts. Otherwise it
// begins with the first transition of the parts that have next's status. Debounce does
// not see parts that flip in turn, or between False and Unknown, faster than d: the
// condition stays.
//
// Debounce returns next and 0 in these cases: d is not positive; the present condition is
// missing, has next's status, or is not about generation, because the effects of a new
// spec are not delayed; no part of generation has next's status.
func Debounce(conditions []metav1.Condition, generation int64, next metav1.Condition, d time.Duration, now time.Time, parts ...string) (metav1.Condition, time.Duration) {
	present := meta.FindStatusCondition(conditions, next.Type)
	if d <= 0 || present == nil || present.Status == next.Status || present.ObservedGeneration != generation {
		return next, 0
	}
	d = min(d, 1<<62) // or the sums below overflow
	var since time.Time
	for _, part := range parts {
		c := meta.FindStatusCondition(conditions, part)
		if c == nil || c.Status != next.Status || c.ObservedGeneration != generation {
			continue
		}
		if t := c.LastTransitionTime.Time; since.IsZero() || t.After(since) == (next.Status == metav1.ConditionTrue) {
			since = t
		}
	}
	if since.IsZero() {
		return next, 0
	}
	wait := since.Add(time.Second + d).Sub(now)
	if wait <= 0 {
		return next, 0
	}
	return *present, min(wait, time.Second+d)
}
