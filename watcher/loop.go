package watcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit"
)

var (
	// errLeft means that the consumer has left its loop, which must not be yielded to.
	errLeft = errors.New("watcher: the consumer left the loop")
	// errPause means that a watch ended normally, but too early to continue at once.
	errPause = errors.New("watcher: the watch ended early")
	// errShort is a failure: the watch ended as soon as it began.
	errShort = errors.New("the server closed the watch at once, without an event")
)

// misuse is an error that no retry cures.
type misuse struct{ error }

// loop is one loop over Events. It runs in the consumer's goroutine; the calls of the
// Source run in another one, which it waits for.
type loop[T controllerkit.Object] struct {
	w     *RetryWatcher[T]
	yield func(Event[T], error) bool

	// known holds the last delivered state of every object that is not deleted. It serves
	// to find the difference after a list, repeated events, and a restored server.
	known map[types.UID]T
	// complete means that known has every object that the consumer may know. It is false
	// after a start from a version, until the first list.
	complete bool
	// deleted is the last object that the server reported as deleted, or nil.
	deleted controllerkit.Object

	rv       string // the position: everything up to it was delivered. "" means none
	mustList bool   // the position is not one to watch from, or there is none
	whole    bool   // the last list expired between two pages: the next has one page
	accepted bool   // the server has accepted a list or a watch
	broken   bool   // the last watch ended before its time: the server may have changed
	failures int    // in a row
}

// run lists, watches and pauses until it returns errLeft, the cause of ctx, a misuse, or
// the rejection of the first request.
func (l *loop[T]) run(ctx context.Context) error {
	for {
		if ctx.Err() != nil {
			return fmt.Errorf("watcher: %w", context.Cause(ctx))
		}
		var pause time.Duration
		err := l.attempt(ctx)
		if _, ok := errors.AsType[misuse](err); ok || errors.Is(err, errLeft) {
			return err
		}
		switch {
		case err == nil || ctx.Err() != nil:
			continue
		case !l.accepted && isInvalid(err):
			return err
		case errors.Is(err, errPause):
			pause = l.w.jittered(l.backoff())
		default:
			l.failures++
			pause = l.classify(err)
			err = l.send(ctx, Event[T]{Type: Retrying, Err: err, RetryAfter: pause, ResourceVersion: l.rv})
			if errors.Is(err, errLeft) {
				return err
			}
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// isInvalid reports whether the server rejects a selector or the ResourceVersion to start
// from. kube-apiserver does the latter with status 500 and this text.
func isInvalid(err error) bool {
	var status apierrors.APIStatus
	ok := errors.As(err, &status)
	return apierrors.IsBadRequest(err) || apierrors.IsInvalid(err) ||
		ok && strings.HasPrefix(status.Status().Message, "resourceVersion: Invalid value")
}

// classify returns the pause after a failure of a request or a stream, and whether the next
// attempt lists. Until the list delivers its first event, the position stays: a consumer that
// resumes from it learns from Reset that objects can have been deleted.
func (l *loop[T]) classify(err error) time.Duration {
	pause := l.backoff()
	switch {
	case apierrors.IsGone(err), apierrors.IsResourceExpired(err), errors.Is(err, ErrStalled):
		l.mustList = true
	case errors.Is(err, ErrRestored), apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		// A version from before a restore must not be resumed from: the server can pass it. One
		// that the server does not have yet can be such a version.
		l.mustList, l.rv = true, ""
	case apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
		// The resource is not served. Once it is served again, its objects are different.
		l.mustList = true
		pause = l.w.maxDelay()
	case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err):
		pause = l.w.maxDelay()
	}
	pause = l.w.jittered(pause)
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		if asked := time.Duration(seconds) * time.Second; pause < asked {
			// All clients get the same value and should not return at the same time.
			pause = asked + rand.N(l.w.baseDelay())
		}
	}
	return pause
}

// backoff returns the pause for the current number of failures, before jitter.
func (l *loop[T]) backoff() time.Duration {
	d, limit := l.w.baseDelay(), l.w.maxDelay()
	for range l.failures - 1 {
		if d > limit/2 {
			return limit
		}
		d *= 2
	}
	return d
}

// attempt lists if necessary, and watches until the watch ends. It returns nil if the
// watch ended normally and the next one may follow at once.
func (l *loop[T]) attempt(ctx context.Context) error {
	if l.mustList {
		if err := l.list(ctx); err != nil {
			return err
		}
	}
	return l.watch(ctx)
}

// send delivers an event and then records it as handled. If ctx is done, it delivers
// no event.
func (l *loop[T]) send(ctx context.Context, ev Event[T]) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !l.yield(ev, nil) {
		return errLeft
	}
	l.w.handled(ev.ResourceVersion)
	return nil
}

// list reads the whole collection from the server's storage, as a cache could be older
// than the delivered state, and delivers the difference.
func (l *loop[T]) list(ctx context.Context) error {
	opts := metav1.ListOptions{LabelSelector: l.w.LabelSelector, FieldSelector: l.w.FieldSelector, Limit: pageSize}
	if l.whole {
		opts.Limit = 0 // pages may take longer than the server keeps a version
	}
	var items []T
	for {
		page, listMeta, err := l.page(ctx, "list", opts)
		if err != nil {
			// Nothing was delivered; the next list begins again.
			l.whole = opts.Continue != "" && (apierrors.IsGone(err) || apierrors.IsResourceExpired(err))
			return err
		}
		items = append(items, page...)
		if opts.Continue = listMeta.Continue; opts.Continue == "" {
			return l.replace(ctx, items, listMeta.ResourceVersion)
		}
	}
}

// page requests one page of a list.
func (l *loop[T]) page(ctx context.Context, step string, opts metav1.ListOptions) (items []T, listMeta metav1.ListMeta, err error) {
	r, ctx := newRequest(ctx, l.w.silence(), false)
	defer r.end(nil)
	defer l.w.requested(false, time.Now())
	err = l.call(ctx, r, step, func() (err error) {
		items, listMeta, err = l.w.Source.List(ctx, opts)
		return err
	})
	if err == nil {
		l.w.received()
	}
	return items, listMeta, err
}

// replace delivers the difference between the known objects and a list. It compares
// versions only for equality: after a restore from a backup they are lower.
func (l *loop[T]) replace(ctx context.Context, items []T, rv string) error {
	if !l.complete {
		clear(l.known)
		if err := l.send(ctx, Event[T]{Type: Reset, Synthetic: true}); err != nil {
			return err
		}
		l.complete = true
	}
	l.accepted = true
	listed := make(map[types.UID]struct{}, len(items))
	for _, object := range items {
		listed[id(object)] = struct{}{}
	}
	l.deleted = nil
	var gone []T
	for uid, object := range l.known {
		if _, ok := listed[uid]; !ok {
			gone = append(gone, object)
		}
	}
	slices.SortFunc(gone, func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	// Deletions come first: another object may have the same name now.
	for _, object := range gone {
		delete(l.known, id(object))
		if err := l.send(ctx, Event[T]{Type: watch.Deleted, Object: object, Synthetic: true}); err != nil {
			return err
		}
	}
	for _, object := range items {
		ev := Event[T]{Type: watch.Added, Object: object, Synthetic: true}
		if old, ok := l.known[id(object)]; ok {
			ev.Type = watch.Modified
			if rv := old.GetResourceVersion(); rv != "" && rv == object.GetResourceVersion() {
				continue
			}
		}
		l.known[id(object)] = object
		if err := l.send(ctx, ev); err != nil {
			return err
		}
	}
	// A list without a version is no position: changes between two watches show only in
	// the next list.
	l.rv, l.mustList, l.broken = rv, rv == "", false
	return l.send(ctx, Event[T]{Type: Synced, Synthetic: true, ResourceVersion: rv})
}

// watch delivers events until the stream ends. The stream is closed when it returns.
func (l *loop[T]) watch(ctx context.Context) error {
	// If a watch ends earlier than requested, the next one may reach another server.
	check := l.broken
	l.broken = true
	timeout := minWatchTimeout + rand.N(minWatchTimeout).Truncate(time.Second)
	start := time.Now()
	defer l.w.requested(true, start)
	r, watchCtx := newRequest(ctx, l.w.silence(), true)
	defer r.end(nil)
	stream, err := l.open(watchCtx, r, int64(timeout.Seconds()))
	if err != nil {
		return err
	}
	defer stop(stream)
	l.accepted = true
	if check || time.Since(start) > repeatedAfter {
		if err := l.check(ctx); err != nil {
			return err
		}
	}

	return l.follow(ctx, stream, timeout)
}

// open requests a watch from the position that ends after the given time.
func (l *loop[T]) open(ctx context.Context, r *request, seconds int64) (stream watch.Interface, err error) {
	err = l.call(ctx, r, "watch", func() (err error) {
		stream, err = l.w.Source.Watch(ctx, metav1.ListOptions{
			LabelSelector: l.w.LabelSelector, FieldSelector: l.w.FieldSelector,
			ResourceVersion: l.rv, AllowWatchBookmarks: true, TimeoutSeconds: &seconds,
		})
		return err
	})
	switch {
	case err != nil:
		if stream != nil {
			stop(stream)
		}
		return nil, err
	case stream == nil:
		return nil, misuse{errors.New("watcher: RetryWatcher.Source returned neither a watch nor an error: return one of them")}
	}
	return stream, nil
}

// stop ends a watch, and returns when its goroutine is done.
func stop(stream watch.Interface) {
	stream.Stop()
	for range stream.ResultChan() {
	}
}

// follow delivers the events of a watch until it ends. timeout is the time that was requested.
func (l *loop[T]) follow(ctx context.Context, stream watch.Interface, timeout time.Duration) error {
	opened, progress := time.Now(), false
	defer func() {
		if time.Since(opened) >= healthyWatch {
			l.failures = 0
		}
	}()
	var silence <-chan time.Time
	var timer *time.Timer
	if d := l.w.silence(); d > 0 {
		timer = time.NewTimer(d)
		defer timer.Stop()
		silence = timer.C
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-silence:
			return &failure{"watch", ErrStalled}
		case ev, ok := <-stream.ResultChan():
			if !ok {
				age := time.Since(opened)
				l.broken = age < timeout-shortWatch
				return l.ended(age, progress)
			}
			l.w.received()
			news, err := l.deliver(ctx, ev)
			if err != nil {
				return err
			}
			if news {
				progress = true
				l.failures = 0
			}
			// Bookmarks before the position do not end the silence: a server that was restored
			// from a backup may send them until it has reached the position again.
			if timer != nil && (news || !l.older(ev.Object)) {
				timer.Reset(l.w.silence()) // the consumer's time is not the server's
			}
		}
	}
}

// ended returns the error for a stream that was closed without one. Servers close a
// watch after some minutes; a server that always closes watches early is failing.
func (l *loop[T]) ended(age time.Duration, progress bool) error {
	switch {
	case age >= healthyWatch, progress && age >= shortWatch:
		return nil
	case !progress && age < shortWatch:
		return &failure{"watch", errShort}
	}
	return errPause
}

// deliver sends an event of the server unless it is a repetition. It reports whether
// the event was new.
func (l *loop[T]) deliver(ctx context.Context, ev watch.Event) (news bool, err error) {
	if ev.Type == watch.Error || isStatus(ev.Object) {
		return false, &failure{"watch", apierrors.FromObject(ev.Object)}
	}
	switch ev.Type {
	case watch.Bookmark:
		object, err := meta.Accessor(ev.Object)
		if err != nil {
			return false, &failure{"bookmark", err}
		}
		if !l.advance(object.GetResourceVersion()) {
			return false, nil
		}
		return true, l.send(ctx, Event[T]{Type: watch.Bookmark, ResourceVersion: l.rv})
	case watch.Added, watch.Modified, watch.Deleted:
	default:
		return false, &failure{"watch", fmt.Errorf("the server sends events of an unknown type %q", ev.Type)}
	}

	object, ok := ev.Object.(T)
	if !ok {
		return false, misuse{fmt.Errorf("watcher: the watch yields %T, not the %T of RetryWatcher: use the type that the client returns", ev.Object, object)}
	}
	if l.repeated(ev.Type, object) {
		return false, nil
	}
	if ev.Type == watch.Deleted {
		delete(l.known, id(object))
		l.deleted = object
	} else {
		l.known[id(object)] = object
	}
	l.advance(object.GetResourceVersion())
	return true, l.send(ctx, Event[T]{Type: ev.Type, Object: object, ResourceVersion: l.rv})
}

// isStatus reports whether the object is the API's error object. Some servers send it
// with another type of event than Error.
func isStatus(object runtime.Object) bool {
	if _, ok := object.(*metav1.Status); ok || object == nil {
		return ok
	}
	return object.GetObjectKind().GroupVersionKind() == metav1.Unversioned.WithKind("Status")
}

// older reports whether an event is from before the position.
func (l *loop[T]) older(object runtime.Object) bool {
	o, err := meta.Accessor(object)
	if err != nil {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), l.rv)
	return err == nil && order < 0
}

// newer reports whether a's version is greater than b's.
func newer(a, b metav1.Object) bool {
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order > 0
}

// repeated reports whether the consumer has already received the event. Events that
// cannot be compared count as new, because a lost event is worse than a repeated one.
func (l *loop[T]) repeated(eventType watch.EventType, object T) bool {
	rv := object.GetResourceVersion()
	last, ok := l.known[id(object)]
	if !ok {
		if eventType == watch.Deleted && l.complete {
			return true // it never existed, or its deletion was reported
		}
		// Events come in the order of their versions.
		order, err := resourceversion.CompareResourceVersion(rv, l.rv)
		return err == nil && order <= 0
	}
	order, err := resourceversion.CompareResourceVersion(rv, last.GetResourceVersion())
	if err != nil {
		return eventType != watch.Deleted && rv != "" && rv == last.GetResourceVersion()
	}
	// Some servers report a deletion with the version of the last change.
	return order < 0 || order == 0 && eventType != watch.Deleted
}

// advance moves the position forward and reports whether it moved. Without a position
// nothing moves: a watch without a version begins with the existing objects in any order.
func (l *loop[T]) advance(rv string) bool {
	if order, err := resourceversion.CompareResourceVersion(rv, l.rv); rv == "" || l.rv == "" || rv == l.rv || err == nil && order < 0 {
		return false
	}
	l.rv = rv
	return true
}

// id returns the UID, which differs for two objects of the same name. Some aggregated
// servers set no UID; then it returns the name.
func id(object metav1.Object) types.UID {
	if uid := object.GetUID(); uid != "" {
		return uid
	}
	return types.UID(object.GetNamespace() + "/" + object.GetName())
}
