package managerkit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/leader"
)

// The timings of client-go's elector, which only polls the lock in memory. It gives up within
// retryPeriod + renewDeadline after the term was lost; the contexts of the Runnables have ended
// by then. It also gives up if the process gets no processor for renewDeadline during a poll, such as
// a container that is throttled, although the Lease is held. So renewDeadline is not short.
const (
	leaseDuration = 4 * time.Second
	renewDeadline = 3 * time.Second
	retryPeriod   = 100 * time.Millisecond

	// A manager that has waited for GracefulShutdownTimeout stops its cache and releases
	// the Lease at the same time. The cache ends later by cacheDelay, so that the release
	// finds it running.
	cacheDelay = 10 * time.Millisecond
)

// Elect makes a manager with these options elect its leader by e, in place of its own
// election. The manager works as before: the Runnables that need election start when
// this process leads, the others at once. If leadership is lost, the contexts of all
// Runnables end at once, with a cause that has the method LeadershipLost() bool. Then
// Start returns an error, and the process should exit.
//
//	err := managerkit.Elect(&options, elector)
//	...
//	mgr, err := ctrl.NewManager(config, options)
//
// These are the differences to the manager's own election:
//
//   - The Lease is released after all Runnables have returned, and a standby starts at
//     the watch event. When Start returns, the Lease has been released. If a Runnable
//     outlasts GracefulShutdownTimeout, the Lease is not released and expires.
//   - The validity of the term counts from when a renewal was sent. A slow response
//     cannot make two managers lead.
//   - The contexts of the Runnables have the term, see [leader.TermFrom], while this
//     process leads. So [leader.Guard] works in the manager's configuration.
//   - If the Lease is not usable for the StartTimeout of e, Start returns the error of
//     e.Run. The manager's own election tries forever.
//
// DrainTimeout of e has no effect: GracefulShutdownTimeout of the manager bounds the
// drain.
//
// Elect sets LeaderElection, LeaderElectionReleaseOnCancel, the durations, the lock and
// LeaderElectionID, which names the Lease in leader_election_master_status, and wraps NewCache and
// BaseContext. Code that sets one of these two later must call the replaced function, as
// [Writes.Install] does. If Metrics of e is set, that name is namespace/name, as in the metrics of e.
// Set Metrics before the call of Elect: otherwise the election has two series. Call
// Elect once for each manager. It returns an error without any change if options or e is nil, or
// if options configure an election that differs from e. LeaderElectionID and
// LeaderElectionNamespace may be set if they name the Lease of e, so that replicas of an earlier
// version share it.
func Elect(options *manager.Options, e *leader.Elector) error {
	switch {
	case options == nil:
		return errors.New("managerkit: options is nil: pass the address of the options for manager.New")
	case e == nil:
		return errNoElector
	case !kube.IsNil(options.LeaderElectionResourceLockInterface):
		return errors.New("managerkit: LeaderElectionResourceLockInterface is set already: the lock must be the Elector's; call Elect once for each manager")
	case options.LeaderElectionID != "" && options.LeaderElectionID != e.Name:
		return fmt.Errorf("managerkit: LeaderElectionID is %q: use the Elector's Name, %q, so that all replicas share the Lease", options.LeaderElectionID, e.Name)
	case options.LeaderElectionNamespace != "" && options.LeaderElectionNamespace != e.Namespace:
		return fmt.Errorf("managerkit: LeaderElectionNamespace is %q: use the Elector's Namespace, %q, so that all replicas share the Lease", options.LeaderElectionNamespace, e.Namespace)
	case options.LeaderElectionResourceLock != "" && options.LeaderElectionResourceLock != resourcelock.LeasesResourceLock:
		return fmt.Errorf("managerkit: LeaderElectionResourceLock is %q: an Elector uses a Lease: leave it empty", options.LeaderElectionResourceLock)
	case options.LeaderElectionConfig != nil:
		return errors.New("managerkit: LeaderElectionConfig is set: make the Elector's Leases with that configuration instead")
	case options.LeaderElectionLabels != nil:
		return errors.New("managerkit: LeaderElectionLabels is set: an Elector writes no labels: leave it nil")
	case options.LeaseDuration != nil || options.RenewDeadline != nil || options.RetryPeriod != nil:
		return errors.New("managerkit: LeaseDuration, RenewDeadline or RetryPeriod of the options is set: set those of the Elector instead")
	}

	l := &lock{elector: e, led: make(chan struct{}), released: make(chan struct{}), ended: make(chan struct{})}
	l.failure, l.fail = context.WithCancelCause(context.Background())
	l.lost, l.lose = context.WithCancelCause(context.Background())

	newCache := options.NewCache
	if newCache == nil {
		newCache = cache.New
	}
	options.NewCache = func(config *rest.Config, opts cache.Options) (cache.Cache, error) {
		if l.built.Swap(true) {
			return nil, errors.New("managerkit: the options of Elect were used for another manager: call Elect with new options for each")
		}
		c, err := newCache(config, opts)
		if err != nil {
			return nil, err
		}
		return electedCache{Cache: c, lock: l}, nil
	}
	baseContext := options.BaseContext
	if baseContext == nil {
		baseContext = context.Background
	}
	options.BaseContext = func() context.Context {
		base := baseContext()
		ctx, cancel := context.WithCancelCause(l.lost)
		context.AfterFunc(base, func() { cancel(context.Cause(base)) })
		return electedContext{Context: ctx, base: base, lock: l}
	}

	options.LeaderElection = true
	options.LeaderElectionReleaseOnCancel = true
	options.LeaderElectionID = e.Name
	if !kube.IsNil(e.Metrics) { // otherwise one election has two series of leader_election_master_status
		options.LeaderElectionID = l.Describe()
	}
	options.LeaderElectionResourceLockInterface = l
	options.LeaseDuration = ptr.To(leaseDuration)
	options.RenewDeadline = ptr.To(renewDeadline)
	options.RetryPeriod = ptr.To(retryPeriod)
	return nil
}

var errNoElector = errors.New("managerkit: the Elector is nil: set its Leases, Namespace and Name")

// A lock is the resource lock of one manager: it shows the term of an Elector to
// client-go's elector. The first Get starts the Elector, and the release waits until it
// has returned.
type lock struct {
	elector *leader.Elector
	built   atomic.Bool // the manager was built

	begin  sync.Once
	run    context.Context // of the Elector's Run; set by begin
	cancel context.CancelFunc
	led    chan struct{}   // closed when the term begins
	lead   context.Context // set before led is closed
	ended  chan struct{}   // closed when Run has returned

	failure context.Context // done if Run returned an error without a term, which is the cause
	fail    context.CancelCauseFunc

	lost context.Context // done when the term is over, for the reason that is the cause
	lose context.CancelCauseFunc

	cacheEnded atomic.Bool   // the manager has stopped its cache, which it stops after the work
	released   chan struct{} // closed by the release
	expire     bool          // the Lease must not be released; set before Run's context is done
}

// Run of the Elector, in its own goroutine.
func (l *lock) elect() {
	defer close(l.ended)
	err := l.elector.Run(l.run, func(ctx context.Context) error {
		l.lead = ctx
		close(l.led)
		validity := ctx.Value(calls.Validity{}).(context.Context)
		context.AfterFunc(validity, l.loseIfOver)
		<-ctx.Done()
		l.loseIfOver()
		if l.run.Err() == nil { // lost: the manager ends, so Run must not campaign again
			l.cancel()
		} else if l.expire {
			runtime.Goexit() // the one way to return and keep the Lease
		}
		return nil
	})
	if err != nil && !isClosed(l.led) {
		l.fail(fmt.Errorf("managerkit: leader election: %w", err))
	}
}

// stop ends the Elector and waits until it has returned.
func (l *lock) stop() {
	l.cancel()
	<-l.ended
}

// loseIfOver cancels the contexts of the Runnables if the term is over. It is called before the
// manager sees the loss, because the manager cancels them without a cause.
func (l *lock) loseIfOver() {
	if validity := l.lead.Value(calls.Validity{}).(context.Context); validity.Err() != nil {
		l.lose(context.Cause(validity))
	}
}

// leads reports whether this process is the leader at this moment.
func (l *lock) leads() bool {
	if !isClosed(l.led) {
		return false
	}
	term, ok := leader.TermFrom(l.lead)
	if ok && term.Check(l.lead) == nil {
		return true
	}
	l.loseIfOver()
	return false
}

// Get waits until this process leads, and then returns a record without a holder, which
// client-go's elector takes over by an Update. After a loss, and if it stops before, it
// returns a record of another holder.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.begin.Do(func() {
		// Not ended by ctx: stop waits for the Elector.
		l.run, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
		go l.elect()
	})
	select {
	case <-l.led:
	case <-ctx.Done():
	}
	if !isClosed(l.led) {
		l.stop() // a standby stops, also one whose Elector has failed
	}
	if l.leads() {
		return &resourcelock.LeaderElectionRecord{}, nil, nil
	}
	// After a loss all goroutines of the Elector have ended when the manager's
	// Start returns, unless Elector.Event blocks.
	select {
	case <-l.ended:
	case <-ctx.Done():
	}
	return &resourcelock.LeaderElectionRecord{HolderIdentity: "another", LeaseDurationSeconds: math.MaxInt32}, []byte("lost"), nil
}

// Create is not called, because Get never returns that the record is absent.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.Update(ctx, record)
}

// Update succeeds while the term is valid. The record without a holder is the release.
// It comes after the manager has stopped all that it runs, unless something outlasted
// GracefulShutdownTimeout, or client-go's elector gave up by its own clock. Then the cache
// still runs, and the Lease must expire.
func (l *lock) Update(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" {
		l.expire = !l.cacheEnded.Load()
		close(l.released)
		l.stop()
		return nil
	}
	if !l.leads() {
		return leader.ErrLost
	}
	return nil
}

// RecordEvent has no effect: Elector.Event records events.
func (l *lock) RecordEvent(string) {}

// Identity distinguishes the records of this lock from another holder's.
func (l *lock) Identity() string { return "self" }

func (l *lock) Describe() string { return l.elector.Namespace + "/" + l.elector.Name }

// An electedCache is the manager's cache, a part of the manager that Elect can reach by the
// options: it reports the Elector's error to the manager, and that the manager stops.
type electedCache struct {
	cache.Cache
	lock *lock
}

// Unwrap returns the cache of the manager without Elect.
func (c electedCache) Unwrap() cache.Cache { return c.Cache }

func (c electedCache) Start(ctx context.Context) error {
	defer c.lock.cacheEnded.Store(true)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.lock.failure, cancel)()
	err := c.Cache.Start(ctx)
	select {
	case <-c.lock.released:
	case <-time.After(cacheDelay):
	}
	if failure := context.Cause(c.lock.failure); failure != nil {
		return failure
	}
	return err
}

// An electedContext ends when the term is over, or with base. It has the values of base, and
// those of lead's context from when that exists: the term.
type electedContext struct {
	context.Context // derived from lock.lost, so that lose ends it before it returns
	base            context.Context
	lock            *lock
}

func (c electedContext) Deadline() (time.Time, bool) { return c.base.Deadline() }

func (c electedContext) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	if v := c.base.Value(key); v != nil {
		return v
	}
	// A value of run's context, such as the logger of the election, is not of the term.
	if !isClosed(c.lock.led) || c.lock.run.Value(key) != nil {
		return nil
	}
	return c.lock.lead.Value(key)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
