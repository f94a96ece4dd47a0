package consistency

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
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

	// defaultMaxWait is twice the time between the bookmarks of a watch: what a
	// filtered informer can be late by itself does not end a wait.
	defaultMaxWait = 2 * time.Minute

	// defaultAmbiguousWait is long beside a write that the server still carries out
	// when its connection is gone, and short beside a backoff.
	defaultAmbiguousWait = time.Second

	// ambiguousFor bounds the memory of ambiguous writes nobody settles. It is ten
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

	// MaxWait is how long after its last recorded write Ready holds a key back at
	// most. Then the key runs although the cache is behind, and LiveRead is true in
	// that run. It bounds the wait for a filtered informer, whose next bookmark may be
	// late, and for a watch that is broken. EnsureReady and Wait know no such bound. A
	// Reconcile that does not ask LiveRead acts on the old cache then: give it a
	// negative value.
	// 0 means 2min; a negative value means no bound.
	MaxWait time.Duration

	// AmbiguousWait is how long Ready holds a key back after a write of which the
	// outcome is not known: time for the server to finish it. Then the key runs, and
	// LiveRead is true in its runs until the write is settled (see Ambiguous).
	// 0 means 1s; a negative value means none.
	AmbiguousWait time.Duration

	// Metrics is told what Ready's waiting costs. nil means nobody is.
	Metrics Metrics
}

// Metrics receives what a Store counts. Implementations must be safe for concurrent
// use and must not block; they may be called by an informer's handler.
type Metrics interface {
	// ConsistencyWaited is called when a wait that began with Ready = false is over,
	// before its wake, with the time it took. timedOut says that it ended with MaxWait
	// or AmbiguousWait and not because the cache had caught up or the key was cleared.
	ConsistencyWaited(d time.Duration, timedOut bool)
}

// Store remembers, for each owner, what was written for it and is not in the cache
// yet. An owner is usually the object that is reconciled, and its key. All methods
// may be called concurrently. Use New.
type Store struct {
	recheckEvery, maxWait, ambiguousWait time.Duration // negative: no bound, none

	metrics Metrics // may be nil

	// mu guards everything below. It is held while a store is asked (which takes the
	// store's own lock), never while a wake function or metrics run.
	mu      sync.Mutex
	stores  map[schema.GroupResource]*cached
	owners  map[types.NamespacedName]*record
	waiters map[types.NamespacedName][]*waiter
	wakes   wakes
	timer   *time.Timer // not nil exactly while waiters is not empty
	due     time.Time   // when timer fires
	clock   uint64      // orders the start of requests against ambiguous answers
	sweepAt int         // sweep when owners has grown to this size
}

// record is what an owner waits for. It is removed when nothing is left of it.
type record struct {
	uid       types.UID // "" while only Wrap has written for it
	last      time.Time // when wrote, deleted or refused was last added to
	wrote     []written // one for each resource
	deleted   map[types.UID]deletion
	ambiguous []mark     // one for each resource
	refused   []refusal  // one for each object
	live      time.Time  // when it was found that the next run must read live; zero means it need not
	first     [1]written // most owners write one resource: saves an allocation
}

type written struct {
	resource schema.GroupResource
	rv       string
	history  int // of the store, when it was recorded
}

// cached is the store of a resource.
type cached struct {
	storeVersion
	last    string // the last version that was read and is one
	history int    // counts how often the version went back: etcd was restored
}

// version returns the version that the store has reached. An informer's store goes back
// for one reason alone: it has listed anew, and the API server has an older history,
// because etcd was restored from a backup. Versions that were recorded before will not
// come again, or mean something else.
func (c *cached) version() string {
	read := c.LastStoreSyncResourceVersion()
	if order, err := resourceversion.CompareResourceVersion(read, cmp.Or(c.last, read)); err == nil {
		if order < 0 {
			c.history++
		}
		c.last = read
	}
	return read
}

// objectsLocked returns the store of the resource if it can say what it holds.
func (s *Store) objectsLocked(resource schema.GroupResource) (objects, bool) {
	c := s.stores[resource]
	if c == nil {
		return nil, false
	}
	held, ok := c.storeVersion.(objects)
	return held, ok
}

// historyLocked returns how often the resource's store has gone back until now.
func (s *Store) historyLocked(resource schema.GroupResource) int {
	c := s.stores[resource]
	if c == nil {
		return 0
	}
	_ = c.version()
	return c.history
}

// deletion is an object that the cache must lose.
type deletion struct {
	resource schema.GroupResource
	key      string // namespace/name in the store; "" while it was not found there
}

// mark says when a write was found to be ambiguous: only what was started after that
// can tell more about it.
type mark struct {
	resource schema.GroupResource
	clock    uint64
	at       time.Time
}

// New returns a Store. It starts nothing and needs no closing.
func New(cfg Config) *Store {
	s := &Store{
		recheckEvery:  cmp.Or(max(cfg.RecheckInterval, 0), defaultRecheck),
		maxWait:       cmp.Or(cfg.MaxWait, defaultMaxWait),
		ambiguousWait: cmp.Or(cfg.AmbiguousWait, defaultAmbiguousWait),
		metrics:       cfg.Metrics,
		stores:        make(map[schema.GroupResource]*cached, len(cfg.Stores)),
		owners:        map[types.NamespacedName]*record{},
		waiters:       map[types.NamespacedName][]*waiter{},
		wakes:         wakes{versions: map[schema.GroupResource]*versions{}},
		sweepAt:       sweepMin,
	}
	for resource, store := range cfg.Stores {
		if store != nil {
			s.stores[resource] = &cached{storeVersion: store}
		}
	}
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
	s.stores[resource] = &cached{storeVersion: informer.GetStore()}
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
// costs a lock, and a look at the owners that it can concern: those that wait for a version
// which their store has reached, or for something else than a version.
func (s *Store) Handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { s.wakeReady() },
		UpdateFunc: func(any, any) { s.wakeReady() },
		DeleteFunc: func(any) { s.wakeReady() },
	}
}

// WroteAt records that the resource was written, or read from the server, at rv for
// the owner: the owner is ready when the resource's store has reached the highest
// recorded version. So it is also the way to wait for what a live read has shown: the
// versions of the objects read. An rv that is not a version (empty,
// "0", not a number) is ignored, because nothing could be compared with it. Another
// ownerUID than the recorded one means that the owner was replaced: what was recorded
// for the former is dropped. An empty ownerUID stands for whichever is recorded.
func (s *Store) WroteAt(owner types.NamespacedName, ownerUID types.UID, resource schema.GroupResource, rv string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock++
	s.wroteLocked(owner, ownerUID, resource, rv, s.clock)
}

// wroteLocked is WroteAt for an answer to a request that was started at the given
// clock: it settles the ambiguous writes known by then. It is false if rv is no version.
func (s *Store) wroteLocked(owner types.NamespacedName, uid types.UID, resource schema.GroupResource, rv string, started uint64) bool {
	if _, err := resourceversion.CompareResourceVersion(rv, rv); err != nil {
		return false
	}
	rec := s.recordLocked(owner, uid)
	rec.ambiguous = slices.DeleteFunc(rec.ambiguous, func(m mark) bool { return m.resource == resource && m.clock < started })
	w := written{resource: resource, rv: rv, history: s.historyLocked(resource)}
	i := slices.IndexFunc(rec.wrote, func(w written) bool { return w.resource == resource })
	if i < 0 {
		rec.wrote = append(rec.wrote, w)
		i = len(rec.wrote) - 1
	} else if old := rec.wrote[i]; old.history == w.history && reached(old.rv, rv) {
		return true
	}
	rec.wrote[i] = w
	rec.last = time.Now()
	return true
}

// Deleted records that the object with the UID was deleted for the owner: the owner
// is ready when the resource's store holds no object with that UID. A transport from
// Wrap calls it by itself. A UID that the store does not hold counts as gone once the
// store shows the other recorded writes of the owner; an object that the cache has
// never shown, because somebody else made it just now, may appear after that: record
// the version it was read at with WroteAt too. An empty uid is ignored. ownerUID is as
// for WroteAt.
//
// The store must be able to say what it holds, by GetByKey (keys are namespace/name)
// and List, as every informer's store does; one that only has a version leaves the
// owner not ready, and EnsureReady says why. Deleted itself looks through the whole
// store once for the object's key; after that asking costs one GetByKey.
func (s *Store) Deleted(owner types.NamespacedName, ownerUID types.UID, resource schema.GroupResource, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deletedLocked(owner, ownerUID, resource, uid, "")
}

// deletedLocked is Deleted for an object of which the key may be known.
func (s *Store) deletedLocked(owner types.NamespacedName, ownerUID types.UID, resource schema.GroupResource, uid types.UID, key string) {
	if uid == "" {
		return
	}
	rec := s.recordLocked(owner, ownerUID)
	if rec.deleted == nil {
		rec.deleted = map[types.UID]deletion{}
	}
	if _, known := rec.deleted[uid]; known {
		return
	}
	if store, ok := s.objectsLocked(resource); ok && key == "" {
		key = find(store, uid)
	}
	rec.deleted[uid] = deletion{resource: resource, key: key}
	rec.last = time.Now()
}

// ambiguousLocked records a write of which the outcome is not known.
func (s *Store) ambiguousLocked(owner types.NamespacedName, resource schema.GroupResource) {
	s.clock++
	rec := s.recordLocked(owner, "")
	m := mark{resource: resource, clock: s.clock, at: time.Now()}
	if i := slices.IndexFunc(rec.ambiguous, func(m mark) bool { return m.resource == resource }); i >= 0 {
		rec.ambiguous[i] = m
	} else {
		rec.ambiguous = append(rec.ambiguous, m)
	}
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
	if rec != nil && len(s.waiters[owner]) > 0 {
		s.wakes.any = append(s.wakes.any, owner) // it waits for something else from now on
	}
	rec = &record{uid: uid}
	rec.wrote = rec.first[:0]
	s.owners[owner] = rec
	return rec
}

func (s *Store) sweepLocked() {
	for owner := range s.owners {
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
	now := time.Now()
	taken := s.takeLocked(s.takeReachedLocked(now), owner, now)
	s.stopIdleTimerLocked()
	s.mu.Unlock()
	s.call(taken)
}

// EnsureReady returns nil if the cache shows every recorded write and deletion of the
// owner, and what refused its writes, and forgets them; else a *StaleError, or an error
// that names a resource without a store that can answer. It does not block. As with
// client-go's, a WroteAt that runs concurrently may or may not be taken into account.
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
	case noObjects:
		return fmt.Errorf("consistency: an object of %s was deleted for %s, but its store has no GetByKey and List to ask whether it is gone: give Config.Stores the informer's own store", lag.GroupResource, owner)
	}
	return nil
}

type verdict int

const (
	ready verdict = iota
	behind
	noStore
	noObjects // the store cannot say which objects it holds
)

// lagLocked says what an owner waits for, and forgets its writes if for nothing. It
// runs for every waiter at every event, so it makes no error.
func (s *Store) lagLocked(owner types.NamespacedName) (StaleError, verdict) {
	rec := s.owners[owner]
	if rec == nil {
		return StaleError{}, ready
	}
	for i := 0; i < len(rec.wrote); i++ {
		w := rec.wrote[i]
		store := s.stores[w.resource]
		if store == nil {
			return StaleError{GroupResource: w.resource}, noStore
		}
		read := store.version()
		if w.history != store.history {
			rec.wrote = slices.Delete(rec.wrote, i, i+1) // no cache will tell what became of it
			rec.live = time.Now()
			i--
		} else if !reached(read, w.rv) { // what does not compare is not known to be new enough
			return StaleError{GroupResource: w.resource, ReadRV: read, WroteRV: w.rv}, behind
		}
	}
	// Only now: an object that the owner made must have come before it can be gone.
	for uid, d := range rec.deleted {
		read, verdict := s.holdsLocked(rec, uid)
		if verdict != ready {
			return StaleError{GroupResource: d.resource, ReadRV: read, DeletedUID: uid}, verdict
		}
		delete(rec.deleted, uid) // a UID does not come back
	}
	if lag, verdict := s.refusalsLocked(rec); verdict != ready {
		return lag, verdict
	}
	// Versions all at once, or none: a record is only let go at a moment at which
	// every store was there.
	rec.wrote = rec.wrote[:0]
	if len(rec.ambiguous) > 0 || !rec.live.IsZero() {
		now := time.Now()
		rec.ambiguous = slices.DeleteFunc(rec.ambiguous, func(m mark) bool { return now.Sub(m.at) > ambiguousFor })
		if now.Sub(rec.live) > ambiguousFor {
			rec.live = time.Time{}
		}
	}
	if len(rec.ambiguous) == 0 && rec.live.IsZero() {
		delete(s.owners, owner)
	}
	return StaleError{}, ready
}

// objects is the part of cache.Store that tells what it holds.
type objects interface {
	GetByKey(key string) (item any, exists bool, err error)
	List() []any
}

// holdsLocked is ready if the object is not in its store, and says which version that
// has reached.
func (s *Store) holdsLocked(rec *record, uid types.UID) (read string, _ verdict) {
	d := rec.deleted[uid]
	store := s.stores[d.resource]
	if store == nil {
		return "", noStore
	}
	held, ok := store.storeVersion.(objects)
	if !ok {
		return "", noObjects
	}
	read = store.version()
	if read == "" {
		return read, behind // an empty store says nothing before it was filled
	}
	if d.key == "" {
		// It may have come since Deleted was called, but not after the owner's other
		// writes, which are there.
		if d.key = find(held, uid); d.key == "" {
			return read, ready
		}
		rec.deleted[uid] = d
	}
	item, exists, err := held.GetByKey(d.key)
	if err != nil {
		return read, behind
	}
	if !exists {
		return read, ready
	}
	object, err := meta.Accessor(item)
	if err != nil || object.GetUID() == uid {
		return read, behind // what has no readable UID is not known to be another one
	}
	return read, ready
}

// find returns the key of the object with the UID, "" if there is none.
func find(store objects, uid types.UID) string {
	for _, item := range store.List() {
		if object, err := meta.Accessor(item); err == nil && object.GetUID() == uid {
			return cache.MetaObjectToName(object).String()
		}
	}
	return ""
}

// Ambiguous returns the resources with a write of the owner whose outcome is not
// known, because its answer was lost, was an error of the server (5xx), could not be
// read, or was that of a deletion of a collection. A cache cannot tell more; read the
// objects from the server and pass the version of that read to WroteAt. The entry is
// removed by that, by any later write of the resource, by Clear, and after ten minutes
// by itself.
func (s *Store) Ambiguous(owner types.NamespacedName) []schema.GroupResource {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := s.owners[owner]
	if rec == nil {
		return nil
	}
	var list []schema.GroupResource
	for _, m := range rec.ambiguous {
		list = append(list, m.resource)
	}
	slices.SortFunc(list, func(a, b schema.GroupResource) int { return cmp.Compare(a.String(), b.String()) })
	return list
}

// StaleError says that the cache of a resource is behind a recorded write or deletion,
// or behind the change that a write was refused for. One of WroteRV, DeletedUID and
// RefusedRV is set.
type StaleError struct {
	GroupResource schema.GroupResource
	ReadRV        string    // what the store has reached; "" means it does not know. With RefusedRV: of its copy of the object
	WroteRV       string    // what it must reach
	DeletedUID    types.UID // the object it must lose
	RefusedRV     string    // what its copy of RefusedObject must be newer than
	RefusedObject string    // namespace/name, set with RefusedRV
}

// Error implements error.
func (e *StaleError) Error() string {
	if e.DeletedUID != "" {
		return fmt.Sprintf("consistency: the cache of %s is at version %q and still holds the deleted object with UID %s", e.GroupResource, e.ReadRV, e.DeletedUID)
	}
	if e.RefusedRV != "" {
		return fmt.Sprintf("consistency: the cache of %s has %s at version %q, and a write at version %q was refused", e.GroupResource, e.RefusedObject, e.ReadRV, e.RefusedRV)
	}
	return fmt.Sprintf("consistency: the cache of %s is at version %q, behind the written %q", e.GroupResource, e.ReadRV, e.WroteRV)
}

// Stale returns true. Loops find it with errors.As on an interface and retry when the
// cache has caught up instead of backing off.
func (e *StaleError) Stale() bool { return true }
