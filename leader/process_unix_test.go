//go:build unix

package leader_test

import (
	"fmt"
	"os"
	"syscall"
)

// freezeProcess stops a child of this process and returns once it stands still.
func freezeProcess(p *os.Process) error {
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

// thawProcess lets a frozen process go on.
func thawProcess(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
