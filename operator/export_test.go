package operator

import "net/http"

// Register gives the informers to the Set.
func (op *Operator) Register() { op.register() }

// DebugServer returns the server of the page.
func (op *Operator) DebugServer() *http.Server { return op.debugServer }
