//go:build !linux

package main

import "syscall"

// childAttributes returns no attributes: the child ends with its standard input.
func childAttributes() *syscall.SysProcAttr { return nil }
