package controllertest

import (
	"errors"
	"fmt"
)

// Kubeconfig returns the path of a kubeconfig file, for programs and libraries that take
// only a file. Its requests count as the requests of the controller, the user or the World
// that calls Kubeconfig: they have the rights of cfg and, from the controller, get its
// faults. Other users of the machine cannot read the file. The first call writes the file,
// and the end of the run removes it. A Command has Process.Kubeconfig.
func (e *Env) Kubeconfig() (string, error) {
	if e.kubeconfig == nil {
		return "", errors.New("controllertest: Env.Kubeconfig: this Env belongs to no run: use the one that the explorer passes")
	}
	path, err := e.kubeconfig.Path()
	if err != nil {
		return "", fmt.Errorf("controllertest: Env.Kubeconfig: %w", err)
	}
	return path, nil
}
