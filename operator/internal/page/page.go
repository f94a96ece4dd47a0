// Package page shows an operator on the page of package debug.
package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/debug"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/operator/internal/source"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/serve"
	"github.com/controllerkit/controllerkit/shutdown"
)

// Server returns a server of a page and of the profiles of the process at a loopback address.
func Server(address string, page http.HandlerFunc) (*http.Server, error) {
	mux := http.NewServeMux()
	mux.Handle("/debug/controllers", page)
	mux.Handle("/debug/pprof/", debug.Profiles())
	return serve.New(serve.Config{Addr: address, Handler: mux})
}

// Serve returns a part that serves a page. If the system refuses its address, for example because another
// process has it, the part logs it once and tries again: an operator works without its page.
func Serve(server *http.Server) func(context.Context) error {
	serve := shutdown.Server(server)
	return func(ctx context.Context) error {
		const every = 10 * time.Second
		for attempt := 1; ; attempt++ {
			err := serve(ctx)
			if listen, ok := errors.AsType[*net.OpError](err); !ok || listen.Op != "listen" {
				return err
			}
			if _, refused := errors.AsType[*os.SyscallError](err); !refused {
				return err // the address is not valid
			}
			if attempt == 1 {
				klog.FromContext(ctx).Error(err, "Cannot serve the debug page, trying again", "every", every)
			}
			select {
			case <-time.After(every):
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// Endpoints adds the endpoints of an operator that the caller's mux does not have.
func Endpoints(mux *http.ServeMux, metrics, ready, live http.Handler) error {
	for _, endpoint := range []struct {
		path string
		http.Handler
	}{{"/metrics", metrics}, {"/readyz", ready}, {"/livez", live}} {
		path := endpoint.path
		if _, pattern := mux.Handler(&http.Request{Method: http.MethodGet, URL: &url.URL{Path: path}}); pattern == path {
			continue
		}
		// A pattern with a method, such as GET /{name}, conflicts with one for all methods.
		if handle(mux, path, endpoint) != nil {
			if conflict := handle(mux, "GET "+path, endpoint); conflict != nil {
				text, _, _ := strings.Cut(fmt.Sprint(conflict), ":\n")
				return fmt.Errorf("the Mux of the operator takes no handler of %s: add one, or remove the pattern that conflicts: %s", path, text)
			}
		}
	}
	return nil
}

// handle adds a handler, and returns the value of the panic of a mux that has a pattern in conflict, or nil.
func handle(mux *http.ServeMux, pattern string, h http.Handler) (conflict any) {
	defer func() { conflict = recover() }()
	mux.Handle(pattern, h)
	return nil
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
