package controllertest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/localserver"
)

// ServerVariable is the environment variable with the path of the controlplane binary,
// which [Explore] starts if it has neither Options.Config nor an existing cluster. If
// the variable is not set, Explore searches PATH.
const ServerVariable = "CONTROLPLANE"

// server returns the API server to use. own reports that it is thrown away afterwards.
func server(o Options) (cfg *rest.Config, own bool, stop func() error, err error) {
	if o.Config != nil {
		return o.Config, false, func() error { return nil }, nil
	}
	s, err := localserver.Existing()
	if err != nil {
		return nil, false, nil, err
	}
	if s == nil {
		bin, err := binary()
		if err != nil {
			return nil, false, nil, err
		}
		if s, err = localserver.Start(bin); err != nil {
			return nil, false, nil, err
		}
	}
	return s.Config(), s.IsOwn(), s.Stop, nil
}

func binary() (string, error) {
	if bin := os.Getenv(ServerVariable); bin != "" {
		return bin, nil
	}
	if bin, err := exec.LookPath("controlplane"); err == nil {
		return bin, nil
	}
	// In the repository of this library, make has built it.
	for dir, err := os.Getwd(); err == nil; dir = filepath.Dir(dir) {
		if data, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil {
			if bin := filepath.Join(dir, "bin", "controlplane"); strings.HasPrefix(string(data), "module github.com/controllerkit/controllerkit\n") && exists(bin) {
				return bin, nil
			}
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	return "", errors.New("no API server: set Options.Config, or USE_EXISTING_CLUSTER=true and KUBECONFIG to a cluster for tests, or install one: " +
		"go install github.com/controllerkit/controllerkit/controlplane@latest" +
		fmt.Sprintf(", into a folder of PATH or with %s set to the file", ServerVariable))
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
