package ondemand

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/alive"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// ErrClosed is wrapped by the errors of a Watch that is closed, and of Informers whose Run
// has ended.
var ErrClosed = errors.New("ondemand: closed")

const (
	maxName = 253  // bounds the text of a key
	maxText = 2048 // bounds the text of an error
	maxLate = 10   // bounds the names in the error of Run
)

// Informers opens informers by key, for example a schema.GroupVersionResource or a struct
// with a namespace and a selector. It runs once and must not be copied. Its methods may be
// called concurrently.
type Informers[K comparable] struct {
	// New returns a new informer for a key. It is called by the Open of a key that has no
	// open Watch. It must return at once, and must not call a method of the Informers. The
	// informer may have indexers and a transform, and must not have been started. New is
	// required.
	New func(key K) (cache.SharedIndexInformer, error)

	// StopTimeout bounds the stop of the informers after the context of Run is done. 0 means
	// 5s.
	StopTimeout time.Duration

	// WatchErrorHandler is called with each error that ends a list or watch of an informer.
	// It replaces the handler of the informer. nil means cache.DefaultWatchErrorHandler,
	// which logs the error.
	WatchErrorHandler cache.WatchErrorHandlerWithContext

	mu      sync.Mutex // guards the fields below and the field users of each shared
	began   bool
	ended   bool                 // Run stops the informers, or has stopped them
	start   func(K, *shared)     // not nil exactly while Run runs
	open    map[K]*shared        // the informers with an open Watch
	running map[*shared]struct{} // the informers that have started and not stopped
}

// shared is an informer with its users.
type shared struct {
	name     string
	informer cache.SharedIndexInformer
	done     chan struct{} // closed when the informer has stopped, or will never start
	users    int           // the number of open Watches

	// Written before the informer starts.
	stop   context.CancelFunc // nil until then
	logger klog.Logger

	mu   sync.Mutex // guards last
	last error      // the last error of a list or watch
}

// stopped reports whether the informer has stopped, or will never start.
func (s *shared) stopped() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// Open returns a Watch of the key's informer. If no other Watch of the key is open, it makes
// a new informer with New. The informer starts at once, or with Run. Open does not wait for
// the informer to sync: use [Watch.WaitForSync]. Close each Watch exactly when it is no longer
// used.
//
// Open returns an error that wraps ErrClosed after Run has ended. Otherwise it returns the
// error of New, or an error if New is nil or returned an unusable informer.
func (i *Informers[K]) Open(key K) (*Watch, error) {
	name := kube.Printable(fmt.Sprint(key), maxName)
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		return nil, fmt.Errorf("%w: open %s: Run has ended", ErrClosed, name)
	}
	s := i.open[key]
	if s == nil {
		var err error
		if s, err = i.make(key, name); err != nil {
			return nil, err
		}
		if i.open == nil {
			i.open = map[K]*shared{}
		}
		i.open[key] = s
		if i.start != nil {
			i.start(key, s)
		}
	}
	s.users++
	w := &Watch{SharedIndexInformer: s.informer, shared: s, closing: make(chan struct{}), closed: make(chan struct{})}
	w.release = func() { i.release(key, w) }
	return w, nil
}

// make returns an informer that has not been started.
func (i *Informers[K]) make(key K, name string) (*shared, error) {
	if i.New == nil {
		return nil, errors.New("ondemand: Informers.New is nil: set it to a function that returns a new informer")
	}
	informer, err := i.New(key)
	switch {
	case err != nil:
		return nil, fmt.Errorf("ondemand: open %s: %w", name, err)
	case kube.IsNil(informer):
		return nil, fmt.Errorf("ondemand: open %s: New returned a nil informer: return a new one", name)
	case informer.IsStopped():
		return nil, fmt.Errorf("ondemand: open %s: New returned an informer that has stopped: return a new one", name)
	}
	s := &shared{name: name, informer: informer, done: make(chan struct{})}
	next := i.WatchErrorHandler
	if next == nil {
		next = cache.DefaultWatchErrorHandler
	}
	err = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		s.mu.Lock()
		s.last = err
		s.mu.Unlock()
		alive.From(ctx).Failed(err)
		next(ctx, r, err)
	})
	if err != nil {
		return nil, fmt.Errorf("ondemand: open %s: New returned an informer that cannot be started: %w: return a new one", name, err)
	}
	return s, nil
}

// Run runs the informers until ctx is done, and returns when they have stopped. The informers
// of keys that are opened before Run start with it. A Watch that is still open then is a
// Watch of a stopped informer. If an informer.Set calls Run, after its AddRun, the methods and
// metrics of the Set show dead watches.
//
// The error names the keys whose informer or handler did not stop within StopTimeout. It is
// nil otherwise.
func (i *Informers[K]) Run(ctx context.Context) error {
	if err := i.begin(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return i.await()
}

func (i *Informers[K]) begin(ctx context.Context) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.began:
		return errors.New("ondemand: Run was called twice: Informers run once, create new ones")
	case i.New == nil:
		return errors.New("ondemand: Informers.New is nil: set it to a function that returns a new informer")
	case i.StopTimeout < 0:
		return fmt.Errorf("ondemand: Informers.StopTimeout is %v: set it to more than 0, or 0 for 5s", i.StopTimeout)
	}
	i.began = true
	i.start = func(key K, s *shared) {
		ctx, stop := context.WithCancel(ctx)
		watched := alive.From(ctx).Part(s.name)
		s.stop, s.logger = stop, klog.FromContext(ctx)
		if i.running == nil {
			i.running = map[*shared]struct{}{}
		}
		i.running[s] = struct{}{}
		go func() {
			s.informer.RunWithContext(watched.Context(ctx))
			watched.End()
			if ctx.Err() == nil {
				s.logger.Error(errors.New("ondemand: only ondemand may start and stop an informer"), "An informer ended by itself", "informer", s.name)
			}
			stop()
			i.mu.Lock()
			defer i.mu.Unlock()
			i.removeLocked(key, s)
			delete(i.running, s)
			close(s.done)
		}()
	}
	for key, s := range i.open {
		i.start(key, s)
	}
	return nil
}

// await waits for the informers, which stop after their handlers, and returns an error that
// names the late keys.
func (i *Informers[K]) await() error {
	i.mu.Lock()
	i.ended, i.start = true, nil
	running := slices.Collect(maps.Keys(i.running))
	i.mu.Unlock()
	patience := cmp.Or(i.StopTimeout, 5*time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var late []string
	for _, s := range running {
		select {
		case <-s.done:
		case <-ctx.Done():
			if !s.stopped() {
				late = append(late, s.name)
			}
		}
	}
	if len(late) == 0 {
		return nil
	}
	slices.Sort(late)
	late = slices.Compact(late)
	more := ""
	if n := len(late) - maxLate; n > 0 {
		late, more = late[:maxLate], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("ondemand: not stopped within %v: %s%s: %s", patience, strings.Join(late, ", "), more, lateReason)
}

const lateReason = "a handler is busy, or client-go pauses before its next attempt, for a minute at most; it is left to end by itself"

// release begins the end of a Watch.
func (i *Informers[K]) release(key K, w *Watch) {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := w.shared
	s.users--
	last := s.users == 0
	if last {
		i.removeLocked(key, s)
		if s.stop != nil {
			s.stop()
		} else {
			close(s.done)
		}
	}
	go w.end(last) // Close waits for it
}

// removeLocked removes an informer, so that the next Open of the key makes a new one.
func (i *Informers[K]) removeLocked(key K, s *shared) {
	if i.open[key] == s {
		delete(i.open, key)
	}
}
