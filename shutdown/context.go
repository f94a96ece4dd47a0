package shutdown

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Context returns a copy of parent that ends at the first SIGINT or SIGTERM. Its
// [context.Cause] then names the signal ("received SIGTERM"), and errors.Is finds
// [context.Canceled] in it.
//
// After the first signal, both signals have their default action again: a second one kills
// the process without running deferred functions, and the parent process sees death by
// that signal. The first signal never kills, even if parent has already ended.
//
// cancel ends the context, restores both signals and waits for the goroutine that receives
// them. Call it when the process ends, usually with defer. It may be called more than once
// and concurrently.
//
// The default action returns only if no other code in the process called [signal.Notify]
// for these signals. On Windows, Ctrl-C and Ctrl-Break arrive as SIGINT, and closing the
// console, log-off and shutdown as SIGTERM, after which Windows ends the process within
// some seconds.
func Context(parent context.Context) (ctx context.Context, cancel context.CancelFunc) {
	ctx, end := context.WithCancelCause(parent)
	// The buffer holds two signals, so that a second one is not lost if it arrives before
	// the first is handled.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)

	stop := make(chan struct{})
	var once sync.Once
	var wg sync.WaitGroup
	// The goroutine does not end with parent: a process that is already stopping must
	// survive the first signal and die at the second.
	wg.Go(func() {
		select {
		case sig := <-signals:
			signal.Stop(signals) // before end: after the end of ctx a second signal must kill
			end(signalError{sig})
		case <-stop:
			signal.Stop(signals)
			end(nil)
			return
		}
		select {
		case sig := <-signals: // arrived before Stop: send it again, with its default action
			raise(sig)
		default:
		}
	})
	return ctx, func() {
		once.Do(func() { close(stop) })
		wg.Wait() // the goroutine has called end
	}
}

// raise sends sig to this process. On Windows, where that is not possible, the signal is
// lost, and the next one has the default action.
func raise(sig os.Signal) {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Signal(sig)
	}
}

// signalError is the cause of a context that a signal has ended.
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

// Is makes errors.Is(err, context.Canceled) true.
func (e signalError) Is(target error) bool { return target == context.Canceled }
