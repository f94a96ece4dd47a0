//go:build unix

package testprocess

import (
	"fmt"
	"os"
	"syscall"
)

// Freeze stops a child of this process and returns once it stands still.
func Freeze(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(p.Pid, &status, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil:
			return err
		case !status.Stopped():
			return fmt.Errorf("the process ended with %v instead of being stopped", status)
		}
		return nil
	}
}

// Thaw lets a frozen process go on.
func Thaw(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
