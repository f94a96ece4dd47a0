package rows

import (
	"time"

	"github.com/controllerkit/controllerkit/internal/bench/internal/contender"
)

// Update is an update of event/latency.
type Update struct {
	Name, Version string
	At            time.Time
}

// Latencies returns the sorted times from the responses to the first sights, and the number of updates without a sight.
func Latencies(updates []Update, sights []contender.Sight) (sorted []time.Duration, missing int) {
	var all []update
	for _, u := range updates {
		all = append(all, update{name: u.Name, version: u.Version, at: u.At})
	}
	return latencies(all, sights, func(u update) time.Time { return u.at })
}
