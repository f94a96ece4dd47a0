//go:build unix

package ssa_test

import (
	"syscall"
	"time"
)

// cpu returns the CPU time of this process.
func cpu() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
