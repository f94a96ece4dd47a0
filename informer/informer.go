package informer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/informer/internal/reflectorlog"
	"github.com/controllerkit/controllerkit/informer/internal/samples"
	"github.com/controllerkit/controllerkit/internal/alive"
	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// ErrNotSynced is wrapped by the error of a Run that ended because an informer did not
// sync, and by the error of Ready until all have. The API server's error is wrapped, too,
// for apierrors.IsForbidden and the like.
var ErrNotSynced = errors.New("informer: not synced")

// Set runs informers. The zero value is ready to use. A Set runs once, as client-go's
// informers do, and must not be copied. Its methods may be called concurrently.
type Set struct {
	// Timeout is the time from the start of Run, or the return of Served, after which Run ends with
	// an error if an informer or a given handler is not synced. If the first list still brings data
	// and nothing has failed lately, Run logs a line and waits for Timeout again, up to 30 times
	// Timeout in all. For a list that is being decoded, and for a handler, the limit is 10 times
	// Timeout. Without the transport of EndSilentWatches, data is not seen. client-go's attempts have
	// growing intervals: the fifth comes after 12 to 24s, so Run can end with an error although the
	// server came back shortly before. 0 means 20s.
	Timeout time.Duration

	// StopTimeout bounds the stop of the informers after ctx is done or one of them has
	// failed. They stop at once unless a handler is busy, or client-go pauses between two
	// attempts, which EndSilentWatches prevents. 0 means 5s.
	StopTimeout time.Duration

	// Served is called by Run beside the first lists of the informers, and returns when the API
	// server serves their resources. Until then, the Set is not synced, Timeout does not begin, and
	// an informer whose first list fails waits without a line of log. If Served returns an error, Run
	// stops the informers and returns the error. Its context ends with Run. nil means that the
	// resources are served.
	Served func(ctx context.Context) error

	// WatchErrorHandler is called with each error that ends a list or watch of an informer.
	// It replaces the handler of the informer. nil means cache.DefaultWatchErrorHandler,
	// which logs the error.
	WatchErrorHandler cache.WatchErrorHandlerWithContext

	// StallTimeout is the time after which Check reports an informer that neither sends a
	// request nor receives data. It must be longer than the silence of EndSilentWatches and
	// a minute. 0 means 10m.
	StallTimeout time.Duration

	// Mutated is called with each change of a sampled object in a cache by the program itself,
	// by one goroutine. It must not block. The samples of an informer are copies of up to 16
	// objects that take at most 1 MiB. Every 10s and at the end of Run they are compared with the objects.
	// nil disables the samples.
	Mutated func(Mutation)

	// Metrics observes the informers. Their client needs the transport of EndSilentWatches.
	// nil disables metrics.
	Metrics Metrics

	mu      sync.Mutex // guards the fields below
	members []*member
	misuse  error
	misused chan struct{} // wakes Run; nil until Run
	synced  chan struct{} // closed when all are synced; created on first use
	stopped bool          // Run has begun to stop the informers, or will not start them

	served chan struct{}             // closed when the resources are served; created by Run
	until  atomic.Pointer[time.Time] // the end of Timeout; nil before served is closed
}

// member is one informer of a Set, and its state.
type member struct {
	name     string
	informer cache.SharedIndexInformer
	checkers []cache.DoneChecker // the informer's, then its handlers'
	done     chan struct{}       // closed when the informer has stopped
	settled  atomic.Bool         // its log lines are not needed any more
	alive    *alive.Informer     // set by begin
	samples  samples.Samples
	measured *atomic.Pointer[member] // the member, for Metrics, until the Set stops; nil without Metrics

	own     int  // periods of Timeout for which Run waited for the process alone; for Run
	endless bool // the first list brings data for too long; for Run

	mu       sync.Mutex // guards the fields below
	last     report
	refusals int       // of the watch, since the informer synced
	since    time.Time // the first of them
}

// report is the latest failure of an informer.
type report struct {
	err      error
	at       time.Time
	bookmark bool            // the end of the initial events is missing
	of       *alive.Informer // the part of the informer, or nil
}

// Add adds an informer. The name must be unique in the set: use its resource, such as
// "deployments.apps", because errors contain it. Only Run may start the informer: do not
// call Start of its factory. It may have a resync period, indexers and a transform, and
// handlers can be added to it at any time. [Guard] contains the faults of a transform: if one
// returns nil, client-go leaves objects out of the cache, which only an [Audit] reports.
//
// handlers are registrations from AddEventHandler. The set is synced only after they have
// received the whole initial list, which is later than the informer's own sync.
//
// Run returns an error before it starts anything if a name is empty or repeated, if an
// argument is nil, or if an informer was added twice or already started. A call while Run
// is running makes it end with an error.
func (s *Set) Add(name string, informer cache.SharedIndexInformer, handlers ...cache.ResourceEventHandlerRegistration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.addLocked(name, informer, handlers); err != nil {
		s.misuse = errors.Join(s.misuse, err)
		if s.misused != nil {
			select {
			case s.misused <- struct{}{}:
			default: // Run is already awake
			}
		}
	}
}

func (s *Set) addLocked(name string, informer cache.SharedIndexInformer, handlers []cache.ResourceEventHandlerRegistration) error {
	switch {
	case s.misused != nil:
		return fmt.Errorf("informer: Add(%q) was called after Run: add all informers before Run", name)
	case name == "":
		return errors.New("informer: Add got an empty name: use the resource, errors name informers by it")
	case kube.IsNil(informer):
		return fmt.Errorf("informer: Add(%q) got a nil informer: pass one", name)
	}
	m := &member{
		name:     name,
		informer: informer,
		checkers: []cache.DoneChecker{informer.HasSyncedChecker()},
		done:     make(chan struct{}),
	}
	for i, h := range handlers {
		if kube.IsNil(h) {
			return fmt.Errorf("informer: Add(%q): handler %d is nil: check the error of AddEventHandler", name, i)
		}
		m.checkers = append(m.checkers, h.HasSyncedChecker())
	}
	for _, other := range s.members {
		if other.name == name {
			return fmt.Errorf("informer: Add(%q) was called twice: give every informer its own name", name)
		}
		// The channel identifies an informer, also in a typed wrapper. Comparing the
		// interfaces could panic.
		if other.checkers[0].Done() == m.checkers[0].Done() {
			return fmt.Errorf("informer: Add(%q): the informer is already in the set as %q: pass all its handlers to one Add", name, other.name)
		}
	}
	s.members = append(s.members, m)
	return nil
}

// Run starts the informers, waits for them to sync, and keeps them running until ctx is
// done. It returns when they have stopped. The error is nil if ctx ended them, also before
// they synced. It wraps ErrNotSynced if an informer did not sync in time, and it names each
// informer that did not stop within StopTimeout.
func (s *Set) Run(ctx context.Context) error {
	refused := make(chan error, 1)
	members, err := s.begin(refused)
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return s.await(nil)
	}
	logger := klog.FromContext(ctx)
	run, stop := context.WithCancelCause(ctx)
	ended := make(chan *member, len(members)) // never blocks
	for _, m := range members {
		go func() {
			defer func() { close(m.done); ended <- m }()
			m.informer.RunWithContext(m.alive.Context(klog.NewContext(run, reflectorlog.Listen(logger, m.settled.Load, m.heard))))
		}()
	}
	var waiter sync.WaitGroup
	served, synced := s.served, make(chan struct{})
	waiter.Go(func() {
		if s.Served != nil {
			if err := s.Served(run); err != nil {
				refused <- err // the only one: failures do not count yet
				return
			}
			s.begins()
		}
		if cache.WaitFor(run, "", checkers(members)...) {
			close(synced)
		}
	})

	if s.Mutated != nil {
		waiter.Go(func() { s.findMutations(run, members) })
	}

	start, timeout, periods := time.Now(), s.timeout(), 0
	var deadline <-chan time.Time
	for err == nil && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-served:
			served = nil // once
			deadline = time.After(timeout)
		case <-synced:
			synced = nil // once
			logger.Info("Informers synced", "informers", len(members), "duration", time.Since(start))
			s.setSynced(members)
		case <-deadline:
			if periods++; over(ctx) {
				break
			}
			if late := proceeding(members, timeout, periods); len(late) > 0 {
				logger.Info("The first list takes long", "informers", late, "duration", time.Since(start))
				s.extend()
				deadline = time.After(timeout)
				break
			}
			err = unsynced(members, timeout*time.Duration(periods))
		case failure := <-refused:
			if !over(ctx) {
				err = failure
			}
		case <-s.misused:
			err = s.mistakes()
		case m := <-ended:
			if ctx.Err() == nil {
				err = cmp.Or(m.result(), fmt.Errorf("informer: %q ended by itself: only the Set may start and stop it", m.name))
			}
		}
	}
	stop(err) // nil means context.Canceled; ctx's own cause goes first
	waiter.Wait()
	err = errors.Join(err, s.await(members))
	for _, m := range members {
		if result := m.result(); !errors.Is(err, result) {
			err = errors.Join(err, result)
		}
	}
	return err
}

// over reports whether ctx is done, or its deadline has passed: the context may end a
// moment later.
func over(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// begin validates the Set, marks it as running and replaces the watch error handlers, which
// fails for an informer that was started.
func (s *Set) begin(refused chan<- error) ([]*member, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.misused != nil:
		return nil, errors.New("informer: Run was called twice: informers run once, create new ones and a new Set")
	case s.misuse != nil:
		return nil, s.misuse
	case len(s.members) == 0:
		return nil, errors.New("informer: the Set has no informers: call Add before Run")
	case s.Timeout < 0:
		return nil, fmt.Errorf("informer: Set.Timeout is %v: set it to more than 0, or 0 for 20s", s.Timeout)
	case s.StopTimeout < 0:
		return nil, fmt.Errorf("informer: Set.StopTimeout is %v: set it to more than 0, or 0 for 5s", s.StopTimeout)
	case s.StallTimeout < 0:
		return nil, fmt.Errorf("informer: Set.StallTimeout is %v: set it to more than 0, or 0 for 10m", s.StallTimeout)
	}
	s.misused = make(chan struct{}, 1)
	s.stopped = true // until every check has passed
	next := s.WatchErrorHandler
	if next == nil {
		next = cache.DefaultWatchErrorHandler
	}
	s.served = make(chan struct{})
	if s.Served == nil {
		s.begins()
	}
	for _, m := range s.members {
		m.alive = alive.New(s.observe(m))
		if m.informer.IsStopped() {
			return nil, fmt.Errorf("informer: %q was stopped before Run: an informer runs once, create a new one", m.name)
		}
		err := m.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
			if r.LastSyncResourceVersion() == "" && s.isEarly(ctx) {
				return // nothing was listed yet
			}
			m.failed(ctx, err, s.deadline(), refused)
			next(ctx, r, err)
		})
		if err != nil {
			return nil, fmt.Errorf("informer: %q cannot be started: %w: only the Set may start it, do not call the factory's Start or the informer's Run", m.name, err)
		}
	}
	if s.Mutated != nil {
		for _, m := range s.members {
			if !headers.Decodes(m.informer.GetStore()) { // the program cannot change what the others hold
				if _, err := m.informer.AddEventHandler(&m.samples); err != nil {
					return nil, fmt.Errorf("informer: %q: add a handler that samples objects: %w", m.name, err)
				}
			}
			if !kube.IsNil(s.Metrics) {
				s.Metrics.InformerMutated(m.name, 0)
			}
		}
	}
	s.stopped = false
	if !kube.IsNil(s.Metrics) {
		for _, m := range s.members {
			m.measured = &atomic.Pointer[member]{}
			m.measured.Store(m)
			s.Metrics.InformerMalformed(m.name, measure(m.measured, (*member).malformed))
			s.Metrics.InformerLast(m.name, measure(m.measured, func(m *member) time.Time { return m.alive.Last() }))
		}
	}
	return s.members, nil
}

// measure returns a function for Metrics, which can outlive Run. When of is empty, it returns zero,
// and does not keep the informer in memory.
func measure[T any](of *atomic.Pointer[member], get func(*member) T) func() T {
	return func() (zero T) {
		if m := of.Load(); m != nil {
			return get(m)
		}
		return zero
	}
}

// begins makes Timeout begin, and failures count.
func (s *Set) begins() {
	s.extend()
	close(s.served)
}

func (s *Set) timeout() time.Duration { return cmp.Or(s.Timeout, 20*time.Second) }

// extend makes Timeout begin again.
func (s *Set) extend() {
	until := time.Now().Add(s.timeout())
	s.until.Store(&until)
}

// deadline returns the end of Timeout, or the zero Time before it begins.
func (s *Set) deadline() time.Time {
	if until := s.until.Load(); until != nil {
		return *until
	}
	return time.Time{}
}

// isEarly reports whether a first list failed before the resources were served. It then waits
// until they are, or ctx is done, so that the informer does not list again before.
func (s *Set) isEarly(ctx context.Context) bool {
	select {
	case <-s.served:
		return false
	default:
	}
	defer alive.From(ctx).Rest()()
	select {
	case <-s.served:
	case <-ctx.Done():
	}
	return true
}

// await waits for the informers to stop and returns an error for each late one.
func (s *Set) await(members []*member) error {
	s.mu.Lock()
	s.stopped = true
	for _, m := range s.members {
		if m.measured != nil {
			m.measured.Store(nil)
		}
	}
	s.mu.Unlock()
	patience := cmp.Or(s.StopTimeout, 5*time.Second)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	var errs []error
	up := false
	for _, m := range members {
		if !up {
			select {
			case <-m.done:
			case <-timer.C:
				up = true
			}
		}
		select {
		case <-m.done:
		default:
			errs = append(errs, fmt.Errorf("informer: %q has not stopped within %v: one of its handlers is busy, or client-go pauses before it tries again, for a minute at most; it is left to end by itself", m.name, patience))
		}
	}
	return errors.Join(errs...)
}

func checkers(members []*member) []cache.DoneChecker {
	var all []cache.DoneChecker
	for _, m := range members {
		all = append(all, m.checkers...)
	}
	return all
}

func (s *Set) mistakes() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.misuse
}

func (s *Set) setSynced(members []*member) {
	for _, m := range members {
		m.settled.Store(true)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.syncedLocked())
}

func (s *Set) syncedLocked() chan struct{} {
	if s.synced == nil {
		s.synced = make(chan struct{})
	}
	return s.synced
}

// Ready returns nil while all informers and given handlers are synced and Run has not begun
// to stop them. Otherwise it returns an error that wraps ErrNotSynced and names the
// informers that are not synced. It can be passed to shutdown's AddReady.
//
// Ready also returns an error if the last three lists of a synced informer could not be decoded:
// see [Set.Check]. For a part, such as a namespace, this counts only after it has received data.
// Ready does not return the failures of a watch, such as a refusal of the API server: Metrics
// and [Set.LastEvents] have the time of the last event.
func (s *Set) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.misused == nil {
		return fmt.Errorf("%w: Run was not called yet", ErrNotSynced)
	}
	if s.stopped {
		return fmt.Errorf("%w: stopped", ErrNotSynced)
	}
	if cache.IsDone(checker{s.syncedLocked()}) {
		var errs []error
		for _, m := range s.members {
			if err := m.blind(true); err != nil {
				errs = append(errs, fmt.Errorf("%w: %w", ErrNotSynced, err))
			}
		}
		return errors.Join(errs...)
	}
	var missing []string
	var reasons []error
	for _, m := range s.members {
		if len(m.missing()) > 0 {
			missing = append(missing, m.name)
			reasons = append(reasons, m.alive.Blocked())
		}
	}
	if len(missing) == 0 {
		return fmt.Errorf("%w: waiting for Set.Served", ErrNotSynced)
	}
	err := fmt.Errorf("%w: waiting for %q", ErrNotSynced, missing)
	if reason := errors.Join(reasons...); reason != nil {
		err = fmt.Errorf("%w: %w", err, reason)
	}
	return err
}

// HasSyncedChecker returns a checker that is done when all informers and given handlers are
// synced. It may be called at any time, also before Run.
func (s *Set) HasSyncedChecker() cache.DoneChecker {
	s.mu.Lock()
	defer s.mu.Unlock()
	return checker{s.syncedLocked()}
}

// HasSynced reports the same without waiting. It is a cache.InformerSynced.
func (s *Set) HasSynced() bool { return cache.IsDone(s.HasSyncedChecker()) }

type checker struct{ done chan struct{} }

func (checker) Name() string            { return "informer.Set" }
func (c checker) Done() <-chan struct{} { return c.done }
