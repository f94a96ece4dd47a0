package tenure

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestResolve(t *testing.T) {
	tests := []struct {
		name  string
		times Times
		want  string // of the error
	}{
		{name: "defaults"},
		{name: "all", times: Times{20 * time.Second, 12 * time.Second, 3 * time.Second, time.Second, time.Second, time.Second, 0, 0.02}},
		{name: "negative lease", times: Times{LeaseDuration: -1}, want: "LeaseDuration is -1ns: use a positive duration"},
		{name: "long lease", times: Times{LeaseDuration: math.MaxInt64}, want: "at most 2147483647 seconds"},
		{name: "negative retry", times: Times{RetryPeriod: -1}, want: "RetryPeriod is -1ns: use a positive duration, or 0 for 2s"},
		{name: "few retries", times: Times{RenewDeadline: 2400 * time.Millisecond}, want: "RenewDeadline is 2.4s: use more than 1.2 * RetryPeriod (2s)"},
		{name: "more retries", times: Times{RenewDeadline: 2401 * time.Millisecond}},
		{name: "negative deadline", times: Times{RenewDeadline: -1}, want: "RenewDeadline is -1ns: use more than 1.2 * RetryPeriod (2s)"},
		{name: "no margin", times: Times{LeaseDuration: 10 * time.Second}, want: "LeaseDuration is 10s: use more than RenewDeadline (10s) + LeaseDuration * MaxDrift (100ms)"},
		{name: "all margin drifts", times: Times{LeaseDuration: 20 * time.Second, MaxDrift: 0.5}, want: "LeaseDuration * MaxDrift (10s)"},
		{name: "some margin is left", times: Times{LeaseDuration: 20 * time.Second, MaxDrift: 0.49}},
		{name: "negative drift", times: Times{MaxDrift: -0.01}, want: "MaxDrift is -0.01: use a fraction of at least 0 and less than 1"},
		{name: "all drifts", times: Times{MaxDrift: 1}, want: "MaxDrift is 1"},
		{name: "no number", times: Times{MaxDrift: math.NaN()}, want: "MaxDrift is NaN"},
		{name: "negative stop", times: Times{StopTimeout: -1}, want: "StopTimeout is -1ns: use a positive duration"},
		{name: "long stop", times: Times{StopTimeout: 4850 * time.Millisecond}, want: "RenewDeadline is 10s: the margin of 5s that it leaves of LeaseDuration must exceed LeaseDuration * MaxDrift (150ms) + StopTimeout (4.85s)"},
		{name: "longest stop", times: Times{StopTimeout: 4849 * time.Millisecond}},
		{name: "endless stop", times: Times{StopTimeout: math.MaxInt64}, want: "RenewDeadline is 10s"},
		{name: "negative start", times: Times{StartTimeout: -1}, want: "StartTimeout is -1ns: use a positive duration, or 0 for 20s"},
		{name: "negative drain", times: Times{DrainTimeout: -1}, want: "DrainTimeout is -1ns: use a positive duration, or 0 for 22s"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := test.times.Resolve("leader")
			switch {
			case test.want == "" && err != nil:
				t.Fatal(err)
			case test.want != "" && (err == nil || !strings.HasPrefix(err.Error(), "leader: ") || !strings.Contains(err.Error(), test.want)):
				t.Errorf("Resolve = %v, want an error with %q", err, test.want)
			}
		})
	}
}

// The defaults are those that the fields of leader.Elector and shard.Group document.
func TestDefaults(t *testing.T) {
	got, err := Times{}.Resolve("leader")
	want := Times{15 * time.Second, 10 * time.Second, 2 * time.Second, 20 * time.Second, 22 * time.Second, 4850 * time.Millisecond, 5 * time.Second, 0.01}
	if err != nil || got != want {
		t.Errorf("Resolve = %v, %v, want %v", got, err, want)
	}
	set := Times{20 * time.Second, 12 * time.Second, 3 * time.Second, 4 * time.Second, 5 * time.Second, 6 * time.Second, 6 * time.Second, 0.02}
	if got, err = set.Resolve("leader"); err != nil || got != set {
		t.Errorf("Resolve = %v, %v, want %v", got, err, set)
	}
}

func TestSeconds(t *testing.T) {
	for d, want := range map[time.Duration]int64{0: 0, 1: 1, time.Second: 1, time.Second + 1: 2, 15 * time.Second: 15} {
		if got := Seconds(d); got != want {
			t.Errorf("Seconds(%v) = %d, want %d", d, got, want)
		}
	}
}
