//go:build unix && !solaris && !aix

package localserver

import (
	"errors"
	"os"
	"syscall"
)

// tryLock locks a file until it is closed. If another process has locked it, free is false. A file system without
// locks counts as free: then two processes install, and each renames a whole file.
func tryLock(f *os.File) (free bool) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	return !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR)
}
