//go:build !unix

package controllertest

import "os"

// suspend does nothing where a process cannot be stopped: its requests and streams
// are held all the same.
func suspend(*os.Process) (resume func()) { return func() {} }
