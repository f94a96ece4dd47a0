package metrics

import (
	"strings"
	"time"
)

// ages returns the buckets for the time since a deletion request.
func ages() []float64 {
	return []float64{.1, .5, 1, 5, 15, 60, 5 * 60, 15 * 60, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600}
}

// part returns the labels of a step of a finalizer.
func (m *Metrics) part(finalizer, step string) (finalizerLabel, stepLabel string) {
	// Steps of different finalizers differ, so the pairs are bounded. Neither part has a
	// space.
	finalizer, step = strings.ReplaceAll(value(finalizer), " ", "_"), strings.ReplaceAll(value(step), " ", "_")
	if m.steppers.claim(finalizer+" "+step) == other {
		return other, other
	}
	return finalizer, step
}

// FinalizerStepStarted counts the start of a call of a step of a cleanup.
func (m *Metrics) FinalizerStepStarted(finalizer, step string) {
	if m == nil {
		return
	}
	finalizer, step = m.part(finalizer, step)
	m.stepsRunning.WithLabelValues(finalizer, step).Inc()
}

// FinalizerStepEnded counts the end of the call, its result and its duration. An unknown
// result counts as "failed".
func (m *Metrics) FinalizerStepEnded(finalizer, step, result string, took time.Duration) {
	if m == nil {
		return
	}
	finalizer, step = m.part(finalizer, step)
	m.stepsRunning.WithLabelValues(finalizer, step).Dec()
	switch result {
	case "done", "waiting", "failed", "timed_out", "gave_up":
	default:
		result = "failed"
	}
	m.steps.WithLabelValues(finalizer, step, result).Observe(took.Seconds())
}

// FinalizerBlocked counts that the step was not done at the end of a call of the cleanup.
// age is the time since the object's deletion request.
func (m *Metrics) FinalizerBlocked(finalizer, step string, age time.Duration) {
	if m == nil {
		return
	}
	finalizer, step = m.part(finalizer, step)
	m.blocked.WithLabelValues(finalizer, step).Observe(age.Seconds())
}

// FinalizerFinished counts the end of the cleanup of an object. age is the time since its
// deletion request.
func (m *Metrics) FinalizerFinished(finalizer string, age time.Duration) {
	if m == nil {
		return
	}
	m.finalized.WithLabelValues(m.finalizers.label(finalizer)).Observe(age.Seconds())
}
