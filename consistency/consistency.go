package consistency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

const (
	// defaultRecheck is short because a gate without handlers depends on it alone,
	// and cheap because it runs only while somebody waits.
	defaultRecheck = 200 * time.Millisecond

	// sweepMin is the number of owners below which sweeping is not worth it.
	sweepMin = 64

	// ambiguousFor bounds the memory of ambiguous writes nobody asks for. It is ten
	// times the API server's default request timeout, after which it has given up.
	ambiguousFor = 10 * time.Minute
)

// storeVersion is what a cache.Store tells of itself: the version up to which it is
// complete, "" while it is not known.
type storeVersion = interface{ LastStoreSyncResourceVersion() string }

// Config configures a Store.
type Config struct {
	// Stores says through which store the controller reads a resource: an informer's
	// GetStore or GetIndexer. Add Handler to the informer too, or use AddInformer,
	// which does both, also after New. nil means none yet.
	Stores map[schema.GroupResource]interface{ LastStoreSyncResourceVersion() string }

	// RecheckInterval is how often waiting owners are checked between events, since
	// bookmarks reach no handler. It runs only while somebody waits.
	// 0 means 200ms; a negative value counts as 0.
	RecheckInterval time.Duration
}

// Store remembers, for each owner, what was written for it and is not in the cache
// yet. An owner is usually the object that is reconciled, and its key. All methods
// may be called concurrently.
type Store struct {
	recheckEvery time.Duration

	// mu guards everything below. It is held while a store's version is read (which
	// takes the store's own lock), never while a wake function runs.
	mu      sync.Mutex
	stores  map[schema.GroupResource]storeVersion
	owners  map[types.NamespacedName]*record
	waiters map[types.NamespacedName][]*waiter
	timer   *time.Timer // not nil exactly while waiters is not empty
	clock   uint64      // orders the start of requests against ambiguous answers
	sweepAt int         // sweep when owners has grown to this size
}

// record is what an owner waits for. It is removed when both maps are empty.
type record struct {
	uid       types.UID // "" while only Wrap has written for it
	wrote     map[schema.GroupResource]string
	ambiguous map[schema.GroupResource]mark
}

// mark says when a write was found to be ambiguous: only what was started after that
// can tell more about it.
type mark struct {
	clock uint64
	at    time.Time
}

type waiter struct{ wake func() }

// New returns a Store. It starts nothing and needs no closing.
func New(cfg Config) *Store {
	s := &Store{
		recheckEvery: cmp.Or(max(cfg.RecheckInterval, 0), defaultRecheck),
		stores:       make(map[schema.GroupResource]storeVersion, len(cfg.Stores)),
		owners:       map[types.NamespacedName]*record{},
		waiters:      map[types.NamespacedName][]*waiter{},
		sweepAt:      sweepMin,
	}
	maps.Copy(s.stores, cfg.Stores)
	return s
}

// AddInformer makes the informer's store the one to compare writes of the resource
// with, and adds Handler to the informer. Call it before the informer is started or
// after, but not once it has stopped: that is an error, as is a resource that has a
// store already.
func (s *Store) AddInformer(resource schema.GroupResource, informer cache.SharedInformer) error {
	s.mu.Lock()
	if s.stores[resource] != nil {
		s.mu.Unlock()
		return fmt.Errorf("consistency: add informer: %s has a store already; one store must answer for all informers of a resource", resource)
	}
	s.stores[resource] = informer.GetStore()
	s.mu.Unlock()
	if _, err := informer.AddEventHandler(s.Handler()); err != nil {
		s.mu.Lock()
		delete(s.stores, resource)
		s.mu.Unlock()
		return fmt.Errorf("consistency: add handler to the informer of %s: %w", resource, err)
	}
	return nil
}

// Handler returns a handler that wakes waiters. Add it to each informer whose store
// is in Config.Stores; without it they are woken by RecheckInterval alone. An event
// costs a lock, and one comparison for each owner that is waited for.
func (s *Store) Handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { s.wakeReady() },
		UpdateFunc: func(any, any) { s.wakeReady() },
		DeleteFunc: func(any) { s.wakeReady() },
	}
}

// WroteAt records that the resource was written, or read from the server, at rv for
// the owner: the owner is ready when the resource's store has reached the highest
// recorded version. An rv that is not a version (empty, "0", not a number) is
// ignored, because nothing could be compared with it. Another ownerUID than the
// recorded one means that the owner was replaced: what was recorded for the former
// is dropped. An empty ownerUID stands for whichever is recorded.
func (s *Store) WroteAt(owner types.NamespacedName, ownerUID types.UID, resource schema.GroupResource, rv string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock++
	s.wroteLocked(owner, ownerUID, resource, rv, s.clock)
}

// wroteLocked is WroteAt for an answer to a request that was started at the given
// clock: it settles the ambiguous writes known by then.
func (s *Store) wroteLocked(owner types.NamespacedName, uid types.UID, resource schema.GroupResource, rv string, started uint64) {
	if _, err := resourceversion.CompareResourceVersion(rv, rv); err != nil {
		return
	}
	rec := s.recordLocked(owner, uid)
	if m, ok := rec.ambiguous[resource]; ok && m.clock < started {
		delete(rec.ambiguous, resource)
	}
	if known, ok := rec.wrote[resource]; ok {
		if order, err := resourceversion.CompareResourceVersion(known, rv); err == nil && order >= 0 {
			return
		}
	}
	rec.wrote[resource] = rv
}

// recordLocked returns the owner's record for the UID, which it makes if needed.
func (s *Store) recordLocked(owner types.NamespacedName, uid types.UID) *record {
	rec := s.owners[owner]
	if rec != nil && rec.uid == "" {
		rec.uid = uid
	}
	if rec != nil && (uid == "" || rec.uid == uid) {
		return rec
	}
	if rec == nil && len(s.owners) >= s.sweepAt {
		// Owners that are not reconciled again, for instance because they are gone,
		// would stay for ever. Sweeping at every doubling costs O(1) per record.
		s.sweepLocked()
	}
	rec = &record{uid: uid, wrote: map[schema.GroupResource]string{}, ambiguous: map[schema.GroupResource]mark{}}
	s.owners[owner] = rec
	return rec
}

func (s *Store) sweepLocked() {
	now := time.Now()
	for owner, rec := range s.owners {
		maps.DeleteFunc(rec.ambiguous, func(_ schema.GroupResource, m mark) bool { return now.Sub(m.at) > ambiguousFor })
		s.lagLocked(owner) // forgets it if it is ready
	}
	s.sweepAt = max(sweepMin, 2*len(s.owners))
}

// Clear forgets what was recorded for the owner, if its UID is ownerUID or ownerUID
// is empty. It need not be called: what the cache has shown is forgotten by itself.
// Who waits for the owner is woken.
func (s *Store) Clear(owner types.NamespacedName, ownerUID types.UID) {
	s.mu.Lock()
	if rec := s.owners[owner]; rec != nil && (ownerUID == "" || rec.uid == ownerUID) {
		delete(s.owners, owner)
	}
	wakes := s.takeReadyLocked()
	s.mu.Unlock()
	call(wakes)
}

// EnsureReady returns nil if the cache shows every recorded write of the owner, and
// forgets them; else a *StaleError, or an error that names a resource without a
// store. It does not block. As with client-go's, a WroteAt that runs concurrently may
// or may not be taken into account.
func (s *Store) EnsureReady(owner types.NamespacedName) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readyLocked(owner)
}

// readyLocked is EnsureReady.
func (s *Store) readyLocked(owner types.NamespacedName) error {
	switch lag, verdict := s.lagLocked(owner); verdict {
	case behind:
		return &lag
	case noStore:
		return fmt.Errorf("consistency: %s was written for %s, but has no store: use AddInformer or Config.Stores", lag.GroupResource, owner)
	}
	return nil
}

type verdict int

const (
	ready verdict = iota
	behind
	noStore
)

// lagLocked says what an owner waits for, and forgets its writes if for nothing. It
// runs for every waiter at every event, so it makes no error.
func (s *Store) lagLocked(owner types.NamespacedName) (StaleError, verdict) {
	rec := s.owners[owner]
	if rec == nil {
		return StaleError{}, ready
	}
	for resource, wrote := range rec.wrote {
		store := s.stores[resource]
		if store == nil {
			return StaleError{GroupResource: resource}, noStore
		}
		read := store.LastStoreSyncResourceVersion()
		// A version that does not compare is not known to be new enough.
		if order, err := resourceversion.CompareResourceVersion(read, wrote); err != nil || order < 0 {
			return StaleError{GroupResource: resource, ReadRV: read, WroteRV: wrote}, behind
		}
	}
	// All at once, or none: a record is only let go at a moment at which every store
	// was there.
	clear(rec.wrote)
	if len(rec.ambiguous) == 0 {
		delete(s.owners, owner)
	}
	return StaleError{}, ready
}

// Ambiguous returns the resources with a write of the owner whose outcome is not
// known, because its answer was lost, was an error of the server (5xx), could not be
// read, or was that of a deletion of a collection. A cache cannot tell more; read the
// objects from the server and pass the version of that read to WroteAt. The entry is
// removed by that, by any later write of the resource, by Clear, and at the earliest
// ten minutes later by itself.
func (s *Store) Ambiguous(owner types.NamespacedName) []schema.GroupResource {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := s.owners[owner]
	if rec == nil {
		return nil
	}
	return slices.SortedFunc(maps.Keys(rec.ambiguous), func(a, b schema.GroupResource) int {
		return cmp.Compare(a.String(), b.String())
	})
}

// Wait blocks until the cache shows every recorded write of the owner and returns
// nil, or until ctx is done and returns an error that wraps both the cause and what
// was missing. What no cache can ever show is returned at once: a write of a resource
// without a store.
func (s *Store) Wait(ctx context.Context, owner types.NamespacedName) error {
	done := make(chan struct{})
	w := &waiter{wake: func() { close(done) }}
	s.mu.Lock()
	missing := s.readyLocked(owner)
	if _, stale := errors.AsType[*StaleError](missing); !stale {
		s.mu.Unlock()
		return missing
	}
	s.waitLocked(owner, w)
	s.mu.Unlock()

	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.forgetLocked(owner, w) {
		return nil // it was taken to be woken meanwhile: the owner was ready
	}
	if err := s.readyLocked(owner); err != nil {
		missing = err
	}
	return fmt.Errorf("consistency: wait for %s: %w: %w", owner, context.Cause(ctx), missing)
}

// Begin returns a context for a reconcile of the key: writes made with it through a
// transport from Wrap are recorded for the key.
func (s *Store) Begin(ctx context.Context, key types.NamespacedName) context.Context {
	return context.WithValue(ctx, ownerKey{s}, key)
}

// Ready reports whether the cache shows every recorded write of the key. If not,
// wake is called exactly once when it does: from an informer's handler, a timer, or
// Clear, so it must not block; adding the key to a queue is what it is for. Every call
// that returns false has its own wake.
func (s *Store) Ready(key types.NamespacedName, wake func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, verdict := s.lagLocked(key); verdict == ready {
		return true
	}
	s.waitLocked(key, &waiter{wake: wake})
	return false
}

// End says that the reconcile of the key is over. What the cache shows already is
// forgotten; the rest stays until it does. Writes that still arrive with the context
// of Begin are recorded all the same.
func (s *Store) End(key types.NamespacedName) { _ = s.EnsureReady(key) }

// waitLocked adds a waiter. Because it happens under the same lock as the check that
// found the owner not ready, an event in between cannot be missed.
func (s *Store) waitLocked(owner types.NamespacedName, w *waiter) {
	s.waiters[owner] = append(s.waiters[owner], w)
	if s.timer == nil {
		s.timer = time.AfterFunc(s.recheckEvery, s.recheck)
	}
}

// forgetLocked removes a waiter and reports whether it was still there.
func (s *Store) forgetLocked(owner types.NamespacedName, w *waiter) bool {
	list := s.waiters[owner]
	i := slices.Index(list, w)
	if i < 0 {
		return false
	}
	if list = slices.Delete(list, i, i+1); len(list) > 0 {
		s.waiters[owner] = list
	} else {
		delete(s.waiters, owner)
		s.stopIdleTimerLocked()
	}
	return true
}

// takeReadyLocked removes the waiters of owners that are ready, to be called without
// the lock: once taken nobody else can call them.
func (s *Store) takeReadyLocked() []*waiter {
	var taken []*waiter
	for owner, list := range s.waiters {
		if _, verdict := s.lagLocked(owner); verdict == ready {
			delete(s.waiters, owner)
			taken = append(taken, list...)
		}
	}
	s.stopIdleTimerLocked()
	return taken
}

func (s *Store) stopIdleTimerLocked() {
	if len(s.waiters) == 0 && s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
}

func (s *Store) wakeReady() {
	s.mu.Lock()
	wakes := s.takeReadyLocked()
	s.mu.Unlock()
	call(wakes)
}

// recheck is wakeReady at the end of the timer. A callback that lost a race with Stop
// finds either no timer or a newer one, which it postpones by one interval at most.
func (s *Store) recheck() {
	s.mu.Lock()
	wakes := s.takeReadyLocked()
	if s.timer != nil {
		s.timer.Reset(s.recheckEvery)
	}
	s.mu.Unlock()
	call(wakes)
}

func call(waiters []*waiter) {
	for _, w := range waiters {
		w.wake()
	}
}

// StaleError says that the cache of a resource is behind a recorded write.
type StaleError struct {
	GroupResource schema.GroupResource
	ReadRV        string // what the store has reached; "" means it does not know
	WroteRV       string // what it must reach
}

// Error implements error.
func (e *StaleError) Error() string {
	return fmt.Sprintf("consistency: the cache of %s is at version %q, behind the written %q", e.GroupResource, e.ReadRV, e.WroteRV)
}

// Stale returns true. Loops find it with errors.As on an interface and retry when the
// cache has caught up instead of backing off.
func (e *StaleError) Stale() bool { return true }
