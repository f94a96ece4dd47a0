package managerkit_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocs holds that the Go blocks of docs/in-your-manager.md compile, as the declarations
// of one file. TestDocs of the root module compiles the other pages.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../docs/in-your-manager.md")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	code.WriteString("package page\n")
	for _, block := range regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllSubmatch(page, -1) {
		code.WriteString("\n")
		code.Write(block[1])
	}
	// Inside the module, so that the page sees this checkout, and hidden from ./... by its
	// name.
	dir, err := os.MkdirTemp(".", "_docs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	// The page has a test.
	if err := os.WriteFile(filepath.Join(dir, "in_your_manager_test.go"), []byte(code.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "vet", "./"+dir).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
