// Package stalls measures how long the process did not run, for example because other programs
// use the processors.
package stalls

import (
	"context"
	"sync"
	"time"
)

// A Meter sums the stalls. The zero value is ready.
type Meter struct {
	mu    sync.Mutex
	last  time.Time // tick
	total time.Duration
}

// Interval is the time between two ticks.
const Interval = 50 * time.Millisecond

// Measure ticks until ctx is done.
func (m *Meter) Measure(ctx context.Context) {
	m.Tick(time.Now())
	ticker := time.NewTicker(Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			m.Tick(time.Now())
		case <-ctx.Done():
			return
		}
	}
}

// Tick adds the time since the last tick that is longer than usual.
func (m *Meter) Tick(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if late := now.Sub(m.last) - Interval; late > Interval && !m.last.IsZero() {
		m.total += late
	}
	m.last = now
}

// Sum returns the total of the stalls.
func (m *Meter) Sum() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.total
}
