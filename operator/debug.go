package operator

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/debug"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/queue"
)

// observed has what the page of package debug shows of an operator.
type observed struct {
	leader atomic.Pointer[debug.Leader] // nil before the first term
}

// lead runs the controllers, and notes the term for the page.
func (op *Operator) lead(ctx context.Context) error {
	if op.Debug == nil {
		return op.reconcile(ctx)
	}
	term, _ := leader.TermFrom(ctx)
	l := debug.Leader{Leading: true, Term: term.Number, Since: time.Now()}
	op.observed.leader.Store(&l)
	defer func() {
		l := debug.Leader{Term: term.Number, Since: time.Now()}
		op.observed.leader.Store(&l)
	}()
	return op.reconcile(ctx)
}

// assemble gives the pieces to the page.
func (op *Operator) assemble() {
	p := op.Debug
	if p.Title == "" {
		p.Title = op.options.Name
	}
	if op.Elector != nil && p.Leader == nil {
		p.Leader = func() debug.Leader {
			var l debug.Leader
			if now := op.observed.leader.Load(); now != nil {
				l = *now
			}
			l.Lease = types.NamespacedName{Namespace: op.Elector.Namespace, Name: op.Elector.Name}.String()
			return l
		}
	}
	if p.Informers == nil {
		p.Informers = func() []debug.Informer { return op.informers(op.Informers.LastMutations()) }
	}
	for _, c := range op.controllers {
		if c.debug == nil { // it has no informer, or Debug was set late
			c.debug = p.Controller(c.Loop.Name)
		}
		loop := &c.Loop
		loop.Hook = c.debug.Hook(loop.Hook)
		loop.Gate = c.debug.Gate(loop.Gate)
		c.debug.Loop = loop
		if q, ok := loop.Queue.(*queue.Queue[types.NamespacedName]); ok {
			c.debug.Queue = q
		}
	}
}

// informers returns the informers for the page.
func (op *Operator) informers(mutated map[string]informer.Mutation) (list []debug.Informer) {
	data := op.Informers.LastEvents()
	for _, s := range op.sources {
		i := debug.Informer{Name: s.String(), LastData: data[s.String()]}
		i.Objects, i.Bytes = s.seen.holds()
		if m, ok := mutated[i.Name]; ok {
			i.Mutated = m.Key + " " + m.Path
		}
		if at := s.seen.last.Load(); at != 0 {
			i.LastEvent = time.Unix(0, at)
		}
		list = append(list, i)
	}
	return list
}

// adder returns what the events of a resource add keys to.
func (c *Controller) adder(resource schema.GroupResource) debug.Adder {
	source := c.Loop.Source(resource.Resource)
	if c.op.Debug == nil {
		return source
	}
	if c.debug == nil {
		c.debug = c.op.Debug.Controller(c.Loop.Name)
	}
	return c.debug.Source(resource.Resource, source)
}
