package shutdown_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/shutdown"
)

// childEnv makes the test binary behave as a program that uses Context.
const childEnv = "SHUTDOWN_TEST_CHILD"

// child says what happens to it on stdout and then hangs, so that only a signal
// (or the end of its stdin) can end it.
func child() {
	if os.Getenv(childEnv) == "panic" {
		var g shutdown.Group
		g.Add("bad", panickingPart)
		fmt.Println("Run() =", g.Run(context.Background()))
		os.Exit(1)
	}
	parent, cancelParent := context.WithCancel(context.Background())
	defer cancelParent()
	ctx, cancel := shutdown.Context(parent)
	fmt.Println("ready")
	switch os.Getenv(childEnv) {
	case "signal":
		<-ctx.Done()
		fmt.Println(context.Cause(ctx))
	case "parent": // the process stops by itself before the first signal
		cancelParent()
		<-ctx.Done()
		// Sent by the child itself, so that it is delivered before the next line.
		self, _ := os.FindProcess(os.Getpid())
		_ = self.Signal(syscall.SIGTERM)
		fmt.Println("alive after the first signal")
	case "cancel": // the signals are given back
		cancel()
		fmt.Println("cancelled")
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func panickingPart(context.Context) error { panic("boom") }

type process struct {
	*exec.Cmd
	t   *testing.T
	out *bufio.Scanner
}

func startChild(t *testing.T, mode string) *process {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Fatal("signals cannot be sent between processes on windows; run this test elsewhere")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a child that survives is killed, with SIGKILL
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+mode)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.StdinPipe(); err != nil { // held open until Wait: its end would end the child
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: cmd, t: t, out: bufio.NewScanner(out)}
	p.expect("ready")
	return p
}

func (p *process) expect(want string) {
	p.t.Helper()
	if !p.out.Scan() || p.out.Text() != want {
		p.t.Fatalf("child said %q, want %q", p.out.Text(), want)
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// killedBy waits for the end and checks that the operating system says it was a
// signal, not an exit code.
func (p *process) killedBy(want ...syscall.Signal) {
	p.t.Helper()
	for p.out.Scan() { // to the end, as Wait demands
	}
	var exit *exec.ExitError
	if err := p.Wait(); !errors.As(err, &exit) {
		p.t.Fatalf("child ended with %v, want death by %v", err, want)
	}
	status := exit.Sys().(syscall.WaitStatus)
	for _, s := range want {
		if status.Signaled() && status.Signal() == s {
			return
		}
	}
	p.t.Errorf("child ended with %v, want death by %v", exit, want)
}

// TestFirstSignalEndsTheContextSecondKills tests that Context ends with a cause that names
// the signal, and that a second signal kills the process.
func TestFirstSignalEndsTheContextSecondKills(t *testing.T) {
	for _, tc := range []struct {
		name          string
		first, second syscall.Signal
		want          string
	}{
		{name: "TERM TERM", first: syscall.SIGTERM, second: syscall.SIGTERM, want: "received SIGTERM"},
		{name: "INT INT", first: syscall.SIGINT, second: syscall.SIGINT, want: "received SIGINT"},
		{name: "INT TERM", first: syscall.SIGINT, second: syscall.SIGTERM, want: "received SIGINT"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := startChild(t, "signal")
			p.signal(tc.first)
			p.expect(tc.want)
			p.signal(tc.second)
			p.killedBy(tc.second)
		})
	}
}

func TestTwoSignalsAtOnceKill(t *testing.T) {
	// Different signals, because the kernel merges equal ones that are pending.
	for range 20 {
		p := startChild(t, "signal")
		p.signal(syscall.SIGTERM)
		p.signal(syscall.SIGINT)
		p.killedBy(syscall.SIGINT, syscall.SIGTERM)
	}
}

func TestFirstSignalAfterTheParentEndedDoesNotKill(t *testing.T) {
	p := startChild(t, "parent")
	p.expect("alive after the first signal")
	p.signal(syscall.SIGINT)
	// Two pending signals are handled in no promised order; the later one kills.
	p.killedBy(syscall.SIGINT, syscall.SIGTERM)
}

func TestCancelGivesTheSignalsBack(t *testing.T) {
	p := startChild(t, "cancel")
	p.expect("cancelled")
	p.signal(syscall.SIGTERM)
	p.killedBy(syscall.SIGTERM)
}

func TestContextCancelAndCauses(t *testing.T) {
	errParent := errors.New("parent's reason")
	parent, cancelParent := context.WithCancelCause(t.Context())
	ctx, cancel := shutdown.Context(parent)
	if ctx.Err() != nil {
		t.Errorf("Err() = %v before anything happened", ctx.Err())
	}
	cancelParent(errParent)
	if got := context.Cause(ctx); got != errParent {
		t.Errorf("cause = %v, want the parent's", got)
	}
	cancel()
	cancel()

	ctx, cancel = shutdown.Context(t.Context())
	cancel()
	if ctx.Err() != context.Canceled || context.Cause(ctx) != context.Canceled {
		t.Errorf("after cancel: Err %v, cause %v, want context canceled", ctx.Err(), context.Cause(ctx))
	}
}

func TestSignalCauseIsACancellation(t *testing.T) {
	ctx, cancel := shutdown.Context(t.Context())
	defer cancel()
	p, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	cause := context.Cause(ctx)
	if !errors.Is(cause, context.Canceled) || !strings.Contains(cause.Error(), "SIGTERM") {
		t.Errorf("cause = %v, want one that names SIGTERM and is context.Canceled", cause)
	}
}
