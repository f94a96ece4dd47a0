//go:build !unix

package testcost

import "time"

var start = time.Now()

// CPU returns the time since the start of this process, which is at least its CPU time
// if one goroutine works.
func CPU() time.Duration { return time.Since(start) }
