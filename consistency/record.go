package consistency

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// storeVersion is the method of cache.Store that returns the version up to which the
// store is complete, "" if that is unknown.
type storeVersion = interface{ LastStoreSyncResourceVersion() string }

// namespaceVersion is the method of a store whose namespaces have caches of their own, such
// as the store of a scope.Informer. ok is false for a namespace without one.
type namespaceVersion = interface {
	LastStoreSyncResourceVersionOf(namespace string) (version string, ok bool)
}

// selecting is the method of a store whose version is unknown while it selects nothing, such as
// the store of a scope.Informer.
type selecting = interface{ SelectsNothing() bool }

// showing is the method of a store of several caches, such as the store of a scope.Informer. It returns
// the identity of the shown caches, in constant time. While that is the same, a known version stays known.
type showing = interface{ Showing() any }

// part has versions of its own: it is a resource, or a namespace of the resource if the store
// has a version for each. namespace is "" otherwise.
type part struct {
	resource  schema.GroupResource
	namespace string
}

// cached is the store of a resource, or of a part of it.
type cached struct {
	storeVersion
	last    string             // the last comparable version
	history int                // the number of times that the version went back
	shown   string             // see shows
	showing any                // at that time, if the store has the method
	moves   moves              // while the store does not show a version
	apart   bool               // the store was logged to be in another etcd
	remove  func() error       // removes the handler; nil without one of AddInformer
	parts   map[string]*cached // by namespace, if the store has namespaceVersion
}

// versionOf is the storeVersion of a namespace.
type versionOf struct {
	store     namespaceVersion
	namespace string
}

func (v versionOf) LastStoreSyncResourceVersion() string {
	version, _ := v.store.LastStoreSyncResourceVersionOf(v.namespace)
	return version
}

// partLocked returns the part of the resource that shows the objects of the namespace: the
// whole resource if the store has one version or the namespace is unknown.
func (s *Store) partLocked(resource schema.GroupResource, namespace string) part {
	if c := s.stores[resource]; c != nil && namespace != "" {
		if of, ok := c.storeVersion.(namespaceVersion); ok {
			if _, ok := of.LastStoreSyncResourceVersionOf(namespace); ok {
				return part{resource, namespace}
			}
		}
	}
	return part{resource: resource}
}

// cachedLocked returns the store of a part, or nil. A namespace that has left the store
// is as old as the whole.
func (s *Store) cachedLocked(p part) *cached {
	c := s.stores[p.resource]
	if c == nil || p.namespace == "" {
		return c
	}
	if s.partLocked(p.resource, p.namespace) != p {
		delete(c.parts, p.namespace)
		return c
	}
	if c.parts[p.namespace] == nil {
		if c.parts == nil {
			c.parts = map[string]*cached{}
		}
		c.parts[p.namespace] = &cached{storeVersion: versionOf{c.storeVersion.(namespaceVersion), p.namespace}}
	}
	return c.parts[p.namespace]
}

// version returns the version that the store has reached. An informer's store goes back
// only if the informer lists again and the API server has an older history, because
// etcd was restored from a backup. The new history can use a version again or never
// reach it, so versions from before the restore are worthless.
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

// shows reports whether the store has reached the version. A restore of etcd does not change that.
// A store whose version becomes unknown has not: it can hold a cache that is older, as a
// scope.Informer does that selects another namespace. A store that selects nothing holds none, until
// it selects one. The version of several caches is not read again while the same ones are shown, because
// each call of a leader asks. apart reports that the store has not reached the version, and is of another
// etcd than the version, which is from before begun.
func (c *cached) shows(version string, begun, now time.Time) (shows, apart bool) {
	var view any // before the version is read: if the caches change in between, the next call reads it again
	if s, ok := c.storeVersion.(showing); ok {
		if view = s.Showing(); view == c.showing && c.shown == version {
			return true, false
		}
	}
	switch read := c.version(); {
	case reached(read, version):
		c.shown = version
	case !reached(read, read):
		c.shown = ""
		if s, ok := c.storeVersion.(selecting); ok && s.SelectsNothing() {
			return true, false
		}
	case c.shown != version:
		c.moves.note(read, now)
		return false, c.moves.apart(begun)
	}
	c.showing = view
	return c.shown == version, false
}

// reached reports whether read is a version and at least wrote.
func reached(read, wrote string) bool {
	order, err := resourceversion.CompareResourceVersion(read, wrote)
	return err == nil && order >= 0
}

// objects is the method of cache.Store that returns an object.
type objects interface {
	GetByKey(key string) (item any, exists bool, err error)
}

// objectsLocked returns the store of the resource if it has GetByKey.
func (s *Store) objectsLocked(resource schema.GroupResource) (objects, bool) {
	c := s.stores[resource]
	if c == nil {
		return nil, false
	}
	held, ok := c.storeVersion.(objects)
	return held, ok
}

// leftLocked reports whether the resource has left the Store. Nothing is recorded of it, because
// no store would ever show it, and a call can still be running that read the removed one.
func (s *Store) leftLocked(resource schema.GroupResource) bool {
	return s.removed[resource] && s.stores[resource] == nil
}

// historyLocked returns the history of the part's store.
func (s *Store) historyLocked(p part) int {
	c := s.cachedLocked(p)
	if c == nil {
		return 0
	}
	_ = c.version()
	return c.history
}

// historyOfLocked returns the history of the store of the part that shows the object.
func (s *Store) historyOfLocked(o objectRef) int {
	c := s.cachedOfLocked(o)
	if c == nil {
		return 0
	}
	_ = c.version()
	return c.history
}

// record has the writes of a key that the cache does not show yet.
type record struct {
	uid       types.UID // "" while only a transport has recorded
	last      time.Time // of the last addition to wrote, deleted or refused
	wrote     []written // one for each part
	deleted   map[types.UID]deletion
	refused   map[objectRef]refusal
	ambiguous []mark     // one for each part
	live      time.Time  // if not zero, the next run must read live
	first     [1]written // the memory of wrote: most keys write one resource
}

// written is the highest version that was written of a part.
type written struct {
	part
	rv      string
	history int // of the store at that time
}

// objectRef names an object.
type objectRef struct {
	resource schema.GroupResource
	name     string // namespace/name, the key in an informer's store
}

// cachedOfLocked returns the store of the part that shows the object.
func (s *Store) cachedOfLocked(o objectRef) *cached {
	namespace, _, namespaced := strings.Cut(o.name, "/")
	if !namespaced {
		namespace = ""
	}
	return s.cachedLocked(s.partLocked(o.resource, namespace))
}

// deletion is an object that was deleted.
type deletion struct {
	objectRef
	history int // of the store at that time
}

// refusal has the preconditions of a write that ended in a conflict.
type refusal struct {
	uid     types.UID // "" if absent
	rv      string
	shown   bool      // the store held the object after the conflict
	history int       // of the store at that time
	over    time.Time // if not zero, the begin of a call that MaxWait let run
}

// mark is an ambiguous write. clock is the number of the last request that had started
// when the write was found ambiguous: only a later one can settle it.
type mark struct {
	part
	clock uint64
	at    time.Time
}

// recordLocked returns the key's record for the UID. It makes one if needed.
func (s *Store) recordLocked(key types.NamespacedName, uid types.UID) *record {
	rec := s.records[key]
	if rec != nil && rec.uid == "" {
		rec.uid = uid
	}
	if rec != nil && (uid == "" || rec.uid == uid) {
		return rec
	}
	if rec == nil && len(s.records) >= s.sweepAt {
		// A key whose object was deleted never runs again. A sweep at every doubling
		// costs O(1) for each record.
		for key := range s.records {
			s.lagLocked(key) // drops the record if the cache shows it
		}
		s.sweepAt = max(sweepMin, 2*len(s.records))
	}
	if rec != nil && len(s.waiters[key]) > 0 {
		s.wakes.any = append(s.wakes.any, key) // its waiters wait for the new record
	}
	rec = &record{uid: uid}
	rec.wrote = rec.first[:0]
	s.records[key] = rec
	return rec
}

// wroteLocked is WroteAt for the response to a request that was started at the given
// clock. It settles the ambiguous writes from before that, if the key then waits for the
// cache that shows them: another namespace's cache can show rv without them.
func (s *Store) wroteLocked(key types.NamespacedName, uid types.UID, p part, rv string, started uint64) {
	if !reached(rv, rv) {
		return
	}
	rec := s.recordLocked(key, uid)
	rec.ambiguous = slices.DeleteFunc(rec.ambiguous, func(m mark) bool {
		return m.clock < started && (m.part == p || m.resource == p.resource && p.namespace == "")
	})
	if s.leftLocked(p.resource) {
		return
	}
	w := written{part: p, rv: rv, history: s.historyLocked(p)}
	i := slices.IndexFunc(rec.wrote, func(w written) bool { return w.part == p })
	switch {
	case i < 0:
		rec.wrote = append(rec.wrote, w)
	case rec.wrote[i].history == w.history && reached(rec.wrote[i].rv, rv):
		return
	default:
		rec.wrote[i] = w
	}
	rec.last = time.Now()
}

func (s *Store) deletedLocked(key types.NamespacedName, uid types.UID, object objectRef, objectUID types.UID) {
	if objectUID == "" || s.leftLocked(object.resource) {
		return
	}
	rec := s.recordLocked(key, uid)
	if rec.deleted == nil {
		rec.deleted = map[types.UID]deletion{}
	}
	d := deletion{objectRef: object, history: s.historyOfLocked(object)}
	if old, known := rec.deleted[objectUID]; !known || old.history != d.history {
		rec.deleted[objectUID] = d
		rec.last = time.Now()
	}
}

func (s *Store) refusedLocked(key types.NamespacedName, uid types.UID, object objectRef, r refusal) {
	if s.leftLocked(object.resource) {
		return
	}
	rec := s.recordLocked(key, uid)
	if r.rv == kube.NoVersion || !reached(r.rv, r.rv) {
		rec.live = time.Now()
		return
	}
	if rec.refused == nil {
		rec.refused = map[objectRef]refusal{}
	}
	r.history = s.historyOfLocked(object)
	// A cache that is newer than the higher version is also newer than the lower one, but perhaps
	// no cache reaches one whose wait is over.
	if old, known := rec.refused[object]; !known || old.history != r.history || !old.over.IsZero() || reached(r.rv, old.rv) {
		rec.refused[object] = r
	}
	rec.last = time.Now()
}

// endWaits ends the waits for the conflicts of the record, because MaxWait is over. If no cache
// reaches their version, each write of the key would begin the next wait.
func (rec *record) endWaits(now time.Time) {
	for object, r := range rec.refused {
		if r.over.IsZero() {
			r.over = now
			rec.refused[object] = r
		}
	}
}

func (s *Store) ambiguousLocked(key types.NamespacedName, p part) {
	rec := s.recordLocked(key, "")
	rec.ambiguous = slices.DeleteFunc(rec.ambiguous, func(m mark) bool { return m.part == p })
	rec.ambiguous = append(rec.ambiguous, mark{part: p, clock: s.clock, at: time.Now()})
}

// ambiguousResources returns the resources with an ambiguous write, in order.
func (rec *record) ambiguousResources() []schema.GroupResource {
	var list []schema.GroupResource
	for _, m := range rec.ambiguous {
		list = append(list, m.resource)
	}
	slices.SortFunc(list, func(a, b schema.GroupResource) int { return cmp.Compare(a.String(), b.String()) })
	return slices.Compact(list)
}

// readyLocked is EnsureReady.
func (s *Store) readyLocked(key types.NamespacedName) error {
	switch lag, verdict := s.lagLocked(key); verdict {
	case behind, overdue:
		return &lag
	case noStore:
		return fmt.Errorf("consistency: %s was written for %s, but has no store: use AddInformer or Config.Stores", lag.GroupResource, key)
	case noObjects:
		return fmt.Errorf("consistency: an object of %s was deleted for %s, but its store has no GetByKey: give Config.Stores the informer's own store", lag.GroupResource, key)
	}
	return nil
}

type verdict int

const (
	ready verdict = iota
	behind
	overdue // as behind, but only conflicts lack, and Ready has waited for them
	noStore
	noObjects // the store has no GetByKey
)

// lagLocked returns the first record of the key that the cache does not show. If the cache
// shows all, it drops the records. It runs at events for waiting keys, so it makes no
// error.
func (s *Store) lagLocked(key types.NamespacedName) (lag staleError, _ verdict) {
	rec := s.records[key]
	if rec == nil {
		return lag, ready
	}
	now := time.Now()
	for i := 0; i < len(rec.wrote); i++ {
		w := rec.wrote[i]
		store := s.cachedLocked(w.part)
		if store == nil {
			return staleError{GroupResource: w.resource}, noStore
		}
		read := store.version()
		if w.history != store.history {
			rec.wrote = slices.Delete(rec.wrote, i, i+1)
			rec.live = now
			i--
		} else if !reached(read, w.rv) {
			return staleError{GroupResource: w.resource, Namespace: w.namespace, ReadRV: read, WroteRV: w.rv}, behind
		}
	}
	// After the versions: the store must have shown an object before its absence counts.
	for uid, d := range rec.deleted {
		if d.history != s.historyOfLocked(d.objectRef) {
			rec.live = now
		} else if read, verdict := s.absentLocked(d.objectRef, uid); verdict != ready {
			return staleError{GroupResource: d.resource, ReadRV: read, DeletedUID: uid}, verdict
		}
		delete(rec.deleted, uid)
	}
	for object, r := range rec.refused {
		held, ok := s.objectsLocked(object.resource)
		if !ok || r.history != s.historyOfLocked(object) || !r.over.IsZero() && now.Sub(r.over) > ambiguousFor {
			rec.live = now
		} else if read, seen := r.seen(held, object.name, s.cachedOfLocked(object).version()); !seen {
			rec.refused[object] = r // with shown
			lag = staleError{GroupResource: object.resource, ReadRV: read, RefusedRV: r.rv, RefusedObject: object.name}
			if r.over.IsZero() {
				return lag, behind
			}
			continue
		} else if read == "" && !r.shown || r.restored(read) {
			rec.live = now // the object exists, but not in this store, or not at this version
		}
		delete(rec.refused, object)
	}
	// Only now: the versions of all stores count at one moment.
	rec.wrote = rec.wrote[:0]
	rec.ambiguous = slices.DeleteFunc(rec.ambiguous, func(m mark) bool { return now.Sub(m.at) > ambiguousFor })
	if now.Sub(rec.live) > ambiguousFor {
		rec.live = time.Time{}
	}
	if len(rec.refused) > 0 {
		return lag, overdue
	}
	if len(rec.ambiguous) == 0 && rec.live.IsZero() {
		delete(s.records, key)
	}
	return lag, ready
}

// absentLocked is ready if the store does not hold the object with the UID. It also
// returns the store's version.
func (s *Store) absentLocked(object objectRef, uid types.UID) (read string, _ verdict) {
	store := s.stores[object.resource]
	if store == nil {
		return "", noStore
	}
	held, ok := store.storeVersion.(objects)
	if !ok {
		return "", noObjects
	}
	read = s.cachedOfLocked(object).version()
	if read == "" {
		return read, behind // the store is not filled yet
	}
	item, exists, err := headers.Item(held, object.name)
	if err == nil && !exists {
		return read, ready
	}
	// An object that does not fit its Go type comes with an error.
	if got, metaErr := meta.Accessor(item); exists && metaErr == nil && got.GetUID() != uid {
		return read, ready
	}
	return read, behind
}

// restored reports whether a copy of the object at the version, which a store shows at the
// version of the conflict or later, is older than the conflict: etcd was restored.
func (r *refusal) restored(read string) bool {
	order, err := resourceversion.CompareResourceVersion(read, r.rv)
	return err == nil && order < 0
}

// seen reports whether the store, which has reached version, shows a newer object than
// the conflict, or an older one after a restore. It returns the version of its copy, "" if
// absent.
func (r *refusal) seen(store objects, name, version string) (read string, _ bool) {
	item, exists, err := headers.Item(store, name)
	if err != nil && !exists { // an object that does not fit its Go type exists and comes with an error
		return "", false
	}
	if !exists {
		// A store before that version can still come to hold the object.
		return "", reached(version, r.rv)
	}
	r.shown = true
	object, err := meta.Accessor(item)
	if err != nil {
		return "", false
	}
	read = object.GetResourceVersion()
	if r.uid != "" && object.GetUID() != "" && object.GetUID() != r.uid {
		return read, reached(version, r.rv) // before that, the store can hold the object's predecessor
	}
	order, err := resourceversion.CompareResourceVersion(read, r.rv)
	return read, err == nil && (order > 0 || order < 0 && reached(version, r.rv))
}
