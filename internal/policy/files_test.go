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

// TestDomain holds that the names that the library writes to clusters have the domain of the project,
// because another domain can be somebody else's.
func TestDomain(t *testing.T) {
	root(t)
	foreign := regexp.MustCompile(`["./ ]controllerkit\.(io|dev|com|org)\b`)
	for _, name := range published() {
		err := filepath.WalkDir(name, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			src, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if found := foreign.Find(src); found != nil {
				t.Errorf("%s has %q: use controllerkit.github.io", path, found)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
