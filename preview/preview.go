package preview

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// A Preview collects the changes that the calls of one process would make, once. The zero Preview is ready to use. It must
// not be copied, and its methods may be called concurrently.
type Preview struct {
	mu       sync.Mutex // guards the fields below
	calls    map[id]*call
	begun    int            // calls
	begunOf  map[string]int // those of a key
	failed   map[id]bool    // whose last call failed
	stray    call           // the writes without a call
	queues   map[any]bool   // with work left
	done     chan struct{}
	ended    bool
	verdicts map[string]verdict // by group, version, resource and subresource, of extensions
}

// id names a key.
type id struct{ controller, key string }

// A call is the last call of a key.
type call struct {
	mu      sync.Mutex // guards the fields below
	changes []Change
	skipped []string
	omitted int
	err     error
	after   map[string][]byte // the new objects as JSON, by path; nil if they would be gone
}

// callKey is the key of a *call in a context.
type callKey struct{}

// Begin returns the context of a call of a controller with a key, and a function that gets the result of the call, nil
// for a success. A controllerkit.WaitingError is no failure. If the key runs again, the later call counts.
func (p *Preview) Begin(ctx context.Context, controller, key string) (context.Context, func(error)) {
	c := &call{}
	p.mu.Lock()
	if p.calls == nil {
		p.calls, p.begunOf = map[id]*call{}, map[string]int{}
	}
	p.calls[id{controller, key}] = c
	p.begun++
	p.begunOf[key]++
	p.mu.Unlock()
	ctx = context.WithValue(context.WithValue(ctx, callKey{}, c), calls.Preview{}, c.skip)
	ctx = context.WithValue(ctx, calls.Previewed{}, c.unsent)
	return ctx, func(err error) {
		c.mu.Lock()
		c.err, c.after = err, nil
		c.mu.Unlock()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.failed == nil {
			p.failed = map[id]bool{}
		}
		if delete(p.failed, id{controller, key}); err != nil && kube.Waits(err) == 0 {
			p.failed[id{controller, key}] = true
		}
	}
}

// progress returns how many calls began, and how many of the key, and whether the last call of any key failed.
func (p *Preview) progress(key string) (begun, own int, fails bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.begun, p.begunOf[key], len(p.failed) > 0
}

const (
	maxText  = 1 << 10 // bytes of an error or a skipped effect
	maxShown = 1000    // changes, and skipped effects, of a call
)

func (c *call) skip(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.skipped) == maxShown {
		c.omitted++
		return
	}
	c.skipped = append(c.skipped, kube.Printable(text, maxText))
}

func (c *call) unsent(w calls.Unsent) {
	c.change(Change{Action: Action(w.Action), Resource: w.Resource, Namespace: w.Namespace, Name: w.Name, Note: kube.Printable(w.Note, maxText)})
}

func (c *call) change(change Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.changes) == maxShown {
		c.omitted++
		return
	}
	c.changes = append(c.changes, change)
}

// Skip reports whether ctx is that of a call in a preview. Report then shows the text, which
// describes the effect:
//
//	if preview.Skip(ctx, "make the DNS record %s", name) {
//		return nil
//	}
//
// It is for effects outside of the API server. Outside of a preview it costs no memory but its arguments.
func Skip(ctx context.Context, format string, args ...any) bool {
	note, on := calls.InPreview(ctx)
	if on {
		note(fmt.Sprintf(format, args...))
	}
	return on
}

// Run calls run with a context that is done when all queues of [NewQueue] are empty and their calls have ended. It
// returns the error of run, or one if ctx was done before. A queue counts as empty only after
// its loop has asked for a key. Without a queue the context ends with ctx. Loops that begin after that need
// another Preview: Run returns an error.
func (p *Preview) Run(ctx context.Context, run func(context.Context) error) error {
	p.mu.Lock()
	done, ended := p.doneLocked(), p.ended
	p.mu.Unlock()
	if ended {
		return errors.New("preview: each key of the Preview has run before: use another Preview for these loops")
	}
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() { // ends with running
		select {
		case <-done:
			stop(errDone) // without an effect after the end of ctx, which also ends the loops
		case <-running.Done():
		}
	}()
	err := run(running)
	if err == nil && !errors.Is(context.Cause(running), errDone) {
		err = errors.New("preview: it was stopped before each key has run")
	}
	return err
}

var errDone = errors.New("each key has run")

func (p *Preview) doneLocked() chan struct{} {
	if p.done == nil {
		p.done = make(chan struct{})
	}
	return p.done
}

// note notes whether a queue has work left. An event can give a queue work that had none.
func (p *Preview) note(queue any, work bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if work {
		p.queues[queue] = true
		return
	}
	delete(p.queues, queue)
	if len(p.queues) == 0 && !p.ended {
		p.ended = true
		close(p.doneLocked())
	}
}

// Report returns the changes of the calls that have ended, in the order of controllers and keys.
func (p *Preview) Report() *Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &Report{Keys: len(p.calls)}
	ids := make([]id, 0, len(p.calls))
	for id := range p.calls {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b id) int {
		return cmp.Or(cmp.Compare(a.controller, b.controller), cmp.Compare(a.key, b.key))
	})
	for _, id := range ids {
		r.add(id, p.calls[id])
	}
	r.add(id{}, &p.stray)
	return r
}
