package controller_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// TestMain lets TestExplore start the API server of this repository. The command
// newoperator leaves this file out.
func TestMain(m *testing.M) {
	if flag.Parse(); testing.Short() {
		os.Exit(testserver.Run(m))
	}
	bin, err := testserver.Binary()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := os.Setenv(controllertest.ServerVariable, bin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(testserver.Run(m))
}
