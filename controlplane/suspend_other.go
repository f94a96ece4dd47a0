//go:build !unix

package main

import (
	"errors"
	"os"
	"syscall"
)

func suspend(*os.Process) error { return errors.ErrUnsupported }

func resume(*os.Process) error { return errors.ErrUnsupported }

// childAttributes returns no attributes: the child ends with its standard input.
func childAttributes() *syscall.SysProcAttr { return nil }
