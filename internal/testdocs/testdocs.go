// Package testdocs compiles the code of documentation pages.
package testdocs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var block = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")

// Vet runs go vet on the Go blocks of the page, as the declarations of one file of that name in
// a package inside the working directory, and fails the test if it fails. A page that has a
// test needs a name that ends in _test.go. Vet returns the page.
func Vet(t *testing.T, page, file string) string {
	t.Helper()
	source, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	code.WriteString("package page\n")
	for _, match := range block.FindAllSubmatch(source, -1) {
		code.WriteString("\n")
		code.Write(match[1])
	}
	// Inside the module, so that the page sees this checkout, and hidden from ./... by its
	// name.
	dir, err := os.MkdirTemp(".", "_docs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.WriteFile(filepath.Join(dir, file), []byte(code.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "vet", "./"+dir).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return string(source)
}
