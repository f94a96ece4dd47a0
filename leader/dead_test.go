package leader_test

import (
	"fmt"
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

// lagMore makes a watch lag more and more. No two events are so far apart that a read is due, and the watch does not begin
// again.
func lagMore(c *client, most time.Duration) {
	for d := time.Duration(0); d <= most; d += 30 * time.Millisecond {
		c.DelayWatches(d)
		time.Sleep(time.Second)
	}
}

// TestLaggingStandby: the watch of the standby brings each event late, since a moment,
// since the watch began again, or more and more. After a crash the bound still holds, and after
// a release the next poll finds it.
//
// Proves L6 and L9.
func TestLaggingStandby(t *testing.T) {
	const lag = 30 * time.Second
	for _, tt := range []struct {
		name string
		lags func(s *store, c *client)
	}{
		{"since a moment", func(_ *store, c *client) {
			c.DelayWatches(lag)
			time.Sleep(2 * lag)
		}},
		{"since it began again", func(s *store, c *client) {
			c.DelayWatches(lag)
			for _, w := range s.Watches() {
				w.Stop()
			}
			time.Sleep(2 * lag)
		}},
		{"more and more", func(_ *store, c *client) { lagMore(c, lag/5) }},
		{"a little more and more", func(_ *store, c *client) { lagMore(c, lag/8) }}, // the reads find no more than the events
	} {
		for _, crash := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, crash %v", tt.name, crash), func(t *testing.T) {
				var worst time.Duration
				for n := range 10 {
					bubble(t, func(t *testing.T, s *store) {
						ea, ca := s.elector("a")
						a := start(t, ea, untilDone)
						a.leads(t, soon)
						eb, cb := s.elector("b")
						b := start(t, eb, untilDone)
						time.Sleep(time.Minute)
						tt.lags(s, cb)
						time.Sleep(time.Duration(n) * 400 * time.Millisecond)
						began := time.Now()
						if crash {
							ca.Partition(true)
						} else if err := a.stop(); err != nil {
							t.Fatal(err)
						}
						b.leads(t, time.Minute)
						worst = max(worst, since(began))
						if crash {
							a.cancel(nil)
						}
						_ = b.stop()
					})
				}
				want := retryPeriod*6/5 + 250*time.Millisecond
				if crash {
					want += leaseDuration
				}
				if worst > want {
					t.Errorf("another leads after %v, want at most %v", worst, want)
				}
			})
		}
	}
}
