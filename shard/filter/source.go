package filter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/shard/internal/hashes"
)

// Source lists and watches the objects of some shards. It is a cache.ListerWatcher and serves
// one informer. [Objects] and [Children] make one. Its methods may be called concurrently,
// but only one watch is open: a list or a watch stops the watch before it.
//
// A Source sends its selector to the API server, which ignores it without the feature gate
// ShardedListAndWatch, and drops the foreign objects of each list and watch by the same hash.
// An object that cannot be hashed is an error of the list, or ends the watch.
type Source struct {
	lw       cache.ListerWatcherWithContext
	noStream bool // the client does not support streaming lists
	selector hashes.Selector
	text     string // of selector; the sent one
	children bool   // filter by the controller owner's uid, which the API server cannot

	mu     sync.Mutex // guards the fields below
	open   *filtered
	passed map[types.UID]struct{} // the children that the informer has

	kept, foreign atomic.Int64
}

var (
	_ cache.ListerWatcher            = (*Source)(nil)
	_ cache.ListerWatcherWithContext = (*Source)(nil)
)

// Objects returns a Source of the objects that a selector of [shard.Ranges.Selector] selects. "" is
// an error. lw lists and watches the resource, such as a cache.ListWatch or crd's ListWatch;
// other selectors and the namespace are its own. For a [View] with package scope:
//
//	New: func(p scope.Part) (cache.SharedIndexInformer, error) {
//		source, err := filter.Objects(listWatch(p.Namespace, p.Options), p.ShardSelector)
//		...
//		return cache.NewSharedIndexInformer(source, &corev1.Pod{}, 0, indexers), nil
//	}
func Objects(lw cache.ListerWatcher, shardSelector string) (*Source, error) {
	return newSource(lw, shardSelector, false)
}

// Children returns a Source of the objects whose controller owner the selector selects.
// With a selector by namespace it is Objects. With a selector by uid the API server cannot
// select: the Source receives all objects, keeps those with a controller reference to an
// owner of the shards, and sends a deletion if an update moves a child to an owner in
// another shard, whose Source sends an addition. An object without a controller is in no
// shard. While its owner changes, a child can be in two caches, or in none.
func Children(lw cache.ListerWatcher, shardSelector string) (*Source, error) {
	return newSource(lw, shardSelector, true)
}

func newSource(lw cache.ListerWatcher, text string, children bool) (*Source, error) {
	if kube.IsNil(lw) {
		return nil, errors.New("filter: the ListerWatcher is nil: pass that of the resource")
	}
	s := &Source{lw: cache.ToListerWatcherWithContext(lw), text: text}
	if u, ok := lw.(interface{ IsWatchListSemanticsUnSupported() bool }); ok {
		s.noStream = u.IsWatchListSemanticsUnSupported()
	}
	if text == "" {
		return nil, errors.New("filter: the shard selector is empty, which would be all objects: pass the result of Ranges.Selector, and do not watch without a shard")
	}
	var err error
	if s.selector, err = hashes.Parse(text); err != nil {
		return nil, fmt.Errorf("filter: the shard selector is not valid: %w: pass the result of Ranges.Selector", err)
	}
	if children && s.selector.Key == hashes.ByUID {
		s.children, s.text, s.passed = true, "", map[types.UID]struct{}{}
	}
	return s, nil
}

// Support says whether the API server selects the objects of a [Source], or sends all of them.
type Support struct {
	// Sent is true if the Source sends its selector. It does not for children by the uid of
	// their owner.
	Sent bool
	// Kept and Foreign count the objects of lists and the events of watches that the Source
	// has passed on and dropped. If Sent, Foreign grows only if an API server ignores the
	// selector, because it lacks the feature gate. API servers behind one address can differ.
	Kept, Foreign int64
}

// Support returns the counts so far.
func (s *Source) Support() Support {
	return Support{Sent: s.text != "", Kept: s.kept.Load(), Foreign: s.foreign.Load()}
}

// ListWithContext implements cache.ListerWatcherWithContext.
func (s *Source) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	s.stopWatch()
	if options.Continue == "" {
		s.reset()
	}
	options.ShardSelector = s.text
	list, err := s.lw.ListWithContext(ctx, options)
	if err != nil {
		return nil, err
	}
	all, err := meta.ExtractList(list)
	if err != nil {
		return nil, fmt.Errorf("filter: list: %w", err)
	}
	own := make([]runtime.Object, 0, len(all))
	for _, obj := range all {
		m, ok, err := s.match(obj)
		switch {
		case err != nil:
			return nil, fmt.Errorf("filter: list: %w", err)
		case ok:
			own = append(own, obj)
			s.note(m, true)
		}
	}
	s.count(len(own), len(all)-len(own))
	if len(own) == len(all) {
		return list, nil
	}
	// SetList copies, so that the foreign objects are not kept alive by the array of the list.
	if err := meta.SetList(list, own); err != nil {
		return nil, fmt.Errorf("filter: list: %w", err)
	}
	return list, nil
}

// WatchWithContext implements cache.ListerWatcherWithContext.
func (s *Source) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	s.stopWatch()
	if options.SendInitialEvents != nil && *options.SendInitialEvents {
		s.reset()
	}
	options.ShardSelector = s.text
	w, err := s.lw.WatchWithContext(ctx, options)
	if err != nil {
		return nil, err
	}
	f := &filtered{source: s, in: w, out: make(chan watch.Event), stopped: make(chan struct{}), ended: make(chan struct{})}
	s.mu.Lock()
	s.open = f
	s.mu.Unlock()
	go f.run()
	return f, nil
}

// List implements cache.ListerWatcher.
func (s *Source) List(options metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), options)
}

// Watch implements cache.ListerWatcher.
func (s *Source) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), options)
}

// IsWatchListSemanticsUnSupported reports whether the ListerWatcher cannot stream lists. Such
// are clients of tests. client-go's reflectors call it.
func (s *Source) IsWatchListSemanticsUnSupported() bool { return s.noStream }

// match reports whether an object is of the shards.
func (s *Source) match(obj runtime.Object) (m metav1.Object, ok bool, err error) {
	if m, err = meta.Accessor(obj); err != nil {
		return nil, false, err
	}
	var h uint64
	if s.children {
		h, ok, err = hashes.OfChild(m, s.selector.Key)
	} else {
		h, err = hashes.Of(m, s.selector.Key)
		ok = err == nil
	}
	return m, ok && s.selector.Has(h), err
}

// turn returns the event that the informer gets for an event of the API server, and false if
// it gets none.
func (s *Source) turn(e watch.Event) (watch.Event, bool) {
	if e.Type == watch.Bookmark || e.Type == watch.Error {
		return e, true
	}
	m, own, err := s.match(e.Object)
	if err != nil {
		status := apierrors.NewInternalError(fmt.Errorf("filter: watch: %w", err)).Status()
		return watch.Event{Type: watch.Error, Object: &status}, true
	}
	if s.children && !own && s.has(m) {
		// The uid of an object never changes, but its controller can.
		return watch.Event{Type: watch.Deleted, Object: e.Object}, true
	}
	return e, own
}

// sent notes an event that the informer has received.
func (s *Source) sent(e watch.Event) {
	if m, err := meta.Accessor(e.Object); err == nil && e.Type != watch.Bookmark && e.Type != watch.Error {
		s.note(m, e.Type != watch.Deleted)
	}
}

func (s *Source) has(m metav1.Object) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.passed[m.GetUID()]
	return ok
}

// note notes that the informer has a child, or has it no more.
func (s *Source) note(m metav1.Object, has bool) {
	if !s.children {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if has {
		s.passed[m.GetUID()] = struct{}{}
	} else {
		delete(s.passed, m.GetUID())
	}
}

// reset forgets the children before the list that replaces them.
func (s *Source) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.passed)
}

// stopWatch stops the open watch, so that none of its events is noted later.
func (s *Source) stopWatch() {
	s.mu.Lock()
	f := s.open
	s.open = nil
	s.mu.Unlock()
	if f != nil {
		f.Stop()
		<-f.ended
	}
}

func (s *Source) count(kept, foreign int) {
	s.kept.Add(int64(kept))
	s.foreign.Add(int64(foreign))
}

// filtered is a watch without the foreign objects. apimachinery's watch.Filter leaks its
// goroutine if a Stop finds an event that was not received.
type filtered struct {
	source  *Source
	in      watch.Interface
	out     chan watch.Event
	stop    sync.Once
	stopped chan struct{}
	ended   chan struct{}
}

// ResultChan implements watch.Interface.
func (f *filtered) ResultChan() <-chan watch.Event { return f.out }

// Stop implements watch.Interface.
func (f *filtered) Stop() {
	f.stop.Do(func() { close(f.stopped) })
	f.in.Stop()
}

func (f *filtered) run() {
	defer close(f.ended)
	defer close(f.out)
	defer f.in.Stop()
	for {
		select {
		case <-f.stopped:
			return
		case e, ok := <-f.in.ResultChan():
			if !ok {
				return
			}
			turned, keep := f.source.turn(e)
			if !keep {
				f.source.count(0, 1)
				continue
			}
			select {
			case <-f.stopped:
				return
			case f.out <- turned:
				f.source.sent(turned)
			}
			switch turned.Type {
			case watch.Added, watch.Modified, watch.Deleted:
				f.source.count(1, 0)
			case watch.Bookmark, watch.Error:
			}
		}
	}
}
