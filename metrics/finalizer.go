package metrics

import (
	"strings"
	"time"
)

// ages are the buckets for the time since a deletion was asked for.
func ages() []float64 {
	return []float64{.1, .5, 1, 5, 15, 60, 5 * 60, 15 * 60, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600}
}

// part returns the labels of a step of a finalizer.
func (m *Metrics) part(finalizer, step string) (finalizerLabel, stepLabel string) {
	// A step is told from others with the finalizer only, and so they are bounded
	// together. Neither has a space.
	finalizer, step = strings.ReplaceAll(value(finalizer), " ", "_"), strings.ReplaceAll(value(step), " ", "_")
	pair := m.steppers.claim(finalizer + " " + step)
	if pair == other {
		return other, other
	}
	finalizer, step, _ = strings.Cut(pair, " ")
	return finalizer, step
}

// FinalizerStepStarted says that a call of a cleanup's step has begun.
func (m *Metrics) FinalizerStepStarted(finalizer, step string) {
	finalizer, step = m.part(finalizer, step)
	m.stepsRunning.WithLabelValues(finalizer, step).Inc()
}

// FinalizerStepEnded says that it has ended, with one of finalizer's results, and how
// long it took. Another result counts as "failed".
func (m *Metrics) FinalizerStepEnded(finalizer, step, result string, took time.Duration) {
	finalizer, step = m.part(finalizer, step)
	m.stepsRunning.WithLabelValues(finalizer, step).Dec()
	switch result {
	case "done", "waiting", "failed", "timed_out", "gave_up":
	default:
		result = "failed"
	}
	m.steps.WithLabelValues(finalizer, step, result).Observe(took.Seconds())
}

// FinalizerBlocked says that at the end of a pass over an object the step was not
// done, and how long ago the object's deletion was asked for.
func (m *Metrics) FinalizerBlocked(finalizer, step string, age time.Duration) {
	finalizer, step = m.part(finalizer, step)
	m.blocked.WithLabelValues(finalizer, step).Observe(age.Seconds())
}

// FinalizerFinished says that an object is cleaned up, and how long ago its deletion
// was asked for.
func (m *Metrics) FinalizerFinished(finalizer string, age time.Duration) {
	m.finalized.WithLabelValues(m.finalizers.label(finalizer)).Observe(age.Seconds())
}
