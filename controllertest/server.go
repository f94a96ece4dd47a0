package controllertest

import (
	"errors"

	"k8s.io/client-go/rest"
)

// server finds the API server to use. keep says that it is thrown away.
func server(o Options) (cfg *rest.Config, keep bool, stop func() error, err error) {
	if o.Config != nil {
		return o.Config, false, func() error { return nil }, nil
	}
	return nil, false, nil, errors.New("Options.Config is nil")
}
