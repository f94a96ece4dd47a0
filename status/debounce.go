package status

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Debounce keeps a blip from flipping a condition: it returns next, or else the
// condition of its type in conditions as it is, and how long from now to look again.
// It is kept until parts, which are the types of the conditions that next is made
// of, have given next's status for d.
//
// The parts are set first, without delay. Their transition times in conditions are
// the only memory: they are stored with the object, so the wait goes on where it was
// after a restart or a change of the leader, and Debounce itself is a pure function.
// A part has lasted since its transition; next, if True, since the last one of all
// parts, otherwise since the first one of those that have its status. As stored
// times are whole seconds, the wait is between d and a second more. now is the time
// of the clock that set them. What goes round between parts, or between False and
// Unknown, lasts nowhere: while it does that faster than d, the condition stays.
//
// Debounce returns next and 0, that is, it keeps nothing back, if d is not positive;
// if next's status is no other than the present one or there is none; if the present
// one is not about generation, because what a new spec brings is no blip; and if no
// part of generation accounts for next.
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
