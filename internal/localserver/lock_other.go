//go:build !unix || solaris || aix

package localserver

import "os"

// tryLock has no effect, because this system has no flock.
func tryLock(*os.File) (free bool) { return true }
