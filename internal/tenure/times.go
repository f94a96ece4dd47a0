package tenure

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The defaults of Times. The first three are those of Kubernetes' own components.
const (
	LeaseDuration = 15 * time.Second
	RenewDeadline = 10 * time.Second
	RetryPeriod   = 2 * time.Second
	startTimeout  = 20 * time.Second
	// Between the GracePeriod of a reconcile.Controller, 20s, and the share that a
	// shutdown.Group gives the part that it stops first.
	drainTimeout = 22 * time.Second
	maxDrift     = 0.01
)

// Times are the durations of a holder, as the fields of leader.Elector and shard.Group with the
// same names describe them. In Resolve's argument 0 means the default.
type Times struct {
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	StartTimeout, DrainTimeout, StopTimeout   time.Duration
	CallTimeout                               time.Duration // of one request; set by Resolve
	MaxDrift                                  float64
}

// Resolve applies the defaults. It returns an error if the durations do not fit each other: the
// margin that RenewDeadline leaves of LeaseDuration must be longer than what clocks drift in
// LeaseDuration and StopTimeout together.
func (t Times) Resolve(pkg string) (Times, error) {
	r := Times{
		LeaseDuration: cmp.Or(t.LeaseDuration, LeaseDuration),
		RenewDeadline: cmp.Or(t.RenewDeadline, RenewDeadline),
		RetryPeriod:   cmp.Or(t.RetryPeriod, RetryPeriod),
		StartTimeout:  cmp.Or(t.StartTimeout, startTimeout),
		DrainTimeout:  cmp.Or(t.DrainTimeout, drainTimeout),
		MaxDrift:      cmp.Or(t.MaxDrift, maxDrift),
	}
	drift := time.Duration(float64(r.LeaseDuration) * r.MaxDrift)
	margin := r.LeaseDuration - r.RenewDeadline
	r.StopTimeout = cmp.Or(t.StopTimeout, margin-drift)
	r.CallTimeout = r.RenewDeadline / 2
	switch {
	case r.LeaseDuration < 0 || r.LeaseDuration > math.MaxInt32*time.Second:
		return r, fmt.Errorf("%s: LeaseDuration is %v: use a positive duration of at most 2147483647 seconds, or 0 for 15s", pkg, r.LeaseDuration)
	case r.RetryPeriod < 0:
		return r, fmt.Errorf("%s: RetryPeriod is %v: use a positive duration, or 0 for 2s", pkg, r.RetryPeriod)
	case !r.Renewable(r.RenewDeadline):
		return r, fmt.Errorf("%s: RenewDeadline is %v: use more than 1.2 * RetryPeriod (%v)", pkg, r.RenewDeadline, r.RetryPeriod)
	case !(r.MaxDrift >= 0 && r.MaxDrift < 1): // false for NaN too
		return r, fmt.Errorf("%s: MaxDrift is %v: use a fraction of at least 0 and less than 1", pkg, r.MaxDrift)
	case margin <= drift:
		return r, fmt.Errorf("%s: LeaseDuration is %v: use more than RenewDeadline (%v) + LeaseDuration * MaxDrift (%v)", pkg, r.LeaseDuration, r.RenewDeadline, drift)
	case t.StopTimeout < 0:
		return r, fmt.Errorf("%s: StopTimeout is %v: use a positive duration, or 0 for the margin that MaxDrift leaves", pkg, t.StopTimeout)
	case margin-drift <= t.StopTimeout: // a sum could overflow
		return r, fmt.Errorf("%s: RenewDeadline is %v: the margin of %v that it leaves of LeaseDuration must exceed LeaseDuration * MaxDrift (%v) + StopTimeout (%v): lower RenewDeadline or raise LeaseDuration",
			pkg, r.RenewDeadline, margin, drift, t.StopTimeout)
	case r.StartTimeout < 0:
		return r, fmt.Errorf("%s: StartTimeout is %v: use a positive duration, or 0 for 20s", pkg, r.StartTimeout)
	case r.DrainTimeout < 0:
		return r, fmt.Errorf("%s: DrainTimeout is %v: use a positive duration, or 0 for 22s", pkg, r.DrainTimeout)
	}
	return r, nil
}

// Seconds returns d in seconds, rounded up. A Lease stores whole seconds, and others must not wait
// for less than LeaseDuration.
func Seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// Micro returns t as a Lease stores it.
func Micro(t time.Time) metav1.MicroTime { return metav1.NewMicroTime(t.Truncate(time.Microsecond)) }

// Jittered returns d and up to a fifth more, so that replicas do not act in step.
func Jittered(d time.Duration) time.Duration { return d + rand.N(d/5+1) }

// Latest returns the later of two times.
func Latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Renewable reports whether a record that is valid for d can be renewed before its end. The first
// attempt comes up to a tenth after RetryPeriod.
func (t Times) Renewable(d time.Duration) bool { return float64(d) > 1.2*float64(t.RetryPeriod) }
