package scope

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/informer/scope/internal/versions"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// selection is the state of Informers that show the same Selection: the Informer of New, and the
// Informers of With.
type selection struct {
	selecting chan struct{} // is full while a Select runs
	stopping  chan struct{} // closed when an Informer stops
	view      atomic.Pointer[view]
	swaps     sync.WaitGroup // of the goroutines of swaps

	mu        sync.Mutex // guards the fields below and those of regions and parts, and orders the events
	informers []*Informer
	misuse    error
	follower  *follower
	selected  bool // a Select has succeeded, at least in part
	synced    bool
	stopped   bool
	shown     map[Part]*region
	pending   map[Part]*region // selected and not shown yet
	running   map[*swap]struct{}
	late      bool          // no Select waits for the pending regions
	reason    error         // why no selection was made
	changed   chan struct{} // closed by the next change of the fields above; nil if no call waits

	viewMu sync.RWMutex // held for writing by a change of view, and for reading by a read of a version

	readyMu sync.Mutex // guards ready
	ready   []*swap    // to be shown
}

// swap is the work of showing some pending regions in place of shown ones.
type swap struct {
	added, removed []*region
	cancel         context.CancelFunc
	canceled       bool
	holds          bool          // the events of removed
	since          time.Time     // when it began
	limit          time.Duration // of the hold
}

// maxHold is how long the events of a region are held for one that replaces it: longer than until
// the next bookmark. Each hold that reaches its limit doubles the next one, so that a part with a
// longer list is shown, too.
const maxHold = 2 * time.Minute

// changeLocked wakes the calls that wait for a change.
func (s *selection) changeLocked() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
	s.syncLocked(false)
}

// blocked returns the reason why the Informers are not synced.
func (s *selection) blocked() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.synced:
		return nil
	case !s.selected && s.misuse != nil:
		return s.misuse
	case !s.selected:
		return s.reason
	}
	return s.lateLocked(nil)
}

// syncLocked makes the Informers synced if a selection was made: it is empty, or some of it is
// shown, and no Select waits for the rest.
func (s *selection) syncLocked(ended bool) {
	if s.synced || !s.selected || len(s.shown) == 0 && len(s.pending) > 0 || !ended && s.waitsLocked() {
		return
	}
	s.synced = true
	for _, i := range s.informers {
		close(i.synced)
		i.sendLocked(event{kind: onSynced})
	}
}

// canRunLocked reports whether all Informers run.
func (s *selection) canRunLocked() bool {
	return !s.stopped && !slices.ContainsFunc(s.informers, func(i *Informer) bool { return i.run == nil })
}

// startLocked runs the informers of regions, and the swaps that show the pending ones, when all
// Informers run.
func (s *selection) startLocked() {
	if s.canRunLocked() && len(s.running) == 0 {
		s.swapLocked()
	}
	for _, r := range s.pending {
		for _, p := range r.parts {
			p.startLocked() // after the events of the regions that it replaces are held
		}
	}
}

// changeTo makes the parts the selected ones. opened are new regions of those that missing has
// returned. If the others have changed since then, it does nothing and returns false.
func (s *selection) changeTo(parts []Part, opened map[Part]*region) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return false, errStopped("select")
	}
	for _, key := range parts {
		if s.shown[key] == nil && opened[key] == nil && !s.keepsLocked(key) {
			return false, nil
		}
	}
	for _, r := range opened {
		if err := s.indexLocked(r); err != nil {
			return false, errNotOpened(r.key, err)
		}
	}
	s.cancelLocked()
	wanted := map[Part]bool{}
	for _, key := range parts {
		wanted[key] = true
	}
	for key, r := range s.pending {
		if !wanted[key] || opened[key] != nil || !s.keepsLocked(key) {
			r.closeLocked()
			delete(s.pending, key)
		}
	}
	for key, r := range opened {
		if s.shown[key] == nil {
			s.pending[key] = r
		}
	}
	s.selected, s.late = true, false
	var removed []*region
	pending := byPart(s.pending)
	for key, r := range s.shown {
		if !wanted[key] && !pending.overlap(key.Namespace) {
			removed = append(removed, r)
		}
	}
	s.startLocked()
	s.showLocked(nil, removed)
	return true, nil
}

// missing returns the parts that have no region which can be kept.
func (s *selection) missing(parts []Part) ([]Part, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.misuse != nil {
		return nil, s.misuse
	}
	return slices.DeleteFunc(slices.Clone(parts), func(key Part) bool {
		return s.shown[key] != nil || s.keepsLocked(key)
	}), nil
}

// keepsLocked reports whether the pending region of a Part can stay pending: it is not older than
// a region that it replaces.
func (s *selection) keepsLocked(key Part) bool {
	r := s.pending[key]
	if r == nil || r.attached {
		return false
	}
	return !s.view.Load().regions.overlap(key.Namespace)
}

// cancelLocked ends the swaps. What they have held is sent.
func (s *selection) cancelLocked() {
	for w := range s.running {
		w.canceled = true
		w.cancel()
		w.releaseLocked()
	}
	clear(s.running)
}

// swapLocked starts a swap for each pending region. If all namespaces and some replace each other,
// one swap does it.
func (s *selection) swapLocked() {
	if len(s.pending) == 0 {
		return
	}
	replaced := map[string][]*region{} // by namespace
	var removed []*region
	all := false
	pending := byPart(s.pending)
	for key, r := range s.shown {
		if pending.overlap(key.Namespace) {
			removed = append(removed, r)
			replaced[key.Namespace] = append(replaced[key.Namespace], r)
			all = all || key.Namespace == ""
		}
	}
	if all { // which the pending namespaces replace together
		w := &swap{removed: removed}
		for _, r := range s.pending {
			w.added = append(w.added, r)
		}
		s.beginLocked(w)
		return
	}
	for key, r := range s.pending {
		w := &swap{added: []*region{r}, removed: replaced[key.Namespace]}
		if key.Namespace == "" {
			w.removed = removed
		}
		s.beginLocked(w)
	}
}

func (s *selection) beginLocked(w *swap) {
	ctx, cancel := context.WithCancel(s.informers[0].run)
	w.cancel, w.limit = cancel, maxHold
	s.holdLocked(w)
	s.running[w] = struct{}{}
	s.swaps.Go(func() {
		defer cancel()
		s.stage(ctx, w)
	})
}

// stage waits until the added regions can be shown, and shows them. They can if they are synced and
// no older than the removed ones. Meanwhile the events of the removed regions are held: the
// handlers of the added ones begin later than the last event that the scope's handlers get of the
// removed ones, so an object cannot come back in an older state. The lists of the added regions
// begin after that, so they are not older, unless the API server reads from an old cache.
//
// If that takes long, the held events are sent. When the added regions are synced, they are opened
// again.
func (s *selection) stage(ctx context.Context, w *swap) {
	for !s.await(ctx, w) {
		for _, r := range w.added {
			for _, p := range r.parts {
				if !done(ctx, p.informer.HasSyncedChecker()) {
					return
				}
			}
		}
		if !s.reopen(ctx, w) {
			return
		}
	}
	if !s.lockFor(w) {
		return
	}
	for _, r := range w.added {
		r.attached = true
	}
	s.mu.Unlock()
	var registered []cache.DoneChecker
	for _, r := range w.added {
		for _, p := range r.parts {
			h, err := p.informer.AddEventHandler(p)
			if err != nil {
				return // the informer has stopped
			}
			registered = append(registered, h.HasSyncedChecker())
		}
	}
	for _, checker := range registered {
		if !done(ctx, checker) {
			return
		}
	}
	s.readyMu.Lock()
	s.ready = append(s.ready, w)
	s.readyMu.Unlock()
	s.show()
}

// await waits until the added regions are synced and no older than the removed ones. It returns
// false if ctx is done first, and if it takes long: then the events are no longer held.
func (s *selection) await(ctx context.Context, w *swap) bool {
	for _, r := range w.added {
		for _, p := range r.parts {
			for !p.informer.HasSynced() {
				s.mu.Lock()
				holds, left, changed := w.holdsLocked(), w.limit-time.Since(w.since), s.waitLocked()
				s.mu.Unlock()
				if !holds {
					return len(w.removed) == 0 && done(ctx, p.informer.HasSyncedChecker())
				}
				select {
				case <-p.informer.HasSyncedChecker().Done():
				case <-changed:
				case <-time.After(left):
				case <-ctx.Done():
					return false
				}
			}
		}
	}
	for _, r := range w.added {
		for _, old := range w.removed {
			for k, p := range r.parts {
				if !s.reach(ctx, w, p, old.parts[k]) {
					return false
				}
			}
		}
	}
	return true
}

// reach waits until the part's cache is no older than old, whose events are held. A fresh list is
// not. A list from an old cache of the API server can get there with the next bookmark only.
// Bookmarks are no events, so reach polls. It returns false as await does.
func (s *selection) reach(ctx context.Context, w *swap, p, old *part) bool {
	s.mu.Lock()
	version := old.heldAt // a swap that replaces this one may hold old again
	s.mu.Unlock()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		order, err := resourceversion.CompareResourceVersion(p.version(), version)
		if err != nil || order >= 0 {
			return true // only fakes have versions that cannot be compared
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
		s.mu.Lock()
		holds := w.holdsLocked()
		s.mu.Unlock()
		if !holds {
			return false
		}
	}
}

// holdLocked makes the removed regions keep their events.
func (s *selection) holdLocked(w *swap) {
	if len(w.removed) == 0 {
		return
	}
	w.holds, w.since = true, time.Now()
	for _, r := range w.removed {
		for _, p := range r.parts {
			p.holdLocked()
		}
	}
}

// holdsLocked reports whether the swap holds events. If an added region fails, or the limit is
// reached, it sends them.
func (w *swap) holdsLocked() bool {
	long := time.Since(w.since) >= w.limit
	if w.holds && (long || w.failing()) {
		if long {
			w.limit *= 2
		}
		w.releaseLocked()
	}
	return w.holds && !w.canceled
}

// failing reports whether a list of an added region fails.
func (w *swap) failing() bool {
	return slices.ContainsFunc(w.added, (*region).failing)
}

// releaseLocked sends the held events.
func (w *swap) releaseLocked() {
	w.holds = false
	for _, r := range w.removed {
		for _, p := range r.parts {
			p.releaseLocked()
		}
	}
}

// reopen holds the events of the removed regions, and lists the added regions again. If the function
// of New fails, it is called again after a pause. reopen returns false if ctx is done first.
func (s *selection) reopen(ctx context.Context, w *swap) bool {
	last := ""
	for {
		r, err := s.tryReopen(w)
		if ctx.Err() != nil {
			return false
		}
		if err == nil {
			return true
		}
		s.mu.Lock()
		r.unopened = err
		if err.Error() != last {
			s.loggerLocked().Error(err, "A late namespace cannot be listed again", "part", kube.Printable(r.key.String(), 253))
		}
		last = err.Error()
		s.changeLocked()
		s.mu.Unlock()
		select {
		case <-time.After(openPause):
		case <-ctx.Done():
			return false
		}
	}
}

// tryReopen is reopen without a retry. It returns the added region that failed, and is a no-op if
// the swap was canceled.
func (s *selection) tryReopen(w *swap) (*region, error) {
	var opened []*region
	for _, r := range w.added {
		again, err := s.newRegion(r.key)
		if err != nil {
			return r, err
		}
		opened = append(opened, again)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.canceled {
		return nil, nil
	}
	for n, r := range opened {
		if err := s.indexLocked(r); err != nil {
			return w.added[n], err
		}
	}
	s.holdLocked(w)
	for n, r := range opened {
		w.added[n].closeLocked()
		s.pending[r.key] = r
		for _, p := range r.parts {
			p.startLocked()
		}
	}
	w.added = opened
	return nil, nil
}

// indexLocked adds the indexers to a new region.
func (s *selection) indexLocked(r *region) error {
	for k, p := range r.parts {
		if err := p.addIndexers(s.informers[k].indexers); err != nil {
			return err
		}
	}
	return nil
}

// lockFor locks the selection, if the swap was not canceled.
func (s *selection) lockFor(w *swap) bool {
	s.mu.Lock()
	if w.canceled {
		s.mu.Unlock()
		return false
	}
	return true
}

// done waits until checker is done. It returns false if ctx is done first.
func done(ctx context.Context, checker cache.DoneChecker) bool {
	select {
	case <-checker.Done():
		return true
	case <-ctx.Done():
		return false
	}
}

// show shows the ready swaps. One call shows all swaps that became ready while calls waited for
// the lock, because each call makes a new view.
func (s *selection) show() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readyMu.Lock()
	ready := s.ready
	s.ready = nil
	s.readyMu.Unlock()
	var added, removed []*region
	for _, w := range ready {
		if w.canceled || s.stopped {
			continue
		}
		delete(s.running, w)
		added, removed = append(added, w.added...), append(removed, w.removed...)
	}
	if len(added) > 0 {
		s.showLocked(added, removed)
	}
}

// showLocked shows regions in place of others, and sends the events of the difference.
func (s *selection) showLocked(added, removed []*region) {
	for _, r := range removed {
		delete(s.shown, r.key)
	}
	for _, r := range added {
		delete(s.pending, r.key)
		s.shown[r.key] = r
	}
	if len(added)+len(removed) > 0 {
		s.changeView(added, removed)
	}
	was, is := byNamespace(removed), byNamespace(added)
	for k, i := range s.informers {
		var events []event
		for _, r := range removed {
			p := r.parts[k]
			for name, old := range p.objects {
				if _, stays := is.object(k, name); !stays {
					events = append(events, event{kind: onLeave, old: object{p, old}})
				}
			}
		}
		for _, r := range added {
			p := r.parts[k]
			p.visible = true
			for name, obj := range p.objects {
				old, stays := was.object(k, name)
				switch {
				case !stays:
					events = append(events, event{kind: onAdd, new: object{p, obj}, initial: true})
				case !versions.Same(old.obj, obj):
					events = append(events, event{kind: onUpdate, old: old, new: object{p, obj}})
				}
			}
		}
		i.sendLocked(events...)
	}
	for _, r := range removed {
		r.closeLocked()
	}
	if s.late && len(added) > 0 {
		for _, r := range added {
			s.loggerLocked().Info("A namespace that was late is shown", "part", kube.Printable(r.key.String(), 253))
		}
	}
	s.changeLocked()
}

func byPart(regions map[Part]*region) namespaces {
	return byNamespace(slices.Collect(maps.Values(regions)))
}

func byNamespace(regions []*region) namespaces {
	n := namespaces{}
	for _, r := range regions {
		n[r.key.Namespace] = r
	}
	return n
}

// errNotSelected is the reason why an Informer is not synced before the first Select.
var errNotSelected = errors.New("scope: no selection was made: call Select or Follow")

// loggerLocked returns the logger of the first Informer that runs.
func (s *selection) loggerLocked() klog.Logger {
	for _, i := range s.informers {
		if i.run != nil {
			return klog.FromContext(i.run)
		}
	}
	return klog.Background()
}

// waitLocked returns a channel that the next change closes.
func (s *selection) waitLocked() <-chan struct{} {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// stop ends a running Select and the swaps, and returns when they have ended.
func (s *selection) stop() {
	s.mu.Lock()
	if !s.stopped {
		s.stopped = true
		close(s.stopping)
		s.cancelLocked()
	}
	s.mu.Unlock()
	s.swaps.Wait()
	s.selecting <- struct{}{} // a running Select ends because of stopping
	<-s.selecting
}
