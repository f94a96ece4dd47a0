package policy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTestFiles holds that doc_test.go of a package with many test files names each of them, so
// that a reader finds the proof of a behavior.
func TestTestFiles(t *testing.T) {
	root(t)
	for _, name := range published() {
		files, err := filepath.Glob(filepath.Join(name, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		if len(files) < 25 {
			continue
		}
		index, err := os.ReadFile(filepath.Join(name, "doc_test.go"))
		if err != nil {
			t.Errorf("%s has %d test files and no doc_test.go that says which file proves what", name, len(files))
			continue
		}
		for _, file := range files {
			base := strings.TrimSuffix(filepath.Base(file), "_test.go")
			if base != "doc" && !regexp.MustCompile(`[ (]`+base+`\b`).Match(index) {
				t.Errorf("%s/doc_test.go does not name %s", name, filepath.Base(file))
			}
		}
	}
}
