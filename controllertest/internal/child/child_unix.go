//go:build unix

package child

import (
	"os"
	"os/exec"
	"syscall"
)

// Prepare lets a command start a process group of its own, unless its SysProcAttr is set.
func Prepare(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = attributes()
	}
}

// Kill kills a process and its group.
func Kill(p *os.Process) { signal(p, syscall.SIGKILL) }

// Suspend stops a process and its group until resume is called.
func Suspend(p *os.Process) (resume func()) {
	signal(p, syscall.SIGSTOP)
	return func() { signal(p, syscall.SIGCONT) }
}

// signal also reaches a process that leads no group.
func signal(p *os.Process, s syscall.Signal) {
	if syscall.Kill(-p.Pid, s) != nil {
		_ = p.Signal(s)
	}
}
