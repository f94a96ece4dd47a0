package managerkit_test

import (
	"strings"
	"testing"

	"github.com/controllerkit/controllerkit/internal/testdocs"
)

// TestDocs holds that the Go blocks of docs/in-your-manager.md compile. TestDocs of the root
// module compiles the other pages. No queue of the page lacks metrics: Complete makes one with them,
// and a queue of the caller has none by itself.
func TestDocs(t *testing.T) {
	page := testdocs.Vet(t, "../docs/in-your-manager.md", "in_your_manager_test.go")
	for _, after := range strings.Split(page, " queue.New(")[1:] {
		if code, _, _ := strings.Cut(after, "\n}\n"); !strings.Contains(code, "MetricsProvider:") {
			t.Errorf("a queue of the page has no MetricsProvider: queue.New(%s", code)
		}
	}
}
