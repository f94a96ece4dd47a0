package page

import (
	"net/http"

	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/debug"
	"github.com/controllerkit/controllerkit/operator"
)

func withPage(config *rest.Config) (*operator.Operator, error) {
	return operator.New(config, operator.Options{Name: "widgets", LeaseNamespace: "shop", Debug: "127.0.0.1:6060"})
}
func behindAGuard(op *operator.Operator) {
	op.Debug = &debug.Page{}
	op.Mux.Handle("/debug/controllers", http.Handler(op.Debug)) // Options.Listen must be empty
	op.Mux.Handle("/debug/pprof/", debug.Profiles())
}
