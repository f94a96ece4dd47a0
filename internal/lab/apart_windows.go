package lab

import "syscall"

// apart is for a process that Ctrl-C in the terminal does not reach.
func apart() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}
