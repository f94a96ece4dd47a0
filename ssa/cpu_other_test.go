//go:build !unix

package ssa_test

import "time"

var start = time.Now()

// cpu returns the time since the start of this process, which is at least its CPU time
// as long as it has one goroutine at work.
func cpu() time.Duration { return time.Since(start) }
