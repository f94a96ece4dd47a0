package child

import "syscall"

// attributes kill the process with the test, because the terminal's signals do not reach another
// group.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
