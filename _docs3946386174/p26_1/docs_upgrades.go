package page

import (
	"os/exec"
	"testing"

	"github.com/controllerkit/controllerkit/controllertest"
)

// upgrade explores the scenario of this commit, after the program of the last release.
func upgrade(t *testing.T, s controllertest.Scenario, released func(controllertest.Process) (*exec.Cmd, error)) {
	s.From = &controllertest.Former{Command: released}
	controllertest.Explore(t, s, controllertest.Options{})
}
