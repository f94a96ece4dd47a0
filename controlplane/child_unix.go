//go:build unix && !linux

package main

import "syscall"

// childAttributes keeps the terminal's signals from a child, which ends with its standard
// input.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
