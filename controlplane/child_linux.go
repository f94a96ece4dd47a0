package main

import "syscall"

// childAttributes kills a child with its parent, also a suspended one, and keeps the
// terminal's signals from it.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
