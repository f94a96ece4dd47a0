package scope

import (
	"fmt"
	"sync"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/guard"
	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/internal/malformed"
)

type kind int

const (
	onAdd kind = iota
	onUpdate
	onDelete
	onLeave  // a deletion from the selection
	onSynced // all initial events were before it
)

// event is a call of a handler.
type event struct {
	kind     kind
	initial  bool
	old, new object
}

// object is an object as the informer of a part has it. The zero value is none.
type object struct {
	of  *part
	obj any
}

// typed returns the object, or a *malformed.Object.
func (o object) typed() any {
	if o.of == nil || o.of.typed == nil {
		return o.obj
	}
	return o.of.typed(o.obj)
}

// listener calls one handler, and is its registration. Its queue is not bounded, like the
// queues of client-go's informers.
type listener struct {
	scope   *Informer
	handler *guard.Handler
	fitting *malformed.Handler // calls handler
	alone   bool               // the handler needs the metadata alone
	ended   chan struct{}      // closed when the handler will not be called again
	done    chan struct{}      // closed when the handler is synced
	stopped chan struct{}
	stop    func()
	started bool // guarded by the selection

	wake  chan struct{} // has an element if there are events
	mu    sync.Mutex    // guards queue
	queue []event
}

func newListener(i *Informer, handler cache.ResourceEventHandler) *listener {
	l := &listener{
		scope:   i,
		alone:   headers.Alone(handler),
		handler: &guard.Handler{ResourceEventHandler: handler}, // run sets its logger
		ended:   make(chan struct{}),
		done:    make(chan struct{}),
		stopped: make(chan struct{}),
		wake:    make(chan struct{}, 1),
	}
	l.fitting = malformed.Fit(l.handler)
	l.stop = sync.OnceFunc(func() { close(l.stopped) })
	return l
}

// HasSynced implements cache.ResourceEventHandlerRegistration.
func (l *listener) HasSynced() bool { return cache.IsDone(l) }

// HasSyncedChecker implements cache.ResourceEventHandlerRegistration.
func (l *listener) HasSyncedChecker() cache.DoneChecker { return l }

// Name implements cache.DoneChecker.
func (l *listener) Name() string {
	return fmt.Sprintf("scope + handler %T", l.handler.ResourceEventHandler)
}

// Done implements cache.DoneChecker.
func (l *listener) Done() <-chan struct{} { return l.done }

// ShutdownChan is for cache.ShutDownEventHandler.
func (l *listener) ShutdownChan() <-chan struct{} { return l.ended }

// add appends events.
func (l *listener) add(events []event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, events...)
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// take removes and returns the events.
func (l *listener) take() []event {
	l.mu.Lock()
	defer l.mu.Unlock()
	events := l.queue
	l.queue = nil
	return events
}

// run calls the handler until stop is called.
func (l *listener) run(logger klog.Logger) {
	defer close(l.ended)
	l.handler.Logger = func() klog.Logger { return logger }
	for {
		select {
		case <-l.stopped:
			return
		case <-l.wake:
		}
		for _, e := range l.take() {
			select {
			case <-l.stopped:
				return
			default:
				l.call(e)
			}
		}
	}
}

func (l *listener) call(e event) {
	old, obj := e.old.obj, e.new.obj
	if !l.alone {
		old, obj = e.old.typed(), e.new.typed()
	}
	switch e.kind {
	case onAdd:
		l.fitting.OnAdd(obj, e.initial)
	case onUpdate:
		l.fitting.OnUpdate(old, obj)
	case onDelete:
		l.fitting.OnDelete(old)
	case onLeave:
		l.fitting.Leave(old)
	case onSynced:
		close(l.done)
	}
}
