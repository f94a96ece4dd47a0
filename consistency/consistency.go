package consistency

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/internal/kube"
)

const (
	// defaultRecheck is short because a gate without handlers depends on it alone,
	// and cheap because it runs only while a key waits.
	defaultRecheck = 200 * time.Millisecond

	// sweepMin is the number of records below which a sweep is not worth its cost.
	sweepMin = 64

	// defaultMaxWait is twice the time between the bookmarks of a watch, so that a
	// filtered informer does not end a wait.
	defaultMaxWait = 2 * time.Minute

	// defaultAmbiguousWait is long compared with a write that the server still carries
	// out after the connection broke, and short compared with a backoff.
	defaultAmbiguousWait = time.Second

	// ambiguousFor bounds the memory of ambiguous writes. It is ten times the API
	// server's default request timeout, after which it has given up.
	ambiguousFor = 10 * time.Minute
)

// Config configures a Store.
type Config struct {
	// Stores has the store through which the controller reads each resource: an
	// informer's GetStore or GetIndexer. Add Handler to the informer too, or use
	// AddInformer, which does both. nil means no store yet. If a store has the method
	// LastStoreSyncResourceVersionOf(namespace string) (version string, ok bool), ok means
	// that the namespace has a cache of its own, at that version. If a store has the method
	// SelectsNothing() bool and it returns true, the store is not too old without a version. If a
	// store has the method Showing() any, it returns a comparable value, which changes before a known
	// version becomes unknown.
	Stores map[schema.GroupResource]interface{ LastStoreSyncResourceVersion() string }

	// RecheckInterval is the time between checks of the waiting keys without an event,
	// because bookmarks reach no handler. It runs only while a key waits.
	// 0 and negative values mean 200ms.
	RecheckInterval time.Duration

	// MaxWait bounds the time that Ready holds a key back after the key's last recorded
	// write. Then the key runs although the cache is behind, and LiveRead is true in that
	// run. The bound is for a filtered informer, whose next bookmark can be late, and for
	// a broken watch. It does not apply to EnsureReady and Wait. Use a negative value if
	// Reconcile ignores LiveRead.
	// 0 means 2m; a negative value means no bound.
	MaxWait time.Duration

	// AmbiguousWait is the time that Ready holds a key back after a write whose outcome
	// is unknown, so that the API server can finish it. Then the key runs, and LiveRead
	// is true in its runs until the write is settled; see Ambiguous.
	// 0 means 1s; a negative value means none.
	AmbiguousWait time.Duration

	// Metrics observes the waits of Ready. nil disables metrics.
	Metrics Metrics
}

// Metrics observes a Store. Implementations must be safe for concurrent use and must not
// block, because an informer's handler can call them.
type Metrics interface {
	// ConsistencyWaited is called at the end of a wait that began when Ready returned
	// false, before its wake. timedOut reports whether MaxWait ended the wait, and not the
	// cache, AmbiguousWait or Clear.
	ConsistencyWaited(d time.Duration, timedOut bool)
}

// Store records the writes that a controller makes for each key until its cache shows
// them. A key names a reconciled object, and its UID is that object's. All methods
// are safe for concurrent use. Use New.
type Store struct {
	recheckEvery, maxWait, ambiguousWait time.Duration // see Config

	metrics Metrics // can be nil

	informers sync.Mutex // is held while AddInformer and RemoveInformer change the handlers; before mu

	// mu guards the fields below. It is held during calls of the stores, which take
	// their own lock, and never during a wake function or metrics.
	mu      sync.Mutex
	stores  map[schema.GroupResource]*cached
	removed map[schema.GroupResource]bool // RemoveInformer was called; see leftLocked
	records map[types.NamespacedName]*record
	waiters map[types.NamespacedName][]*waiter
	wakes   wakes
	timer   *time.Timer // not nil exactly while waiters is not empty
	due     time.Time   // the time at which timer fires
	clock   uint64      // counts the starts of requests
	sweepAt int         // the number of records that starts a sweep
}

// New returns a Store. It starts no goroutine and needs no closing.
func New(cfg Config) *Store {
	s := &Store{
		recheckEvery:  cmp.Or(max(cfg.RecheckInterval, 0), defaultRecheck),
		maxWait:       cmp.Or(cfg.MaxWait, defaultMaxWait),
		ambiguousWait: cmp.Or(cfg.AmbiguousWait, defaultAmbiguousWait),
		stores:        make(map[schema.GroupResource]*cached, len(cfg.Stores)),
		removed:       map[schema.GroupResource]bool{},
		records:       map[types.NamespacedName]*record{},
		waiters:       map[types.NamespacedName][]*waiter{},
		wakes:         wakes{versions: map[part]*versions{}},
		sweepAt:       sweepMin,
	}
	if !kube.IsNil(cfg.Metrics) {
		s.metrics = cfg.Metrics
	}
	for resource, store := range cfg.Stores {
		if !kube.IsNil(store) {
			s.stores[resource] = &cached{storeVersion: store}
		}
	}
	return s
}

// AddInformer adds the informer's store as the one through which the controller reads
// the resource, and adds Handler to the informer. Call it before or after the informer
// starts. It fails if the informer has stopped or the resource already has a store: several
// informers of a resource need one store, with the lowest of their versions. It also fails if
// client-go's feature AtomicFIFO is off, because a cache has no version then.
func (s *Store) AddInformer(resource schema.GroupResource, informer cache.SharedInformer) error {
	probe := cache.NewStore(cache.MetaNamespaceKeyFunc) // the store of the informer has no version before its list
	if probe.Bookmark("1"); probe.LastStoreSyncResourceVersion() == "" {
		return fmt.Errorf("consistency: add informer: the cache of %s has no version, because client-go's feature AtomicFIFO is off: remove KUBE_FEATURE_AtomicFIFO=false from the environment", resource)
	}
	s.informers.Lock()
	defer s.informers.Unlock()
	s.mu.Lock()
	if s.stores[resource] != nil {
		s.mu.Unlock()
		return fmt.Errorf("consistency: add informer: %s already has a store: use one store for all informers of a resource", resource)
	}
	added := &cached{storeVersion: informer.GetStore()}
	s.stores[resource] = added
	s.mu.Unlock()
	handle, err := informer.AddEventHandler(s.Handler())
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		delete(s.stores, resource)
		return fmt.Errorf("consistency: add handler to the informer of %s: %w", resource, err)
	}
	added.remove = func() error { return informer.RemoveEventHandler(handle) }
	return nil
}

// RemoveInformer makes the Store forget the store of a resource: one of AddInformer, whose
// handler it also removes, or one of Config.Stores. Call it when the controller no longer
// reads the resource through the informer, before the informer is stopped. The resource can
// then be added again.
//
// The recorded versions, deletions and conflicts of the resource are dropped, and keys that
// waited for them are woken. Until the resource is added again, no others are recorded, neither
// of a write that is in flight nor by WroteAt, Saw, Deleted and Refused. Writes with an unknown
// outcome stay in Ambiguous. RemoveInformer returns an error if the resource has no store, or
// if the handler cannot be removed.
func (s *Store) RemoveInformer(resource schema.GroupResource) error {
	var taken []*waiter
	defer func() { s.call(taken) }() // without a lock
	s.informers.Lock()
	defer s.informers.Unlock()
	s.mu.Lock()
	store := s.stores[resource]
	if store == nil {
		s.mu.Unlock()
		return fmt.Errorf("consistency: remove informer: %s has no store: use AddInformer or Config.Stores first", resource)
	}
	delete(s.stores, resource)
	s.removed[resource] = true
	for _, rec := range s.records {
		rec.wrote = slices.DeleteFunc(rec.wrote, func(w written) bool { return w.resource == resource })
		maps.DeleteFunc(rec.deleted, func(_ types.UID, d deletion) bool { return d.resource == resource })
		maps.DeleteFunc(rec.refused, func(o objectRef, _ refusal) bool { return o.resource == resource })
	}
	taken = s.takeAllLocked(time.Now())
	s.mu.Unlock()
	if store.remove == nil {
		return nil
	}
	if err := store.remove(); err != nil {
		return fmt.Errorf("consistency: remove the handler from the informer of %s: %w", resource, err)
	}
	return nil
}

// Handler returns a handler that wakes waiting keys. Add it to each informer whose store
// is in Config.Stores. Without it only RecheckInterval wakes them. An event costs a lock
// and a check of the keys that it can affect: keys whose awaited version
// the store has reached, and keys that wait for a deletion or after a conflict.
func (s *Store) Handler() cache.ResourceEventHandler {
	return headers.Wake(s.wakeReady)
}

// WroteAt records that the resource was written, or read from the API server, at version
// rv for the key. The key is ready when the resource's store has reached the highest
// recorded version. After a live read use [Store.Saw], which waits for less.
//
// An rv that is not a resource version (empty, "0", not a number) is ignored. If uid
// differs from the recorded UID, the reconciled object was replaced, and the records of
// the former one are dropped. An empty uid matches any.
func (s *Store) WroteAt(key types.NamespacedName, uid types.UID, resource schema.GroupResource, rv string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock++
	s.wroteLocked(key, uid, part{resource: resource}, rv, s.clock)
}

// Saw records that object was read from the API server, or written, for the key: its next calls wait until the
// store has reached the version of object. It is WroteAt for a store whose namespaces have caches of
// their own, such as that of a scope.Informer: only the cache of the object's namespace must reach it.
func (s *Store) Saw(key types.NamespacedName, uid types.UID, resource schema.GroupResource, object metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock++
	s.wroteLocked(key, uid, s.partLocked(resource, object.GetNamespace()), object.GetResourceVersion(), s.clock)
}

// Deleted records that the object with objectUID was deleted for the key. The key is
// ready when the resource's store has reached the key's recorded versions and holds no
// object of that name and UID. A transport from Wrap calls it by itself.
//
// If the cache has never shown the object, because another client just created it, the
// object can appear later. To exclude that, pass the version at which it was read to
// WroteAt. An empty objectUID is ignored. See WroteAt for uid.
//
// The store must have GetByKey, with namespace/name as the key, as every informer's
// store has. Without it the key is not ready, and EnsureReady returns an error.
func (s *Store) Deleted(key types.NamespacedName, uid types.UID, resource schema.GroupResource, object types.NamespacedName, objectUID types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deletedLocked(key, uid, objectRef{resource, cache.NamespacedNameAsObjectName(object).String()}, objectUID)
}

// Refused records that the API server rejected a write of the object at version rv with
// a conflict. The key is ready when the resource's store holds the object at a newer
// version, or no longer holds it. Ready holds the key back once, for at most MaxWait. After
// that, LiveRead is true until the store shows it, for at most ten minutes.
//
// If rv is not a resource version, the write had no precondition: Ready does not hold the key
// back, and LiveRead is true in its next run. The same is true if rv is 9223372036854775807,
// with which an apply only creates. It is also true if the store has no GetByKey, or has
// reached rv and never held the object. A transport from Wrap calls Refused by itself. See
// WroteAt for uid.
func (s *Store) Refused(key types.NamespacedName, uid types.UID, resource schema.GroupResource, object types.NamespacedName, rv string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusedLocked(key, uid, objectRef{resource, cache.NamespacedNameAsObjectName(object).String()}, refusal{rv: rv})
}

// Clear drops the records of the key if their UID is uid or uid is empty, and wakes the
// key. Calling it is optional, because a record is dropped once the cache shows it, also if
// the key never runs again.
func (s *Store) Clear(key types.NamespacedName, uid types.UID) {
	s.mu.Lock()
	if rec := s.records[key]; rec != nil && (uid == "" || rec.uid == uid) {
		delete(s.records, key)
	}
	now := time.Now()
	taken := s.takeLocked(s.takeReachedLocked(now), key, now)
	s.stopIdleTimerLocked()
	s.mu.Unlock()
	s.call(taken)
}

// EnsureReady returns nil and drops the key's records if the cache shows all of them.
// Otherwise it returns an error with a method Stale() bool that returns true, or an error
// that names a resource whose store is missing or cannot be compared. It does not block. It
// can miss a concurrent WroteAt.
func (s *Store) EnsureReady(key types.NamespacedName) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readyLocked(key)
}

// Ambiguous returns the resources with a write for the key whose outcome is unknown: its
// response was lost, unreadable or a server error (5xx), or shows no version, as for an
// eviction, a binding or the deletion of a collection. No cache can settle it. Read the
// objects from the API server and pass their versions to WroteAt. A later write of the
// resource, Saw and Clear also settle it, and it is dropped after ten minutes. If namespaces
// have caches of their own, a write or Saw in one namespace settles nothing in another.
func (s *Store) Ambiguous(key types.NamespacedName) []schema.GroupResource {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rec := s.records[key]; rec != nil {
		return rec.ambiguousResources()
	}
	return nil
}

// staleError reports that the cache of a resource does not show a recorded write or
// deletion, or the change that caused a conflict. One of WroteRV, DeletedUID and
// RefusedRV is set.
type staleError struct {
	GroupResource schema.GroupResource
	Namespace     string    // with WroteRV; "" for the whole resource
	ReadRV        string    // the store's version, "" if unknown; with RefusedRV the cached object's
	WroteRV       string    // the version that the store must reach
	DeletedUID    types.UID // the object that the store must no longer hold
	RefusedRV     string    // the cached RefusedObject must be newer than this version
	RefusedObject string    // namespace/name, set with RefusedRV
}

// Error implements error.
func (e *staleError) Error() string {
	if e.DeletedUID != "" {
		return fmt.Sprintf("consistency: the cache of %s is at version %q and still holds the deleted object with UID %s", e.GroupResource, e.ReadRV, e.DeletedUID)
	}
	if e.RefusedRV != "" {
		return fmt.Sprintf("consistency: the cache of %s has %s at version %q, and a write at version %q was refused", e.GroupResource, e.RefusedObject, e.ReadRV, e.RefusedRV)
	}
	in := ""
	if e.Namespace != "" {
		in = " in namespace " + e.Namespace
	}
	return fmt.Sprintf("consistency: the cache of %s%s is at version %q, behind the written %q", e.GroupResource, in, e.ReadRV, e.WroteRV)
}

// Stale returns true. A reconcile loop recognizes the method through errors.As and
// retries when the cache has caught up, without a failure.
func (e *staleError) Stale() bool { return true }
