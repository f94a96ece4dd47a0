package schedule_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDiff applies the diffs of docs/in-your-manager.md to the version before. Each block is a step,
// after which the operator compiles. After the last one it is the version after.
func TestDiff(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/in-your-manager.md")
	if err != nil {
		t.Fatal(err)
	}
	steps := regexp.MustCompile("(?ms)^```diff\n(.*?)^```$").FindAllStringSubmatch(string(page), -1)
	if len(steps) == 0 {
		t.Fatal("the page has no diff")
	}
	code, imports := map[string]string{}, map[string]bool{}
	for _, name := range []string{"controller.go", "manager.go"} {
		code[name] = body(t, "before/"+name, imports)
	}
	want := map[string]string{}
	for name := range code {
		want[name] = body(t, "after/"+name, imports)
	}
	for i, step := range steps {
		for diff := range strings.SplitSeq(step[1], "--- before/") {
			name, hunks, _ := strings.Cut(diff, "\n")
			for hunk := range strings.SplitSeq(hunks, "@@\n") {
				if hunk == "" {
					continue
				}
				from, to := sides(hunk)
				if n := strings.Count(code[name], from); n != 1 {
					t.Fatalf("step %d: %s has this %d times, want once:\n%s", i+1, name, n, from)
				}
				code[name] = strings.Replace(code[name], from, to, 1)
			}
		}
		compile(t, fmt.Sprintf("step %d", i+1), code, imports)
	}
	for name := range code {
		if code[name] != want[name] {
			t.Errorf("before/%s is this after the steps:\n%s\nwant that of after:\n%s", name, code[name], want[name])
		}
	}
}

// body returns the code below the imports of a file, and adds the imports.
func body(t *testing.T, file string, imports map[string]bool) string {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(source), "\nimport (\n")
	list, code, found := strings.Cut(rest, "\n)\n")
	if !found {
		t.Fatalf("%s has no list of imports", file)
	}
	for line := range strings.Lines(list + "\n") {
		if line = strings.TrimSpace(line); line != "" {
			imports[line] = true
		}
	}
	return code
}

// sides returns the lines of a hunk before and after the change.
func sides(hunk string) (from, to string) {
	for line := range strings.Lines(hunk) {
		switch line[0] {
		case '-':
			from += line[1:]
		case '+':
			to += line[1:]
		default:
			from, to = from+line[1:], to+line[1:]
		}
	}
	return from, to
}

// compile vets the files, each with those of the imports that it uses.
func compile(t *testing.T, step string, code map[string]string, imports map[string]bool) {
	t.Helper()
	dir, err := os.MkdirTemp(".", "_step") // inside the module, and hidden from ./... by its name
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	comment := regexp.MustCompile(`(?m)//.*$`)
	for name, code := range code {
		source, names := "package step\n\nimport (\n", comment.ReplaceAllString(code, "")
		for line := range imports {
			path := strings.Trim(line[strings.Index(line, `"`):], `"`)
			used := filepath.Base(path)
			if alias, _, ok := strings.Cut(line, " "); ok {
				used = alias
			}
			if regexp.MustCompile(`(^|[^\w.])` + used + `\.`).MatchString(names) {
				source += line + "\n"
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(source+")\n"+code), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "go", "vet", "./"+dir).CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", step, err, out)
	}
}
