package tracing_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocs holds that the Go blocks of docs/tracing.md compile, as the declarations of one
// file, and that the page shows the spans that
// TestServerWebsites wrote.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../docs/tracing.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]string{"testdata/website.txt": "text", "testdata/folded.txt": "text", "testdata/website.json": "json"} {
		spans, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(page), "```"+block+"\n"+string(spans)+"```\n") {
			t.Errorf("docs/tracing.md does not show %s as it is", name)
		}
	}
	code := "package page\n"
	for _, block := range regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		code += "\n" + block[1]
	}
	// Inside the module, so that the page sees this checkout, and hidden from ./... by its
	// name.
	dir, err := os.MkdirTemp(".", "_docs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.WriteFile(filepath.Join(dir, "tracing.go"), []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "vet", "./"+dir).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
