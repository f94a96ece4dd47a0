package examples_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/shutdown"
)

var points = flag.Int("points", 300, "how many stops TestStopPoints makes")

// TestStopPoints stops a process under load, with all durations 0, at random points of its life:
// at a time, or in the moment of an add, of the begin or end of a call, or of a request for the
// Lease. Half of the processes lose their Lease at such a point and stop at a second one, with or
// without a term between. Some calls outlast their cancellation. After each stop:
//
//   - Each key whose last add no successful call has handled is in the queue, and counted by the
//     line "Stopped controller". So it is after a loss.
//   - The Lease is released if and only if all calls have ended, and not before. It is not
//     written while another process holds it, and no call begins without it.
//   - Run returned within the grace period of the Pod, and no goroutine is left.
func TestStopPoints(t *testing.T) {
	var losses, terms, late int
	for seed := range *points {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLoad(uint64(seed))
				l.run(t)
				if l.stolen {
					losses++
				}
				if l.terms > 1 {
					terms++
				}
				if l.hung {
					late++
				}
			})
		})
	}
	t.Logf("%d points: %d after a loss, %d in a second term, %d with a call that outlasted the stop", *points, losses, terms, late)
	if *points >= 100 && (losses == 0 || terms == 0 || late == 0) {
		t.Error("the points do not cover all cases")
	}
}

// The moments in which a stop can come.
const (
	anyTime = iota
	added
	begun
	ended
	requested
	moments
)

// load is a controller under load.
type load struct {
	queue *queue.Queue[string]
	stop  func()

	mu      sync.Mutex // guards the fields below
	rng     *rand.Rand
	lose    bool // the Lease, before the stop
	moment  int  // when the loss or the stop comes
	after   int  // this number of such moments
	stopped time.Time
	running int // calls
	keys    map[string]*progress
	lease   *coordinationv1.Lease
	watches []*watch.RaceFreeFakeWatcher // nil without a working watch
	faults  []string

	stolen bool      // the loss has come
	taken  time.Time // since when another process holds the Lease; zero: it does not
	lost   time.Time // like taken, but not reset
	terms  int       // acquisitions of this process
	hung   bool      // a call was running, or had ended too late for the elector
	ended  time.Time // the last call
}

// renewDeadline is leader's default: a loss that no watch shows is noticed in this time.
const renewDeadline = 10 * time.Second

// drainTimeout is leader's default.
const drainTimeout = 22 * time.Second

// progress is what a key has seen.
type progress struct {
	adds    int
	handled int  // adds before the last call
	failed  bool // the last call asked for another, or still runs
	running bool
}

// owed reports whether the key must be in the queue.
func (p *progress) owed() bool { return !p.running && (p.handled < p.adds || p.failed) }

func newLoad(seed uint64) *load {
	l := &load{rng: rand.New(rand.NewPCG(1, seed)), keys: map[string]*progress{}} //nolint:gosec // no secret
	l.queue = queue.New(queue.Config[string]{Name: "x"})
	l.lose = l.rng.IntN(2) == 0
	if l.rng.IntN(2) == 0 {
		l.watches = []*watch.RaceFreeFakeWatcher{}
	}
	l.nextLocked()
	return l
}

// nextLocked chooses the next point.
func (l *load) nextLocked() { l.moment, l.after = l.rng.IntN(moments), 1+l.rng.IntN(20) }

// below returns a random duration below d.
func (l *load) below(d time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration(l.rng.Int64N(int64(d)))
}

// at is called in each moment of the kind.
func (l *load) at(kind int) {
	l.mu.Lock()
	if kind == l.moment {
		l.after--
	}
	now := kind == l.moment && l.after <= 0 && l.stopped.IsZero()
	switch {
	case now && l.lose && !l.stolen:
		now = false
		l.loseLocked()
		l.nextLocked()
		if l.moment == anyTime {
			l.anyTimeLocked()
		}
	case now:
		l.stopped = time.Now()
	}
	l.mu.Unlock()
	if now {
		l.stop()
	}
}

// anyTimeLocked makes a moment of the kind anyTime, in at most a minute.
func (l *load) anyTimeLocked() {
	time.AfterFunc(time.Duration(l.rng.Int64N(int64(time.Minute))), func() {
		l.mu.Lock()
		l.moment, l.after = anyTime, 1
		l.mu.Unlock()
		l.at(anyTime)
	})
}

// loseLocked gives the Lease to another process for a time that is shorter than LeaseDuration.
func (l *load) loseLocked() {
	other, now := "another process", metav1.NowMicro()
	if l.lease == nil {
		l.lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "x", UID: "uid"}}
	}
	seconds, transitions := int32(15), int32(1)
	if n := l.lease.Spec.LeaseTransitions; n != nil {
		transitions = *n + 1
	}
	l.lease.Spec = coordinationv1.LeaseSpec{
		HolderIdentity: &other, AcquireTime: &now, RenewTime: &now, LeaseDurationSeconds: &seconds, LeaseTransitions: &transitions,
	}
	l.storeLocked(l.lease)
	l.stolen, l.taken, l.lost = true, time.Now(), time.Now()
	time.AfterFunc(time.Duration(l.rng.Int64N(int64(14*time.Second))), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lease.Spec.HolderIdentity, l.taken = nil, time.Time{}
		l.storeLocked(l.lease)
	})
}

// storeLocked stores a version of the Lease that the watches see.
func (l *load) storeLocked(lease *coordinationv1.Lease) {
	version, _ := strconv.Atoi(cmp.Or(lease.ResourceVersion, "0"))
	l.lease = lease.DeepCopy()
	l.lease.ResourceVersion, l.lease.UID = strconv.Itoa(version+1), "uid"
	for _, w := range l.watches {
		w.Modify(l.lease.DeepCopy())
	}
}

func (l *load) run(t *testing.T) {
	logs := testlog.New()
	var owed []int // each time when the controller stopped
	logs.Hook = func(message string) {
		if message == "Stopped controller" {
			l.mu.Lock()
			defer l.mu.Unlock()
			owed = append(owed, len(l.owed()))
		}
	}
	ctx, stop := context.WithCancel(logs.Context(t.Context()))
	defer stop()
	l.stop = stop
	l.mu.Lock()
	l.anyTimeLocked() // at the latest
	l.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(l.add)

	c := &reconcile.Controller[string]{Name: "x", Queue: l.queue, Reconcile: l.reconcile, Workers: 1 + int(l.below(4))}
	e := &leader.Elector{Leases: leases{l}, Namespace: "ns", Name: "x", Identity: "me"}
	var g shutdown.Group
	g.Add("http", func(ctx context.Context) error { <-ctx.Done(); return nil })
	g.Add("controller", func(ctx context.Context) error { return e.Run(ctx, c.Run) })
	err := g.Run(ctx)

	l.mu.Lock()
	if took := time.Since(l.stopped); took > 29*time.Second {
		t.Errorf("the stop took %v, and the Pod has 30s", took)
	}
	l.hung = l.running > 0 || l.ended.After(l.stopped.Add(drainTimeout))
	mine := l.lease != nil && l.lease.Spec.HolderIdentity != nil && *l.lease.Spec.HolderIdentity == "me"
	if mine && !l.hung || l.hung && !mine && !l.stolen || l.hung != (err != nil) {
		t.Errorf("%d calls run after the stop, the Lease is held: %t, it was lost: %t, and Run returned %v", l.running, mine, l.stolen, err)
	}
	lines := logs.Find("Stopped controller")
	if len(lines) != len(owed) {
		t.Errorf("the controller stopped %d times, with %d lines", len(owed), len(lines))
	}
	for i, line := range lines {
		if left := line.Values["left"].(int); left < owed[i] {
			t.Errorf("the controller reports %d keys that are left, want the %d that no call handled", left, owed[i])
		}
	}
	l.mu.Unlock()
	wg.Wait()

	pending := map[string]bool{}
	for _, key := range l.queue.Pending() {
		pending[key] = true
	}
	l.mu.Lock()
	for _, key := range l.owed() {
		if !pending[key] {
			t.Errorf("the key %s is lost: %+v", key, *l.keys[key])
		}
	}
	for _, fault := range l.faults {
		t.Error(fault)
	}
	l.mu.Unlock()
	time.Sleep(time.Hour) // the calls that outlast their cancellation end
}

// owed returns the keys that must be in the queue. The mutex is held.
func (l *load) owed() (keys []string) {
	for key, p := range l.keys {
		if p.owed() {
			keys = append(keys, key)
		}
	}
	return keys
}

// add adds keys until a second after the stop.
func (l *load) add() {
	for {
		time.Sleep(l.below(100 * time.Millisecond))
		key := strconv.Itoa(int(l.below(20)))
		l.mu.Lock()
		if !l.stopped.IsZero() && time.Since(l.stopped) > time.Second {
			l.mu.Unlock()
			return
		}
		if l.keys[key] == nil {
			l.keys[key] = &progress{}
		}
		l.keys[key].adds++
		l.mu.Unlock()
		l.queue.Add(key)
		l.at(added)
	}
}

func (l *load) reconcile(ctx context.Context, key string) (res reconcile.Result, err error) {
	l.mu.Lock()
	p := l.keys[key]
	begin := time.Now()
	if !l.taken.IsZero() && begin.Sub(l.taken) > renewDeadline {
		l.faults = append(l.faults, "a call began "+begin.Sub(l.taken).String()+" after the loss")
	}
	l.running++
	p.handled, p.running = p.adds, true
	kind, result := l.rng.IntN(100), l.rng.IntN(10)
	l.mu.Unlock()
	l.at(begun)
	defer func() {
		l.at(ended)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.running--
		l.ended = time.Now()
		if after := l.ended.Sub(l.lost); kind >= 2 && begin.Before(l.lost) && after > renewDeadline {
			l.faults = append(l.faults, "a call ended "+after.String()+" after the loss")
		}
		p.running, p.failed = false, err != nil || res != reconcile.Result{}
	}()
	var d time.Duration
	switch {
	case kind < 2: // ignores its cancellation
		time.Sleep(time.Minute + l.below(time.Hour/2))
		return reconcile.Result{}, nil
	case kind < 5:
		d = l.below(30 * time.Second)
	case kind < 30:
		d = l.below(3 * time.Second)
	case kind < 80:
		d = l.below(100 * time.Millisecond)
	}
	if d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return reconcile.Result{}, ctx.Err()
		}
	}
	switch {
	case result < 2:
		return reconcile.Result{}, errors.New("failed")
	case result < 3:
		return reconcile.Result{RequeueAfter: time.Millisecond + l.below(5*time.Second)}, nil
	}
	return reconcile.Result{}, nil
}

// leases is a leader.LeaseClient of one Lease.
type leases struct{ *load }

func (c leases) Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error) {
	c.at(requested)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lease == nil {
		return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), "x")
	}
	return c.lease.DeepCopy(), nil
}

func (c leases) Create(_ context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	return c.put(lease)
}

func (c leases) Update(_ context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	return c.put(lease)
}

func (c leases) put(lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	c.at(requested)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lease != nil && c.lease.ResourceVersion != lease.ResourceVersion {
		return nil, apierrors.NewConflict(coordinationv1.Resource("leases"), "x", errors.New("the object has been modified"))
	}
	switch holder := lease.Spec.HolderIdentity; {
	case !c.taken.IsZero():
		c.faults = append(c.faults, "the Lease is written while another process holds it")
	case holder != nil && *holder != "":
		if before := c.lease; before == nil || before.Spec.HolderIdentity == nil || *before.Spec.HolderIdentity != *holder {
			c.terms++
		}
	case c.running > 0:
		c.faults = append(c.faults, fmt.Sprintf("the Lease is released while %d calls run", c.running))
	}
	c.storeLocked(lease)
	return c.lease.DeepCopy(), nil
}

func (c leases) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	c.at(requested)
	c.mu.Lock()
	defer c.mu.Unlock()
	w := watch.NewRaceFreeFake()
	if c.watches != nil {
		c.watches = append(c.watches, w)
	}
	return w, nil
}
