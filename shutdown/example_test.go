package shutdown_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"syscall"
	"time"

	"github.com/controllerkit/controllerkit/shutdown"
)

// The part that was added last stops first; the server that answers the probes
// is added first, so that it answers until the end.
func ExampleGroup_Run() {
	ctx, cancel := context.WithCancel(context.Background())
	part := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			<-ctx.Done()
			fmt.Println(name, "stops")
			return nil
		}
	}

	var group shutdown.Group
	group.Add("probes", part("probes"))
	group.Add("informers", part("informers"))
	group.Add("controller", func(ctx context.Context) error {
		cancel() // stands for the signal
		return part("controller")(ctx)
	})
	fmt.Println("error:", group.Run(ctx))
	// Output:
	// controller stops
	// informers stops
	// probes stops
	// error: <nil>
}

// A part that fails stops the others; its error has its name.
func ExampleGroup_Add() {
	var group shutdown.Group
	group.Add("informers", func(ctx context.Context) error { <-ctx.Done(); return nil })
	group.Add("controller", func(context.Context) error { return errors.New("no such resource") })
	fmt.Println(group.Run(context.Background()))
	// Output: shutdown: part "controller": no such resource
}

// Checks say by name why the process is not ready.
func ExampleGroup_Ready() {
	var group shutdown.Group
	synced := false
	group.AddReady("informers", func() error {
		if !synced {
			return errors.New("not synced")
		}
		return nil
	})
	show := func() {
		w := httptest.NewRecorder()
		group.Ready().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		fmt.Printf("%d %q\n", w.Code, w.Body)
	}
	show()
	group.Add("part", func(context.Context) error { return nil })
	_ = group.Run(context.Background())
	synced = true
	show()
	// Output:
	// 503 "starting\nfailing: informers\n"
	// 503 "stopping\n"
}

// A program compares its own times with those of its Pod at the start.
func ExampleGroup_Fits() {
	group := &shutdown.Group{GracePeriod: 45 * time.Second}
	fmt.Println(group.Fits(60 * time.Second))
	fmt.Println(group.Fits(30 * time.Second))
	// Output:
	// <nil>
	// shutdown: Group.GracePeriod (45s) does not fit into the Pod's 30s between SIGTERM and SIGKILL: raise terminationGracePeriodSeconds, or make GracePeriod at least 1s shorter than that
}

// Liveness is not touched by starting and stopping.
func ExampleGroup_Live() {
	var group shutdown.Group
	group.AddLive("workers", func() error { return errors.New("stuck for an hour") })
	w := httptest.NewRecorder()
	group.Live().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/livez", nil))
	fmt.Printf("%d %q\n", w.Code, w.Body)
	// Output: 503 "failing: workers\n"
}

// The cause names the signal.
func ExampleContext() {
	ctx, cancel := shutdown.Context(context.Background())
	defer cancel()

	self, _ := os.FindProcess(os.Getpid())
	_ = self.Signal(syscall.SIGTERM) // what the kubelet sends
	<-ctx.Done()
	fmt.Println(context.Cause(ctx))
	// Output: received SIGTERM
}

// A server is a part like any other.
func ExampleServer() {
	ctx, cancel := context.WithCancel(context.Background())
	srv := &http.Server{
		Addr:        "127.0.0.1:0",
		BaseContext: func(net.Listener) context.Context { cancel(); return ctx }, // stops as soon as it listens
	}
	var group shutdown.Group
	group.Add("probes", shutdown.Server(srv))
	fmt.Println("error:", group.Run(ctx))
	// Output: error: <nil>
}

// printed is a Metrics. In a process, it is a *metrics.Metrics.
type printed struct{}

func (printed) PartStopped(part string, _ time.Duration, late bool) {
	fmt.Println(part, "stopped, late:", late)
}

// Metrics gets the time that each part took to stop.
func ExampleMetrics() {
	ctx, cancel := context.WithCancel(context.Background())
	group := shutdown.Group{Metrics: printed{}}
	group.Add("informers", func(ctx context.Context) error { <-ctx.Done(); return nil })
	group.Add("controller", func(ctx context.Context) error {
		cancel() // stands for the signal
		<-ctx.Done()
		return nil
	})
	fmt.Println(group.Run(ctx))
	// Output:
	// controller stopped, late: false
	// informers stopped, late: false
	// <nil>
}
