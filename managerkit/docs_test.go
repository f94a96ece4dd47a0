package managerkit_test

import (
	"testing"

	"github.com/controllerkit/controllerkit/internal/testdocs"
)

// TestDocs holds that the Go blocks of docs/in-your-manager.md compile. TestDocs of the root
// module compiles the other pages.
func TestDocs(t *testing.T) { testdocs.Vet(t, "../docs/in-your-manager.md", "in_your_manager_test.go") }
