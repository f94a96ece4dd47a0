package operator

import (
	"net/http"

	"github.com/controllerkit/controllerkit/debug"
	"github.com/controllerkit/controllerkit/informer"
)

// DebugServer returns the server of the page.
func (op *Operator) DebugServer() *http.Server { return op.debugServer }

// InformersWith returns the informers of the page, with these mutations.
func (op *Operator) InformersWith(mutated map[string]informer.Mutation) []debug.Informer {
	return op.informers(mutated)
}
