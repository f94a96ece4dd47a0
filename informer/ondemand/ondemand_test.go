package ondemand_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer/ondemand"
	"github.com/controllerkit/controllerkit/internal/testcost"
)

// TestShares proves OD2.
func TestShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		made := 0
		informers := &ondemand.Informers[string]{New: func(string) (cache.SharedIndexInformer, error) { made++; return s.informer(), nil }}
		var a, b, c seen
		before := open(t, informers, "x", &a)
		stop := run(quiet(t), informers)
		must(t, before.WaitForSync(t.Context()))
		after := open(t, informers, "x", &b)
		must(t, after.WaitForSync(t.Context()))
		if made != 1 || s.lists != 1 || before.GetStore() != after.GetStore() {
			t.Errorf("two Watches of a key: %d informers, %d lists, want 1, 1 and one store", made, s.lists)
		}
		open(t, informers, "y")
		if made != 2 {
			t.Errorf("another key: %d informers, want 2", made)
		}
		must(t, before.Close(t.Context()))
		if after.IsStopped() {
			t.Error("the informer has stopped while a Watch is open")
		}
		must(t, after.Close(t.Context()))
		if !after.IsStopped() {
			t.Error("the last Close returned before the informer stopped")
		}
		again := open(t, informers, "x", &c)
		must(t, again.WaitForSync(t.Context()))
		if made != 3 || again.GetStore() == after.GetStore() || c.String() != "[first]" {
			t.Errorf("opened again: %d informers, events %v, want 3 and [first]", made, &c)
		}
		must(t, stop())
	})
}

// A Close waits for the handler's running call, drops its later events, and takes none from
// other handlers.
//
// Proves OD1, OD4.
func TestCloseWaitsForHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		informers := of(s)
		stop := run(quiet(t), informers)
		var other seen
		calls, release := make(chan string, 10), make(chan struct{})
		slow := open(t, informers, "x", onAdd(func(name string) { calls <- name; <-release }))
		fast := open(t, informers, "x", &other)
		must(t, fast.WaitForSync(t.Context()))
		<-calls
		s.add("second")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := slow.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "close x: ") {
			t.Errorf("Close = %v while the handler runs, want a deadline exceeded that names x", err)
		}
		s.add("third")
		late := open(t, informers, "x")
		synctest.Wait()
		if got := other.String(); got != "[first second third]" {
			t.Errorf("the other handler saw %s, want all three", got)
		}
		closed := make(chan error, 1)
		go func() { closed <- slow.Close(t.Context()) }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Errorf("Close = %v while the handler runs", err)
		default:
		}
		close(release)
		must(t, <-closed)
		s.add("fourth")
		synctest.Wait()
		if len(calls) > 0 {
			t.Errorf("the handler was called with %q after Close", <-calls)
		}
		if got := other.String(); got != "[first second third fourth]" {
			t.Errorf("the other handler saw %s, want all four", got)
		}
		must(t, late.Close(t.Context()))
		must(t, stop())
	})
}

// A handler that never ends keeps neither the key nor the process.
//
// Proves OD3, OD4.
func TestBlockedHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		informers := of(s)
		informers.StopTimeout = 3 * time.Second
		stop := run(quiet(t), informers)
		calls, release := make(chan string, 10), make(chan struct{})
		w := open(t, informers, "x", onAdd(func(name string) { calls <- name; <-release }))
		<-calls
		done, cancel := context.WithCancel(t.Context())
		cancel()
		if err := w.Close(done); !errors.Is(err, context.Canceled) {
			t.Errorf("Close = %v, want canceled", err)
		}
		again := open(t, informers, "x")
		must(t, again.WaitForSync(t.Context()))
		must(t, again.Close(t.Context()))
		third := open(t, informers, "x", onAdd(func(name string) { calls <- name; <-release }))
		<-calls
		start := time.Now()
		err := stop()
		if err == nil || !strings.HasPrefix(err.Error(), "ondemand: not stopped within 3s: x: a handler is busy") {
			t.Errorf("Run = %v, want an error that names x once", err)
		}
		if d := time.Since(start); d != 3*time.Second {
			t.Errorf("Run ended after %v, want 3s", d)
		}
		close(release)
		must(t, w.Close(t.Context()))
		must(t, third.Close(t.Context()))
	})
}

// TestRunStops proves OD3.
func TestRunStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		informers := of(s)
		stop := run(quiet(t), informers)
		var watches []*ondemand.Watch
		var running atomic.Int32
		for n := range 20 {
			w := open(t, informers, fmt.Sprint(n/2), onAdd(func(string) {
				running.Add(1)
				defer running.Add(-1)
				time.Sleep(time.Second)
			}))
			watches = append(watches, w)
		}
		synctest.Wait()
		if running.Load() != 20 {
			t.Fatalf("%d handlers run, want 20", running.Load())
		}
		must(t, stop())
		if running.Load() != 0 {
			t.Errorf("Run returned while %d handlers run", running.Load())
		}
		for _, w := range watches {
			if !w.IsStopped() {
				t.Error("Run returned before an informer stopped")
			}
			must(t, w.Close(t.Context()))
		}
	})
}

// TestLateNamesAreBounded proves OD3.
func TestLateNamesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		informers := of(&source{})
		stop := run(quiet(t), informers)
		release := make(chan struct{})
		for n := range 15 {
			open(t, informers, fmt.Sprintf("%02d\n", n), onAdd(func(string) { <-release }))
		}
		synctest.Wait()
		if err := stop(); err == nil || !strings.Contains(err.Error(), `00\n, 01\n, `) || !strings.Contains(err.Error(), `, 09\n and 5 more: `) {
			t.Errorf("Run = %v, want ten names and a number", err)
		}
		close(release)
	})
}

// TestPanic tests that if a handler panics, the panic is logged, the handler gets the next
// event, and the process continues.
func TestPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		informers := of(s)
		var log bytes.Buffer
		stop := run(logTo(t.Context(), &log), informers)
		var got seen
		w := open(t, informers, "x", cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { got.OnAdd(obj, false); panic("add of " + got.String()) },
			UpdateFunc: func(_, obj any) { got.OnAdd(obj, false); panic("update") },
			DeleteFunc: func(obj any) { got.OnAdd(obj, false); panic("delete") },
		})
		must(t, w.WaitForSync(t.Context()))
		s.send(watch.Modified, configMap("first", 2))
		s.send(watch.Deleted, configMap("first", 3))
		s.add("second")
		synctest.Wait()
		time.Sleep(time.Second)
		s.add("third")
		synctest.Wait()
		if got.String() != "[first first first second third]" {
			t.Errorf("events %v, want all", &got)
		}
		must(t, w.Close(t.Context()))
		must(t, stop())
		text := log.String()
		if n := strings.Count(text, "A handler panicked"); n != 2 {
			t.Errorf("%d lines in two seconds, want 2:\n%s", n, text)
		}
		for _, want := range []string{`err="panic: add of [first]"`, `informer="x"`, `handler="cache.ResourceEventHandlerFuncs"`, "TestPanic", "omitted=3"} {
			if !strings.Contains(text, want) {
				t.Errorf("the log lacks %s:\n%s", want, text)
			}
		}
	})
}

func TestWaitForSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := &source{listErr: apierrors.NewForbidden(corev1.Resource("configmaps"), "", errors.New("no Role"))}
		never := make(chan struct{})
		defer close(never)
		for _, tt := range []struct {
			name    string
			source  *source
			handler cache.ResourceEventHandler
			idle    bool
			want    string
		}{
			{name: "refused", source: refused, want: "ondemand: x is not synced: too late: the last attempt failed: failed to list *v1.ConfigMap: configmaps is forbidden: no Role"},
			{name: "slow handler", source: &source{}, handler: onAdd(func(string) { <-never }), want: "ondemand: x is not synced: too late: the informer is synced, but SharedIndexInformer *v1.ConfigMap + event handler"},
			{name: "not run", source: &source{}, idle: true, want: "ondemand: x is not synced: too late: no list or watch has failed or is complete: Run was not called"},
		} {
			informers := of(tt.source)
			var failed atomic.Bool
			informers.WatchErrorHandler = func(context.Context, *cache.Reflector, error) { failed.Store(true) }
			if !tt.idle {
				stop := run(quiet(t), informers)
				defer stop()
			}
			w := open(t, informers, "x")
			if tt.handler != nil {
				w = open(t, informers, "x", tt.handler)
			}
			late := errors.New("too late")
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, late)
			err := w.WaitForSync(ctx)
			cancel()
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) || !errors.Is(err, late) {
				t.Errorf("%s: WaitForSync = %v\nwant %s", tt.name, err, tt.want)
			}
			if apierrors.IsForbidden(err) != (tt.source == refused) {
				t.Errorf("%s: IsForbidden(%v) = %v", tt.name, err, apierrors.IsForbidden(err))
			}
			if failed.Load() != (tt.source == refused) {
				t.Errorf("%s: WatchErrorHandler was called = %v", tt.name, failed.Load())
			}
			if tt.handler != nil {
				continue
			}
			waiting := make(chan error, 1)
			go func() { waiting <- w.WaitForSync(t.Context()) }()
			synctest.Wait()
			must(t, w.Close(t.Context()))
			if err := <-waiting; !errors.Is(err, ondemand.ErrClosed) {
				t.Errorf("%s: WaitForSync = %v when the Watch is closed, want ErrClosed", tt.name, err)
			}
		}
	})
}

func TestAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		informers := of(&source{})
		stop := run(quiet(t), informers)
		first, second, third := open(t, informers, "x"), open(t, informers, "x"), open(t, informers, "x")
		var all sync.WaitGroup
		for range 3 { // one Close counts once
			all.Go(func() { must(t, first.Close(t.Context())) })
		}
		all.Wait()
		must(t, first.Close(t.Context()))
		if second.IsStopped() {
			t.Fatal("closing a Watch several times closed others")
		}
		closed := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, ondemand.ErrClosed) {
				t.Errorf("%s = %v, want ErrClosed", what, err)
			}
		}
		_, err := first.AddEventHandler(&seen{})
		closed("AddEventHandler of a closed Watch", err)
		_, err = first.AddEventHandlerWithResyncPeriod(&seen{}, time.Minute)
		closed("AddEventHandlerWithResyncPeriod of a closed Watch", err)
		closed("WaitForSync of a closed Watch", first.WaitForSync(t.Context()))
		must(t, second.WaitForSync(t.Context()))
		must(t, second.Close(t.Context()))
		if objects := second.GetStore().ListKeys(); len(objects) != 1 {
			t.Errorf("the cache of a closed Watch has %q, want the last state", objects)
		}
		must(t, stop())
		_, err = third.AddEventHandler(&seen{})
		closed("AddEventHandler after Run", err)
		closed("WaitForSync after Run", third.WaitForSync(t.Context()))
		_, err = informers.Open("x")
		closed("Open after Run", err)
		must(t, third.Close(t.Context()))
	})
}

// WaitForSync does not wait for a handler that is removed meanwhile: client-go drops the rest of its
// initial list.
func TestWaitForSyncRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		informers := of(s)
		stop := run(quiet(t), informers)
		var kept seen
		w := open(t, informers, "x", &kept)
		must(t, w.WaitForSync(t.Context()))
		s.add("second")
		s.add("third")
		synctest.Wait()
		release := make(chan struct{})
		handle, err := w.AddEventHandler(onAdd(func(string) { <-release }))
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		result := make(chan error, 1)
		go func() { result <- w.WaitForSync(ctx) }()
		synctest.Wait()
		must(t, w.RemoveEventHandler(handle))
		close(release)
		if err := <-result; err != nil {
			t.Errorf("WaitForSync = %v", err)
		}
		must(t, w.Close(t.Context()))
		must(t, stop())
	})
}

// A handler can be removed alone, and a handler that is removed can still be waited for.
//
// Proves OD1.
func TestRemoveEventHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		informers := of(s)
		stop := run(quiet(t), informers)
		var kept, removed seen
		w, other := open(t, informers, "x", &kept), open(t, informers, "x")
		must(t, w.WaitForSync(t.Context()))
		handle, err := w.AddEventHandler(&removed)
		must(t, err)
		must(t, w.WaitForSync(t.Context()))
		must(t, other.RemoveEventHandler(handle)) // a no-op
		var only seen
		first, err := other.AddEventHandler(&only)
		must(t, err)
		must(t, other.WaitForSync(t.Context()))
		must(t, other.RemoveEventHandler(first))
		s.add("second")
		synctest.Wait()
		must(t, shutDown(w, handle))
		must(t, shutDown(w, handle))
		s.add("third")
		synctest.Wait()
		if kept.String() != "[first second third]" || removed.String() != "[first second]" || only.String() != "[first]" {
			t.Errorf("events %v, %v and %v, want the removed handlers to miss the events after their removal alone", &kept, &removed, &only)
		}
		must(t, w.WaitForSync(t.Context())) // not for the removed handler

		// Nobody has asked for the channels of these before they were synced.
		var before, between, after seen
		var handles []cache.ResourceEventHandlerRegistration
		for _, handler := range []*seen{&before, &between, &after} {
			h, err := w.AddEventHandler(handler)
			must(t, err)
			handles = append(handles, h)
		}
		synctest.Wait()
		for range 2 {
			must(t, w.RemoveEventHandler(handles[1]))
		}
		s.add("fourth")
		synctest.Wait()
		if len(before.names) != 4 || len(between.names) != 3 || len(after.names) != 4 {
			t.Errorf("events %v, %v and %v, want the second handler alone to miss the last", &before, &between, &after)
		}
		var old []weak.Pointer[seen]
		for range 10 {
			handler := &seen{}
			old = append(old, weak.Make(handler))
			h, err := w.AddEventHandler(handler)
			must(t, err)
			must(t, shutDown(w, h))
		}
		synctest.Wait()
		held := 0
		// The Watch can refer to the last one, and with the race detector on, one in a hundred runs
		// outlives even the informer.
		if !testcost.Freed(func() bool {
			held = 0
			for _, handler := range old {
				if handler.Value() != nil {
					held++
				}
			}
			return held <= 3
		}) {
			t.Errorf("the Watch keeps references to %d of 10 removed handlers", held)
		}
		calls, release := make(chan string, 10), make(chan struct{})
		handle, err = w.AddEventHandler(onAdd(func(name string) { calls <- name; <-release }))
		must(t, err)
		<-calls
		must(t, w.RemoveEventHandler(handle))
		closed := make(chan error, 1)
		go func() { closed <- w.Close(t.Context()) }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Errorf("Close = %v while a removed handler runs", err)
		default:
		}
		close(release)
		must(t, <-closed)
		must(t, stop())
	})
}

// Handlers that are removed while Close waits for another one do not hold it up.
//
// Proves OD1.
func TestRemoveWhileClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		informers := of(s)
		stop := run(quiet(t), informers)
		other, w := open(t, informers, "x"), open(t, informers, "x")
		release := make(chan struct{})
		var handles []cache.ResourceEventHandlerRegistration
		for _, handler := range []cache.ResourceEventHandler{&seen{}, onAdd(func(string) { <-release }), &seen{}, &seen{}} {
			h, err := w.AddEventHandler(handler)
			must(t, err)
			handles = append(handles, h)
		}
		synctest.Wait()
		must(t, w.RemoveEventHandler(handles[0]))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := w.Close(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("Close = %v while a handler runs", err)
		}
		synctest.Wait()
		for _, h := range handles[2:] {
			must(t, w.RemoveEventHandler(h))
		}
		close(release)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		must(t, w.Close(ctx))
		must(t, other.Close(t.Context()))
		must(t, stop())
	})
}

// Close during the start, before Run, in a handler, and with a done context.
//
// Proves OD1, OD2.
func TestCloseEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		informers := of(s)
		var never seen
		idle, other := open(t, informers, "idle", &never), open(t, informers, "idle", &never)
		must(t, idle.Close(t.Context()))
		must(t, other.Close(t.Context()))
		stop := run(quiet(t), informers)
		synctest.Wait()
		if s.lists != 0 {
			t.Error("an informer that was closed before Run has started")
		}
		for range 100 {
			w := open(t, informers, "x", &never)
			must(t, w.Close(t.Context()))
			if !w.IsStopped() {
				t.Fatal("Close during the start returned before the informer stopped")
			}
		}
		done, cancel := context.WithCancel(t.Context())
		cancel()
		var self *ondemand.Watch
		opened := make(chan struct{})
		self = open(t, informers, "x", onAdd(func(string) { <-opened; _ = self.Close(done) }))
		close(opened)
		must(t, self.Close(t.Context()))
		must(t, stop())
	})
}

// foreign is an informer that another component stops.
type foreign struct{ cache.SharedIndexInformer }

func (foreign) RunWithContext(context.Context) {}

func TestEndedByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		first := true
		informers := &ondemand.Informers[string]{New: func(string) (cache.SharedIndexInformer, error) {
			if first {
				first = false
				return foreign{s.informer()}, nil
			}
			return s.informer(), nil
		}}
		var log bytes.Buffer
		stop := run(logTo(t.Context(), &log), informers)
		w := open(t, informers, "x")
		if err := w.WaitForSync(t.Context()); !errors.Is(err, ondemand.ErrClosed) || !strings.Contains(err.Error(), "the informer of x has stopped") {
			t.Errorf("WaitForSync = %v, want ErrClosed", err)
		}
		again := open(t, informers, "x")
		must(t, again.WaitForSync(t.Context()))
		must(t, w.Close(t.Context()))
		if again.IsStopped() {
			t.Error("the Close of the first informer's Watch stopped the second informer")
		}
		if third := open(t, informers, "x"); third.GetStore() != again.GetStore() {
			t.Error("the Close of the first informer's Watch removed the second informer")
		}
		const line = `"An informer ended by itself" err="ondemand: only ondemand may start and stop an informer" informer="x"`
		if !strings.Contains(log.String(), line) {
			t.Errorf("the log has no line about the end:\n%s", &log)
		}
		must(t, stop())
		if strings.Count(log.String(), line) != 1 {
			t.Errorf("the log has a line about an informer that Run stopped:\n%s", &log)
		}
	})
}

// If the informer stops before Run notices it, AddEventHandler returns ErrClosed too.
func TestAddEventHandlerToEndedInformer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		informer := (&source{}).informer()
		informers := &ondemand.Informers[string]{New: func(string) (cache.SharedIndexInformer, error) { return informer, nil }}
		w := open(t, informers, "x")
		done, cancel := context.WithCancel(quiet(t))
		cancel()
		informer.RunWithContext(done)
		if _, err := w.AddEventHandler(&seen{}); !errors.Is(err, ondemand.ErrClosed) {
			t.Errorf("AddEventHandler = %v, want ErrClosed", err)
		}
	})
}

// slow is an informer whose AddEventHandlerWithOptions waits for release.
type slow struct {
	cache.SharedIndexInformer
	entered, release chan struct{}
}

func (s slow) AddEventHandlerWithOptions(handler cache.ResourceEventHandler, options cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	close(s.entered)
	<-s.release
	return s.SharedIndexInformer.AddEventHandlerWithOptions(handler, options)
}

// A Close also removes a handler that is being added.
//
// Proves OD1.
func TestCloseWhileAdding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		informer := slow{s.informer(), make(chan struct{}), make(chan struct{})}
		informers := &ondemand.Informers[string]{New: func(string) (cache.SharedIndexInformer, error) { return informer, nil }}
		stop := run(quiet(t), informers)
		w, other := open(t, informers, "x"), open(t, informers, "x")
		must(t, other.WaitForSync(t.Context()))
		var late seen
		go func() { _, _ = w.AddEventHandler(&late) }()
		<-informer.entered
		closed := make(chan error, 1)
		go func() { closed <- w.Close(t.Context()) }()
		synctest.Wait()
		close(informer.release)
		must(t, <-closed)
		synctest.Wait()
		s.add("second")
		synctest.Wait()
		if strings.Contains(late.String(), "second") {
			t.Errorf("events %v after Close", &late)
		}
		must(t, stop())
	})
}

func TestBadInput(t *testing.T) {
	var nilInformer *foreign
	started, stopped := (&source{}).informer(), (&source{}).informer()
	ctx, cancel := context.WithCancel(quiet(t))
	var all sync.WaitGroup
	all.Go(func() { started.RunWithContext(ctx) })
	defer all.Wait()
	defer cancel()
	for started.SetTransform(nil) == nil { // until it has started
		runtime.Gosched()
	}
	done, end := context.WithCancel(quiet(t))
	end()
	stopped.RunWithContext(done)
	for want, make := range map[string]func(string) (cache.SharedIndexInformer, error){
		"ondemand: Informers.New is nil: set it":                                      nil,
		"ondemand: open x: no mapping":                                                func(string) (cache.SharedIndexInformer, error) { return nil, errors.New("no mapping") },
		"ondemand: open x: New returned a nil informer":                               func(string) (cache.SharedIndexInformer, error) { return nilInformer, nil },
		"ondemand: open x: New returned an informer that has stopped: return a new":   func(string) (cache.SharedIndexInformer, error) { return stopped, nil },
		"ondemand: open x: New returned an informer that cannot be started: informer": func(string) (cache.SharedIndexInformer, error) { return started, nil },
	} {
		informers := &ondemand.Informers[string]{New: make}
		if _, err := informers.Open("x"); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Open = %v\nwant %s", err, want)
		}
	}
	valid := of(&source{})
	if err := valid.Run(done); err != nil {
		t.Errorf("Run = %v with a done context, want nil", err)
	}
	for want, informers := range map[string]*ondemand.Informers[string]{
		"ondemand: Informers.New is nil: set it":            {},
		"ondemand: Informers.StopTimeout is -1s: set it to": {New: of(nil).New, StopTimeout: -time.Second},
		"ondemand: Run was called twice":                    valid,
	} {
		if err := informers.Run(done); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Run = %v\nwant %s", err, want)
		}
	}
	w := open(t, of(&source{}), "x")
	var nilHandler *seen
	if _, err := w.AddEventHandler(nilHandler); err == nil || !strings.Contains(err.Error(), "the handler is nil") {
		t.Errorf("AddEventHandler(nil) = %v", err)
	}
	if err := w.RemoveEventHandler(nil); err == nil || !strings.Contains(err.Error(), "the handle is nil") {
		t.Errorf("RemoveEventHandler(nil) = %v", err)
	}
	w.Run(nil)
	w.RunWithContext(t.Context())
	for _, err := range []error{w.SetTransform(nil), w.SetWatchErrorHandler(nil), w.SetWatchErrorHandlerWithContext(nil)} {
		if err == nil || !strings.HasPrefix(err.Error(), "ondemand: Informers runs the informer") {
			t.Errorf("a method that sets what Informers sets = %v", err)
		}
	}
}

// Many informers start, sync and stop, by eight goroutines that share keys. No goroutine stays,
// which would end the bubble with an error, and no memory.
//
// Proves OD1, OD2.
func TestManyStartsAndStops(t *testing.T) {
	const users, rounds = 8, starts / 8
	var objects sync.Map // weak pointers to the objects of all caches
	var made, calls atomic.Int64
	var informers *ondemand.Informers[int]
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		informers = &ondemand.Informers[int]{New: func(int) (cache.SharedIndexInformer, error) { made.Add(1); return s.informer(), nil }}
		stop := run(quiet(t), informers)
		var all sync.WaitGroup
		for user := range users {
			all.Go(func() {
				random := rand.New(rand.NewPCG(1, uint64(user)))
				for range rounds {
					var closed atomic.Bool
					w, err := informers.Open(random.IntN(100 * users))
					if err != nil {
						t.Error(err)
						return
					}
					_, err = w.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
						calls.Add(1)
						objects.Store(weak.Make(obj.(*corev1.ConfigMap)), true)
						if closed.Load() {
							t.Error("a handler runs after Close")
						}
					}})
					if err != nil {
						t.Error(err)
					}
					if random.IntN(4) > 0 {
						if err := w.WaitForSync(t.Context()); err != nil {
							t.Error(err)
						}
					}
					if err := w.Close(t.Context()); err != nil {
						t.Error(err)
					}
					closed.Store(true)
				}
			})
		}
		all.Wait()
		must(t, stop())
	})
	if made.Load() < users*rounds*9/10 || calls.Load() < users*rounds/2 {
		t.Errorf("%d informers and %d events, want about %d: this test proves little", made.Load(), calls.Load(), users*rounds)
	}
	kept := 0
	if !testcost.Freed(func() bool {
		kept = 0
		objects.Range(func(object, _ any) bool {
			if object.(weak.Pointer[corev1.ConfigMap]).Value() != nil {
				kept++
			}
			return true
		})
		return kept == 0
	}) {
		t.Errorf("%d of %d objects are still in memory", kept, calls.Load())
	}
	runtime.KeepAlive(informers)
}

// A handler that is added to a running Watch first gets the objects of the cache as the initial
// list, is synced after them, and gets nothing after its end.
func TestHandlersAtRunTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		informers := of(s)
		ctx, cancel := context.WithCancel(quiet(t))
		done := make(chan error, 1)
		go func() { done <- informers.Run(ctx) }()
		w, err := informers.Open("key")
		if err != nil {
			t.Fatal(err)
		}
		if err := w.WaitForSync(t.Context()); err != nil {
			t.Fatal(err)
		}
		for n := range 20 {
			initial, later := 0, 0
			release := make(chan struct{})
			h, err := w.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{AddFunc: func(_ any, isInInitialList bool) {
				<-release
				if isInInitialList {
					initial++
				} else {
					later++
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
			s.add(fmt.Sprint("added-", n))
			synctest.Wait()
			if h.HasSynced() {
				t.Error("the handler is synced before it got the objects")
			}
			close(release)
			synctest.Wait()
			if !h.HasSynced() || initial != n+1 || later != 1 {
				t.Errorf("synced %t, %d initial events, %d others, want %d and 1", h.HasSynced(), initial, later, n+1)
			}
			if err := shutDown(w, h); err != nil {
				t.Fatal(err)
			}
			if n < 19 {
				continue
			}
			s.add("last")
			synctest.Wait()
			if initial+later != n+2 {
				t.Error("the handler got an event after its end")
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
