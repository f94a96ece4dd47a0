package operator

import "net/http"

// DebugServer returns the server of the page.
func (op *Operator) DebugServer() *http.Server { return op.debugServer }
