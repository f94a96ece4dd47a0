package elections

import (
	"context"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// A noise records stalls of this process and of the server: the delay of a ticker, and
// the duration of an undisturbed write of a Lease. If a replica exceeds a bound, only
// stalls recorded at the same time excuse it.
type noise struct {
	mu     sync.Mutex // guards the fields below
	stall  []stall
	probed time.Time // start of the running probe; zero: no probe runs
}

type stall struct {
	from, to time.Time
}

const (
	tickPeriod  = 5 * time.Millisecond
	probePeriod = 50 * time.Millisecond
	worthNoting = 50 * time.Millisecond // every bound allows less than that
)

func (n *noise) note(from, to time.Time) {
	if to.Sub(from) < worthNoting {
		return
	}
	n.mu.Lock()
	n.stall = append(n.stall, stall{from, to})
	n.mu.Unlock()
}

func (n *noise) probing(since time.Time) {
	n.mu.Lock()
	n.probed = since
	n.mu.Unlock()
}

func (n *noise) tick(ctx context.Context) {
	ticker := time.NewTicker(tickPeriod)
	defer ticker.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		n.note(last.Add(tickPeriod), now)
		last = now
	}
}

func (n *noise) probe(ctx context.Context, leases coordinationv1client.LeaseInterface, lease *coordinationv1.Lease) {
	ticker := time.NewTicker(probePeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := metav1.NowMicro()
		lease.Spec.RenewTime = &now
		begun := time.Now()
		n.probing(begun)
		got, err := leases.Update(ctx, lease, metav1.UpdateOptions{})
		n.note(begun, time.Now())
		n.probing(time.Time{})
		if err == nil {
			lease = got
		}
	}
}

// within returns the part of the given time that lies in stalls.
func (n *noise) within(from, to time.Time) (total time.Duration) {
	n.mu.Lock()
	stalls := slices.Clone(n.stall)
	if !n.probed.IsZero() {
		stalls = append(stalls, stall{n.probed, time.Now()})
	}
	n.mu.Unlock()
	slices.SortFunc(stalls, func(a, b stall) int { return a.from.Compare(b.from) })
	for _, s := range stalls { // they may overlap
		s.from, s.to = later(s.from, from), earlier(s.to, to)
		if d := s.to.Sub(s.from); d > 0 {
			total += d
			from = s.to
		}
	}
	return total
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
