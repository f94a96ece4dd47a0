package shutdown

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Context returns a copy of parent that ends at the first SIGINT or SIGTERM.
// [context.Cause] then names the signal ("received SIGTERM"), and errors.Is
// finds [context.Canceled] in it.
//
// From then on both signals have their default action again, so a second one
// kills the process as the operating system does it: the parent process and
// the shell see death by that signal, and no deferred function runs. The first
// signal never kills, also when parent or cancel's caller has already begun to
// stop the process by other means.
//
// cancel ends the context, gives both signals back and waits for the goroutine
// that listens for them; call it when the process is done, usually with defer.
// It may be called more than once and from several goroutines.
//
// The default action returns only if nothing else in the process asked for the
// same signals with [signal.Notify]. On Windows Ctrl-C and Ctrl-Break arrive as
// SIGINT; closing the console, log-off and shutdown arrive as SIGTERM, after
// which Windows ends the process by itself after some seconds.
func Context(parent context.Context) (ctx context.Context, cancel context.CancelFunc) {
	ctx, end := context.WithCancelCause(parent)
	// Room for two: a second signal that arrives before the first is handled
	// must not be dropped, because the user means it.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)

	stop := make(chan struct{})
	var once sync.Once
	var wg sync.WaitGroup
	// The goroutine does not end with parent: a process that is already
	// stopping must still survive its first signal and die at the second.
	wg.Go(func() {
		select {
		case sig := <-signals:
			signal.Stop(signals) // before end: whoever saw ctx end may rely on the second signal
			end(signalError{sig})
		case <-stop:
			signal.Stop(signals)
			end(nil)
			return
		}
		select {
		case sig := <-signals: // came before Stop: send it again, now that its default action is back
			raise(sig)
		default:
		}
	})
	return ctx, func() {
		once.Do(func() { close(stop) })
		wg.Wait()
		end(nil)
	}
}

// raise sends sig to this process. Where that is not possible (Windows) the
// signal is lost, and the next one has the default action.
func raise(sig os.Signal) {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Signal(sig)
	}
}

// signalError is the cause of a context that a signal ended.
type signalError struct{ signal os.Signal }

func (e signalError) Error() string {
	switch e.signal {
	case syscall.SIGINT:
		return "received SIGINT"
	case syscall.SIGTERM:
		return "received SIGTERM"
	}
	return "received signal " + e.signal.String()
}

// Is makes the cause a cancellation for callers that look no closer.
func (e signalError) Is(target error) bool { return target == context.Canceled }
