package consistency

import "time"

const (
	// apartAfter bounds the time by which a watch is late. The API server ends a slow watch much
	// earlier, and informer.EndSilentWatches a dead one.
	apartAfter = 10 * time.Minute

	// sampleEvery is the time between the bookmarks of a watch. A watch that resumes sends the
	// events that it has missed in less.
	sampleEvery = time.Minute
)

// moves records when the version of a store changed while it was below that of a new leader's Lease.
type moves struct {
	version string    // in the last sample
	sampled time.Time // the time of the last sample
	last    time.Time // of the sample before the last change
	before  time.Time // of the sample before the change before that
}

// note takes a sample, unless the last one is too recent.
func (m *moves) note(version string, now time.Time) {
	if !m.sampled.IsZero() && now.Sub(m.sampled) < sampleEvery {
		return
	}
	if version != m.version {
		m.version, m.last, m.before = version, m.sampled, m.last
	}
	m.sampled = now
}

// apart reports whether the version of a Lease from before begun is of another etcd than the
// store, which is still below it. In one etcd, each event and each bookmark that the API server
// sends after begun has a higher version than the Lease. The store has moved later than any
// of these can be late, and again at least sampleEvery after that.
func (m *moves) apart(begun time.Time) bool { return m.before.Sub(begun) >= apartAfter }
