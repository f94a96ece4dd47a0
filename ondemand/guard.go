package ondemand

import (
	"fmt"
	"runtime/debug"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/internal/kube"
)

const (
	maxStack   = 4096        // bounds the stack of a panic in the log
	panicEvery = time.Second // is the least time between two lines of a handler
)

// guard is a handler whose panics are logged. client-go would end the process. It calls the
// methods one after another, so the fields have no lock.
type guard struct {
	cache.ResourceEventHandler
	shared  *shared
	logged  time.Time // of the last line
	omitted int       // panics since then
}

// OnAdd implements cache.ResourceEventHandler.
func (g *guard) OnAdd(obj any, isInInitialList bool) {
	defer g.recovered()
	g.ResourceEventHandler.OnAdd(obj, isInInitialList)
}

// OnUpdate implements cache.ResourceEventHandler.
func (g *guard) OnUpdate(oldObj, newObj any) {
	defer g.recovered()
	g.ResourceEventHandler.OnUpdate(oldObj, newObj)
}

// OnDelete implements cache.ResourceEventHandler.
func (g *guard) OnDelete(obj any) {
	defer g.recovered()
	g.ResourceEventHandler.OnDelete(obj)
}

// recovered is deferred.
func (g *guard) recovered() {
	reason := recover()
	if reason == nil {
		return
	}
	if time.Since(g.logged) < panicEvery {
		g.omitted++ // a handler can panic at each of many objects
		return
	}
	stack := debug.Stack()
	g.shared.logger.Error(fmt.Errorf("panic: %s", kube.Printable(fmt.Sprint(reason), maxText)), "A handler panicked and missed the event",
		"informer", g.shared.name, "handler", fmt.Sprintf("%T", g.ResourceEventHandler), "omitted", g.omitted, "stack", string(stack[:min(len(stack), maxStack)]))
	g.logged, g.omitted = time.Now(), 0
}
