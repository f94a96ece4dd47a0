package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// FreeAddress returns an address of loopback that a program can listen on. Nobody listens on
// its port now, and no connection or listener that asks for any port gets it, because
// operating systems choose those from 32768 upwards.
func FreeAddress() (string, error) {
	var err error
	for range 100 {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 12000+rand.IntN(20000))); err == nil {
			return l.Addr().String(), l.Close()
		}
	}
	return "", err
}

// Process is a running program.
type Process struct {
	cmd    *exec.Cmd
	output *buffer
	ended  chan struct{} // closed after the end of the process; err is set before
	err    error
}

// StartProcess starts a program and keeps its output.
func StartProcess(bin string, args ...string) (*Process, error) {
	return start(exec.Command(bin, args...))
}

// StartApart starts a program that Ctrl-C in the terminal does not reach, and keeps its output. The
// caller must end it.
func StartApart(bin string, args ...string) (*Process, error) {
	cmd := exec.Command(bin, args...)
	cmd.SysProcAttr = apart()
	return start(cmd)
}

func start(cmd *exec.Cmd) (*Process, error) {
	p := &Process{cmd: cmd, output: &buffer{}, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // ends with the process; Stop and Kill wait for it
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// OS returns the process of the operating system.
func (p *Process) OS() *os.Process { return p.cmd.Process }

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// ExitCode returns the exit code once Ended is closed, -1 for a signal.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Output returns the output so far.
func (p *Process) Output() string { return p.output.String() }

// Tail returns the last n lines of the output.
func (p *Process) Tail(n int) string {
	lines := strings.Split(strings.TrimSpace(p.Output()), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// AwaitOutput waits until the output contains text.
func (p *Process) AwaitOutput(ctx context.Context, limit time.Duration, text string) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		printed := p.output.next()
		if strings.Contains(p.Output(), text) {
			return nil
		}
		select {
		case <-printed:
		case <-p.ended:
			return fmt.Errorf("ended before it printed %q: %w\n%s", text, errors.Join(p.err), p.Tail(20))
		case <-timer.C:
			return fmt.Errorf("did not print %q within %v\n%s", text, limit, p.Tail(20))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Stop sends SIGTERM, as the kubelet does, and waits for the end of the process. If
// the exit code is not 0, or if the process takes longer than the kubelet's default
// grace period, Stop returns an error.
func (p *Process) Stop() error {
	select {
	case <-p.ended:
		return fmt.Errorf("the process ended before SIGTERM: %w", errors.Join(p.err, errors.New(p.Tail(5))))
	default:
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.ended:
		if p.err != nil {
			return fmt.Errorf("the process failed after SIGTERM: %w\n%s", p.err, p.Tail(20))
		}
		return nil
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // the Go runtime prints all stacks
		<-p.ended
		return fmt.Errorf("the process did not stop within 30s\n%s", p.Output())
	}
}

// Kill sends SIGKILL and waits for the end of the process.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// buffer holds the output of a process. Another goroutine writes it.
type buffer struct {
	mu      sync.Mutex
	b       strings.Builder
	printed chan struct{} // closed at the next write; nil if no goroutine waits
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.printed != nil {
		close(b.printed)
		b.printed = nil
	}
	return b.b.Write(p)
}

func (b *buffer) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.printed == nil {
		b.printed = make(chan struct{})
	}
	return b.printed
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
