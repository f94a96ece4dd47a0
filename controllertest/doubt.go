package controllertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// A run has no outcome if something other than the controller decided how it ended: a request
// of the user that the API server did not serve in time, or an observer that did not see the
// writes. Such a run is neither passed nor failed.

// doubt stores that the run has no outcome, and why.
func (r *run) doubt(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	why := cut(fmt.Sprintf(format, args...), 1000)
	r.noteLocked("not judged: %s", why)
	if r.useless {
		return
	}
	r.useless, r.why = true, why
}

// overlooks reports whether the API server has broken a promise of its own. Then the run has no findings.
func (r *run) overlooks() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.overlooked == "" {
		return false
	}
	r.findings, r.useless, r.why = nil, true, r.overlooked
	r.noteLocked("not judged: %s", r.why)
	return true
}

// doubtful returns why the run has no outcome, if it has none.
func (r *run) doubtful() (why string, doubtful bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.why, r.useless
}

// unreached reports whether the API server or the connection to it is the cause of an error. The
// end of the context of a step is another error: the step may have waited for the controller.
func unreached(err error) bool {
	if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return false
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return true
	}
	for _, lost := range []error{io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.ECONNREFUSED, syscall.EPIPE} {
		if errors.Is(err, lost) {
			return true
		}
	}
	if _, ok := errors.AsType[*url.Error](err); ok {
		return true
	}
	return apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsServiceUnavailable(err)
}

// userAsksLocked stores that the user sends a request. It returns the function to call at its end.
func (r *run) userAsksLocked(op *fault.Op) (finally func()) {
	sent := time.Now()
	r.slow.begin(op, sent)
	r.unanswered[op] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		now := time.Now()
		r.slow.end(op, now)
		if r.unanswered[op] && now.Sub(sent) > slowAnswer {
			r.lost = fmt.Sprintf("the API server did not respond in %v to the user's request: %s", now.Sub(sent).Round(time.Millisecond), r.signatureLocked(op))
		}
		delete(r.unanswered, op)
	}
}

// userGot stores the status of a response to the user.
func (r *run) userGot(op *fault.Op, status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unanswered[op] = false
	if op.IsWrite() && status < 300 {
		r.lastFault = time.Now()
	}
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		r.lost = fmt.Sprintf("the API server responded with status %d to the user's request: %s", status, r.signatureLocked(op))
	}
}

// hindered returns why a step or an action of the user failed, if the controller cannot be the
// cause. The action began at a time.
func (r *run) hindered(err error, began time.Time) (why string, hindered bool) {
	if unreached(err) {
		return fmt.Sprintf("a request of the user failed on its way: %v", err), true
	}
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost != "" {
		return fmt.Sprintf("%s: %v", r.lost, err), true
	}
	limit, waited := now.Sub(began)/10, errors.Is(err, context.DeadlineExceeded)
	if errors.Is(err, errLate) { // its deadline was that much later
		limit, waited = maxLate*r.x.options.ConvergeTimeout-1, true
	}
	if late := r.lateLocked(now); waited && late > limit {
		return fmt.Sprintf("the machine or the API server was busy for %v of %v of a step that waited: %v", late.Round(time.Millisecond), now.Sub(began).Round(time.Millisecond), err), true
	}
	return "", false
}

// endless is the number of writes without rest that count as endless, also on a busy machine.
const endless = 50

// unjudged returns why it is unknown whether the cluster would come to rest, if it is unknown: the
// machine hindered the controller for too long, and the controller did not write without end.
func (r *run) unjudged() (why string, unjudged bool) {
	limit := maxLate * r.x.options.ConvergeTimeout
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.overlooked != "" {
		return r.overlooked, true
	}
	if late := r.lateLocked(time.Now()); late >= limit && r.wrotes < endless {
		return fmt.Sprintf("no rest, but the observer was late, a request waited for the API server, or this process did not run, for %v: use a machine with less load, or set a smaller Options.Parallel", late.Round(time.Millisecond)), true
	}
	return "", false
}

// writesOn reports whether the controller or the World has written very often since the last
// fault or step.
func (r *run) writesOn() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wrotes >= endless
}
