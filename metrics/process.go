package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// EventsRecorded counts n calls of a recorder's Event by their outcome. An unknown outcome
// counts as "failed".
func (m *Metrics) EventsRecorded(outcome string, n int) {
	if m == nil {
		return
	}
	switch outcome {
	case "written", "deduplicated", "full", "limited", "invalid", "gone", "forbidden", "rejected", "stopped":
	default:
		outcome = "failed"
	}
	m.events.WithLabelValues(outcome).Add(float64(max(0, n)))
}

// Mistakes counts lines of log about a mistake of the program, such as a request that is not declared. Package operator calls
// it, first with 0 for each mistake that it can find.
func (m *Metrics) Mistakes(mistake string, lines int) {
	if m == nil {
		return
	}
	m.mistakes.WithLabelValues(m.kinds.label(mistake)).Add(float64(max(0, lines)))
}

// PartStopped sets the time that a part of the process took to stop, and its result:
// stopped, or late if it had not stopped by then.
func (m *Metrics) PartStopped(part string, took time.Duration, late bool) {
	if m == nil {
		return
	}
	result := "stopped"
	if late {
		result = "late"
	}
	m.stopped.WithLabelValues(m.parts.label(part), result).Set(took.Seconds())
}

// MigrationProgress sets the progress of the migration of a CustomResourceDefinition: the
// number of objects that the pass has handled, of which failed ones could not be migrated, and
// whether the migration is complete. A migrate.Migrator calls it.
func (m *Metrics) MigrationProgress(definition string, objects, failed int, done bool) {
	if m == nil {
		return
	}
	definition = m.definitions.label(definition)
	complete := 0.0
	if done {
		complete = 1
	}
	m.migration.WithLabelValues(definition).Set(complete)
	m.migrated.WithLabelValues(definition, "migrated").Set(float64(max(0, objects-failed)))
	m.migrated.WithLabelValues(definition, "failed").Set(float64(max(0, failed)))
}

// MigrationEnded removes the series of a migration that another replica goes on with, because the last value of this
// one would stay for ever. A migrate.Migrator calls it.
func (m *Metrics) MigrationEnded(definition string) {
	if m == nil {
		return
	}
	definition = m.definitions.label(definition)
	m.migration.DeleteLabelValues(definition)
	m.migrated.DeletePartialMatch(prometheus.Labels{"definition": definition})
}
