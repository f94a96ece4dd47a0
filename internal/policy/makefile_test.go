package policy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMakefile holds that each test that the Makefile runs by name is in one of the packages beside
// it, and that their tests declare the flags: go test passes with "no tests to run".
func TestMakefile(t *testing.T) {
	root(t)
	src, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for line := range strings.Lines(string(src)) {
		_, command, found := strings.Cut(line, "go test ")
		pattern := regexp.MustCompile(`-run '\^(\S+)' `).FindStringSubmatch(command)
		if !found || pattern == nil || strings.Contains(line, "-fuzz ") {
			continue
		}
		checked++
		root := "."
		if cd := regexp.MustCompile(`^\tcd (\S+) &&`).FindStringSubmatch(line); cd != nil {
			root = cd[1]
		}
		tests := "" // the test files of the packages
		for _, field := range strings.Fields(command) {
			if field != "." && !strings.HasPrefix(field, "./") {
				continue
			}
			files, err := filepath.Glob(filepath.Join(root, field, "*_test.go"))
			if err != nil || len(files) == 0 {
				t.Errorf("package %s has no tests: %s", field, line)
			}
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				tests += string(text)
			}
		}
		names, whole := strings.CutSuffix(pattern[1], "$$")
		for name := range strings.SplitSeq(strings.Trim(names, "()"), "|") {
			if whole {
				name += "("
			}
			if !strings.Contains(tests, "\nfunc "+name) {
				t.Errorf("no test %s: %s", name, line)
			}
		}
		for _, flag := range regexp.MustCompile(` -([a-z-]+)`).FindAllStringSubmatch(command, -1) {
			known := []string{"v", "count", "timeout", "p", "run", "race", "json", "tags", "parallel"}
			if !slices.Contains(known, flag[1]) && !regexp.MustCompile(`flag\.\w+\((&\w+, )?"`+flag[1]+`"`).MatchString(tests) {
				t.Errorf("no flag -%s: %s", flag[1], line)
			}
		}
	}
	if checked < 15 {
		t.Errorf("%d commands were checked, want at least 15: the Makefile has another form", checked)
	}
}
