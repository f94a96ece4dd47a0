package scope

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// Follow makes the selection that which returns, and again after each event of the settings,
// until the Informer stops. settings is an informer that which reads, for example of one
// ConfigMap, or of Namespaces. Something else runs it, such as the informer.Set of the Informer.
//
//	err := pods.Follow(settings.Informer(), func() (scope.Selection, error) {
//		c, err := settings.Lister().ConfigMaps("system").Get("namespaces")
//		if err != nil {
//			return scope.Selection{}, err
//		}
//		return scope.Selection{Namespaces: strings.Fields(c.Data["namespaces"])}, nil
//	})
//
// If which returns an error, for example because the settings were deleted, or panics, the
// selection stays as it was, and the error is logged. Until a selection was made, the Informer is
// not synced, and informer.Set reports the error as the reason. If parts cannot be shown, the
// error of [Informer.Select] is logged.
//
// Follow returns an error if an argument is nil, if the Informer has a selection, runs, or follows
// already, or if New or With was misused.
func (i *Informer) Follow(settings cache.SharedIndexInformer, which func() (Selection, error)) error {
	if kube.IsNil(settings) || which == nil {
		return errors.New("scope: Follow got a nil argument: pass an informer and a function")
	}
	f := &follower{of: i, which: which, wake: make(chan struct{}, 1)}
	s := i.selection
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.misuse != nil:
		return s.misuse
	case s.follower != nil:
		return errors.New("scope: Follow was called twice: a selection has one source")
	case s.selected:
		return errors.New("scope: Follow was called after Select: use one of them")
	case i.run != nil:
		return errors.New("scope: Follow was called after Run: call it before")
	}
	for _, other := range s.informers {
		if settings.HasSyncedChecker().Done() == other.synced {
			return errors.New("scope: Follow got an Informer of the selection itself: pass another informer")
		}
	}
	var err error
	if f.settings, err = settings.AddEventHandler(f); err != nil {
		return fmt.Errorf("scope: follow: add a handler to the settings: %w", err)
	}
	f.informer, s.follower = settings, f
	s.reason = errors.New("scope: no selection was made: the informer of the settings is not synced")
	return nil
}

// openPause is the time after which a failed function of New is called again, by Follow and for a late
// part.
const openPause = 10 * time.Second

// follower makes the selection of the settings. It is their handler.
type follower struct {
	of       *Informer
	which    func() (Selection, error)
	informer cache.SharedIndexInformer
	settings cache.ResourceEventHandlerRegistration
	wake     chan struct{} // has an element if there was an event
}

// OnAdd implements cache.ResourceEventHandler.
func (f *follower) OnAdd(any, bool) { f.changed() }

// OnUpdate implements cache.ResourceEventHandler.
func (f *follower) OnUpdate(any, any) { f.changed() }

// OnDelete implements cache.ResourceEventHandler.
func (f *follower) OnDelete(any) { f.changed() }

func (f *follower) changed() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// run selects until ctx is done.
func (f *follower) run(ctx context.Context) {
	defer func() { _ = f.informer.RemoveEventHandler(f.settings) }() // fails only for an unknown type
	if !done(ctx, f.settings.HasSyncedChecker()) {
		return
	}
	f.changed()
	result := make(chan error, 1) // of the running choose
	var current []Part
	var stop context.CancelFunc // of the running choose; nil if none runs
	made, last := false, ""     // whether current was selected, and the last error of the settings
	unopened := ""              // the last error of a part that could not be opened
	var again <-chan time.Time  // when a part is tried again that could not be opened
	end := func() {
		if stop != nil {
			stop()
			if err := <-result; err != nil {
				klog.FromContext(ctx).V(4).Info("A selection was given up, because its input has changed", "err", kube.PrintableError(err, 4<<10))
			}
			stop = nil
		}
	}
	defer end()
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-result:
			stop()
			stop = nil
			if e := new(notOpened); errors.As(err, &e) {
				made, again = false, time.After(openPause)
				f.refused(ctx, err, err.Error() != unopened)
				unopened = err.Error()
				continue
			}
			unopened = ""
			f.chosen(ctx, err, len(current))
		case <-again:
			f.changed()
		case <-f.wake:
			parts, err := f.parts()
			if err != nil {
				f.refused(ctx, err, err.Error() != last)
				last = err.Error()
				continue
			}
			last = ""
			if made && slices.Equal(parts, current) {
				continue
			}
			end()
			one, cancel := context.WithCancel(ctx)
			current, made, stop = parts, true, cancel
			go func() { result <- f.of.selection.choose(one, parts) }()
		}
	}
}

// refused logs an error of the settings, if it is a new one.
func (f *follower) refused(ctx context.Context, err error, isNew bool) {
	if isNew {
		klog.FromContext(ctx).Error(err, "The selection stays as it was")
	}
	s := f.of.selection
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reason = fmt.Errorf("scope: no selection was made: %w", err)
}

// chosen logs the result of a choose.
func (f *follower) chosen(ctx context.Context, err error, parts int) {
	if ctx.Err() != nil {
		return
	}
	logger := klog.FromContext(ctx)
	if err == nil {
		logger.Info("The selected namespaces are shown", "selected", parts)
		return
	}
	logger.Error(err, "Some of the selected namespaces are not shown yet", "selected", parts)
}

// parts returns the parts that the settings select.
func (f *follower) parts() (parts []Part, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("scope: follow: panic: %s", kube.Printable(fmt.Sprint(reason), maxText))
		}
	}()
	selection, err := f.which()
	if err != nil {
		return nil, kube.PrintableError(err, maxText)
	}
	return selection.split()
}
