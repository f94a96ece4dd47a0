//go:build !unix

package child

import (
	"os"
	"os/exec"
)

// Prepare has no effect, because this system has no process groups.
func Prepare(*exec.Cmd) {}

// Kill kills a process.
func Kill(p *os.Process) { _ = p.Kill() }

// Suspend has no effect, because this system cannot stop a process. The requests and
// streams of the process are held.
func Suspend(*os.Process) (resume func()) { return func() {} }
