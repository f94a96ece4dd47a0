// Package page shows an operator on the page of package debug.
package page

import (
	"cmp"
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/debug"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/operator/internal/source"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/serve"
)

// Server returns a server of a page and of the profiles of the process at a loopback address.
func Server(address string, page http.HandlerFunc) (*http.Server, error) {
	mux := http.NewServeMux()
	mux.Handle("/debug/controllers", page)
	mux.Handle("/debug/pprof/", debug.Profiles())
	return serve.New(serve.Config{Addr: address, Handler: mux})
}

// A Term is the present or the last term of this replica. The zero value has none.
type Term struct {
	current atomic.Pointer[debug.Leader]
}

// Lead calls work, which runs in the term of ctx.
func (t *Term) Lead(ctx context.Context, work func(context.Context) error) error {
	term, _ := leader.TermFrom(ctx)
	t.current.Store(&debug.Leader{Leading: true, Term: term.Number, Since: time.Now()})
	defer func() { t.current.Store(&debug.Leader{Term: term.Number, Since: time.Now()}) }()
	return work(ctx)
}

// Fill sets the zero fields of a page. elector is nil without an election.
func (t *Term) Fill(p *debug.Page, title string, elector *leader.Elector, set *informer.Set, sources source.Set) {
	p.Title = cmp.Or(p.Title, title)
	if elector != nil && p.Leader == nil {
		p.Leader = func() debug.Leader {
			var l debug.Leader
			if now := t.current.Load(); now != nil {
				l = *now
			}
			l.Lease = types.NamespacedName{Namespace: elector.Namespace, Name: elector.Name}.String()
			return l
		}
	}
	if p.Informers == nil {
		p.Informers = func() []debug.Informer { return list(sources, set.LastEvents(), set.LastMutations()) }
	}
}

func list(sources source.Set, data map[string]time.Time, mutated map[string]informer.Mutation) (all []debug.Informer) {
	for _, s := range sources {
		i := debug.Informer{Name: s.String(), LastEvent: s.Held.LastEvent(), LastData: data[s.String()]}
		i.Objects, i.Bytes = s.Held.Size()
		if m, ok := mutated[i.Name]; ok {
			i.Mutated = m.Key + " " + m.Path
		}
		all = append(all, i)
	}
	return all
}

// Observe makes a loop tell its part of the page what it does.
func Observe(c *debug.Controller, loop *reconcile.Controller[types.NamespacedName]) {
	loop.Hook = c.Hook(loop.Hook)
	loop.Gate = c.Gate(loop.Gate)
	c.Loop = loop
	if q, ok := loop.Queue.(*queue.Queue[types.NamespacedName]); ok {
		c.Queue = q
	}
}
