package watcher

import (
	"context"
	"errors"
	"net/http/httptrace"
	"sync"
	"time"
)

// repeatedAfter is how long a watch request may take to return after its response has
// begun. Later than that, the client has not accepted the response and repeats the
// request.
const repeatedAfter = time.Second

// errRepeated is the Err of a Retrying event for a request that the client repeats
// without returning. client-go does so up to ten times if a response asks for a pause.
var errRepeated = errors.New("the server delays the request (status 429, or 5xx with Retry-After) and the client repeats it")

// request is one call of the Source. Its context ends with ErrStalled when the server
// is silent for the silence timeout. An HTTP trace shows the attempts that the client
// makes within the call.
type request struct {
	silence time.Duration // 0 or less means no limit
	watches bool          // the response has no end
	end     context.CancelCauseFunc

	// repeated receives when a response was not accepted.
	repeated chan struct{}
	// unaccepted sends to repeated if the response of a watch is not accepted in time.
	unaccepted *time.Timer
	// stalled ends the context. It is nil without a silence timeout.
	stalled *time.Timer

	mu       sync.Mutex // guards the fields below and the two timers
	returned bool
	began    bool // a response has begun that was not reported as repeated
}

// newRequest returns the request and the context for the call. After the call, the
// caller ends the context when it needs its result no longer.
func newRequest(ctx context.Context, silence time.Duration, watches bool) (*request, context.Context) {
	r := &request{silence: silence, watches: watches, repeated: make(chan struct{}, 1)}
	ctx, r.end = context.WithCancelCause(ctx)
	if silence > 0 {
		r.stalled = time.AfterFunc(silence, r.stall)
	}
	return r, httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn:              func(string) { r.attempted() },
		GotFirstResponseByte: r.responded,
	})
}

func (r *request) stall() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.returned {
		r.end(ErrStalled)
	}
}

// attempted is called when the client begins to send the request, also again.
func (r *request) attempted() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stalled != nil {
		r.stalled.Reset(r.silence)
	}
	if r.began && !r.watches {
		r.report()
	}
	r.began = r.began && r.watches
}

// responded is called when a response begins. For a watch, the silence timeout does not
// run between a response and the next attempt: the client waits as the server asked. A
// list may still have to read its response.
func (r *request) responded() {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.stalled == nil:
	case r.watches:
		r.stalled.Stop()
	default:
		r.stalled.Reset(r.silence)
	}
	if !r.began && r.watches {
		r.unaccepted = time.AfterFunc(repeatedAfter, r.report)
	}
	r.began = true
}

// report lets call report the repetition. A second one before that is the same.
func (r *request) report() {
	select {
	case r.repeated <- struct{}{}:
	default:
	}
}

// reported is called when the repetition was reported. The next response counts again.
func (r *request) reported() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.began = r.began && !r.watches
}

// finish stops both timers. The context does not end with ErrStalled after it, even if a
// late attempt or response starts a timer again.
func (r *request) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.returned = true
	if r.unaccepted != nil {
		r.unaccepted.Stop()
	}
	if r.stalled != nil {
		r.stalled.Stop()
	}
}

// call calls do and waits for it. do runs in another goroutine, so that repeated
// attempts can be reported in the meantime. The error is errLeft if the consumer left
// the loop then, and ErrStalled, whatever do returned, if the server was silent.
func (l *loop[T]) call(ctx context.Context, r *request, step string, do func() error) error {
	err := errors.New("the Source ended its goroutine")
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = do()
	}()
	for {
		select {
		case <-done:
			r.finish()
			if errors.Is(context.Cause(ctx), ErrStalled) {
				err = ErrStalled
			}
			if err != nil {
				return &failure{step, err}
			}
			return nil
		case <-r.repeated:
			r.reported()
			ev := Event[T]{Type: Retrying, Err: &failure{step, errRepeated}, ResourceVersion: l.rv}
			if err := l.send(ctx, ev); errors.Is(err, errLeft) {
				r.end(err)
				<-done
				r.finish()
				return err
			}
		}
	}
}
