package tracing_test

import (
	"os"
	"strings"
	"testing"

	"github.com/controllerkit/controllerkit/internal/testdocs"
)

// TestDocs holds that the Go blocks of docs/tracing.md compile, and that the page shows the
// spans that TestServerWebsites drew and those that a collector received.
func TestDocs(t *testing.T) {
	page := testdocs.Vet(t, "../docs/tracing.md", "tracing.go")
	for name, block := range map[string]string{"testdata/website.txt": "text", "testdata/folded.txt": "text", "testdata/received.json": "json"} {
		spans, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(page, "```"+block+"\n"+string(spans)+"```\n") {
			t.Errorf("docs/tracing.md does not show %s as it is", name)
		}
	}
}
