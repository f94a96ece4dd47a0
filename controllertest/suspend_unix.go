//go:build unix

package controllertest

import (
	"os"
	"syscall"
)

// suspend stops a process until resume is called.
func suspend(p *os.Process) (resume func()) {
	_ = p.Signal(syscall.SIGSTOP)
	return func() { _ = p.Signal(syscall.SIGCONT) }
}
