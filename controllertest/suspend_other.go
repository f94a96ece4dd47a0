//go:build !unix

package controllertest

import "os"

// suspend has no effect, because this system cannot stop a process. The requests and
// streams of the process are held.
func suspend(*os.Process) (resume func()) { return func() {} }
