package leader_test

import (
	"testing"
	"time"
)

// TestCrashBehindDeadWatch: the watch of the standby is established and silent.
// The bound still holds.
//
// Proves L9.
func TestCrashBehindDeadWatch(t *testing.T) {
	for _, deadFor := range []time.Duration{time.Minute, time.Second} {
		t.Run(deadFor.String(), func(t *testing.T) {
			var worst time.Duration
			for n := range 100 {
				bubble(t, func(t *testing.T, s *store) {
					ea, ca := s.elector("a")
					a := start(t, ea, untilDone)
					a.leads(t, soon)
					eb, cb := s.elector("b")
					b := start(t, eb, untilDone)
					time.Sleep(time.Minute)
					cb.DelayWatches(time.Hour)
					time.Sleep(deadFor + time.Duration(n)*40*time.Millisecond)
					ca.Partition(true)
					began := time.Now()
					b.leads(t, time.Minute)
					worst = max(worst, since(began))
					a.cancel(nil)
					_ = b.stop()
				})
			}
			if want := leaseDuration + retryPeriod*6/5 + 250*time.Millisecond; worst > want {
				t.Errorf("another leads after %v, want at most %v", worst, want)
			}
		})
	}
}
