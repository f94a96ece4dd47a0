package filter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/shard"
)

const (
	defaultSelectTimeout = time.Minute
	firstPause           = 100 * time.Millisecond
	longestPause         = 5 * time.Second
)

// View is a replica's view of its shards: it keeps the selector of an informer, such as a
// scope.Informer, equal to the shards that were added. Changes that come while a Select runs
// are one Select after it. A Select of package scope lists the objects of all added shards
// again, and holds them twice until it returns. The methods of a View may be called
// concurrently, and its fields must not change after the first call. With package scope and a
// [shard.Group]:
//
//	view := &filter.View{Ranges: ranges, Select: func(ctx context.Context, selector string) error {
//		if selector == "" {
//			return pods.Select(ctx, scope.Selection{})
//		}
//		return pods.Select(ctx, scope.Selection{Namespaces: []string{""}, ShardSelector: selector})
//	}}
//	...
//	err := group.Run(ctx, func(ctx context.Context, s shard.Shard) error {
//		if err := view.Add(ctx, s.Index); err != nil {
//			return err
//		}
//		err := controllerOf(s.Index).Run(ctx) // one handler for all shards: see examples/sharded
//		_ = view.Remove(ctx, s.Index)         // ctx is done: the View removes it later
//		return err
//	})
//
// A reconcile that reads an object by its name checks with Ranges.Of that the object is of its shard: a new
// object of the name can be of another one.
type View struct {
	// Ranges maps objects to shards. Required.
	Ranges shard.Ranges

	// Select makes the informer show the objects of the selector, and returns when it does.
	// If the selector is "", it shows no object: select no namespace. Calls of Select do not
	// overlap. Required.
	Select func(ctx context.Context, shardSelector string) error

	// SelectTimeout bounds a call of Select, whose context ends after it. 0 means 1m.
	SelectTimeout time.Duration

	mu      sync.Mutex // guards the fields below
	running bool
	added   map[int]bool
	shown   map[int]bool  // the informer shows at least these; nil before a Select succeeded
	maybe   map[int]bool  // and at most these
	err     error         // of the last Select
	changed chan struct{} // closed by the next change of the fields above; nil if no call waits
}

// Run calls Select until ctx is done, and then returns nil. The first call is for no shard if none
// was added, so that the informer is synced on a replica without shards. If a Select fails, Run logs the
// error and calls it again after a pause of at most 5s. It returns an error if a field is not
// valid or the View runs already.
func (v *View) Run(ctx context.Context) error {
	if err := v.check(); err != nil {
		return err
	}
	v.mu.Lock()
	if v.running {
		v.mu.Unlock()
		return errors.New("filter: the View runs already: use one View for each Run")
	}
	v.running = true
	if v.maybe == nil {
		v.maybe = map[int]bool{}
	}
	v.mu.Unlock()
	defer func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.running = false
	}()

	pause := firstPause
	for {
		v.mu.Lock()
		equal, changed := v.shown != nil && maps.Equal(v.added, v.shown) && maps.Equal(v.added, v.maybe), v.waitLocked()
		want := map[int]bool{}
		if !equal && ctx.Err() == nil {
			maps.Copy(want, v.added)
			// A Select that fails can take effect until a later one succeeds.
			maps.DeleteFunc(v.shown, func(s int, _ bool) bool { return !want[s] })
			maps.Copy(v.maybe, want)
		}
		v.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return nil
		case equal:
			select {
			case <-ctx.Done():
			case <-changed:
			}
			continue
		}
		err := v.call(ctx, want)
		v.mu.Lock()
		if err == nil { // also if ctx is done: the informer shows them
			v.shown, v.maybe = want, maps.Clone(want)
		}
		if err == nil || ctx.Err() == nil {
			v.err = err
		}
		v.changeLocked()
		v.mu.Unlock()
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			pause = firstPause
			continue
		}
		klog.FromContext(ctx).Error(kube.PrintableError(err, 4<<10), "The shards of a replica could not be selected", "shards", len(want), "retryAfter", pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, longestPause)
	}
}

// call calls Select for the shards.
func (v *View) call(ctx context.Context, shards map[int]bool) error {
	text := ""
	if len(shards) > 0 {
		var err error
		if text, err = v.Ranges.Selector(slices.Collect(maps.Keys(shards))); err != nil {
			return err
		}
	}
	timeout := v.SelectTimeout
	if timeout == 0 {
		timeout = defaultSelectTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return v.Select(ctx, text)
}

// Add adds a shard, and returns when the informer shows it. Then its work may begin. If ctx
// is done before, the shard is removed, and the error wraps that of the last Select. While no Run
// runs, Add waits for one.
func (v *View) Add(ctx context.Context, shard int) error {
	if err := v.check(); err != nil {
		return err
	}
	if shard < 0 || shard >= v.Ranges.N {
		return fmt.Errorf("filter: View.Add got shard %d: pass a shard from 0 to %d", shard, v.Ranges.N-1)
	}
	return v.set(ctx, shard, true)
}

// Remove removes a shard whose work has ended, and returns when the informer no longer shows
// it. If ctx is done before, the error wraps that of the last Select, and Run still removes
// it. It is a no-op for a shard that is not there. While no Run runs, Remove waits for one.
func (v *View) Remove(ctx context.Context, shard int) error {
	if err := v.check(); err != nil {
		return err
	}
	return v.set(ctx, shard, false)
}

// set adds or removes a shard, and waits until the informer shows that.
func (v *View) set(ctx context.Context, shard int, add bool) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.added == nil {
		v.added = map[int]bool{}
	}
	v.changeLocked()
	if add {
		v.added[shard] = true
	} else {
		delete(v.added, shard)
	}
	for !v.isLocked(shard, add) {
		changed := v.waitLocked()
		v.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		v.mu.Lock()
		if ctx.Err() == nil || v.isLocked(shard, add) {
			continue
		}
		step, err := "remove", context.Cause(ctx)
		if add {
			step = "add"
			delete(v.added, shard)
			v.changeLocked()
		}
		if v.err != nil {
			err = fmt.Errorf("%w: the last Select: %w", err, v.err)
		}
		return fmt.Errorf("filter: %s shard %d: %w", step, shard, err)
	}
	return nil
}

// isLocked reports whether the informer shows a shard, or does not, and neither the running
// Select nor one that failed changes that.
func (v *View) isLocked(shard int, shown bool) bool {
	return v.shown[shard] == shown && v.maybe[shard] == shown
}

// waitLocked returns a channel that the next change closes.
func (v *View) waitLocked() <-chan struct{} {
	if v.changed == nil {
		v.changed = make(chan struct{})
	}
	return v.changed
}

func (v *View) changeLocked() {
	if v.changed != nil {
		close(v.changed)
		v.changed = nil
	}
}

func (v *View) check() error {
	switch _, err := v.Ranges.Selector([]int{0}); {
	case err != nil:
		return fmt.Errorf("filter: View.Ranges is not valid: %w", err)
	case v.Select == nil:
		return errors.New("filter: View.Select is nil: set it to a function that selects in the informer")
	case v.SelectTimeout < 0:
		return fmt.Errorf("filter: View.SelectTimeout is %v: set a positive duration, or 0 for 1m", v.SelectTimeout)
	}
	return nil
}
