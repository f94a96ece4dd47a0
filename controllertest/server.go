package controllertest

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/localserver"
)

// ServerVariable is the environment variable with the path of the controlplane binary,
// which [Explore] starts if it has neither Options.Config nor an existing cluster. If
// the variable is not set, Explore searches PATH, and then installs the binary into the user's
// cache.
const ServerVariable = localserver.Variable

// server returns the API server to use. own reports that it is thrown away afterwards.
func server(ctx context.Context, o Options) (cfg *rest.Config, own bool, stop func() error, err error) {
	if o.Config != nil {
		return o.Config, false, func() error { return nil }, nil
	}
	s, err := localserver.Open(ctx)
	if err != nil {
		return nil, false, nil, err
	}
	return s.Config(), s.IsOwn(), s.Stop, nil
}
