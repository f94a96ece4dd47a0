package mistakes_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTable holds that docs/mistakes.md has twenty rows, that each names a test with the subtests named
// and quiet, and that each test has a row.
func TestTable(t *testing.T) {
	src, err := os.ReadFile("../../docs/mistakes.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\|.*\\| `(TestMistake\\w+)` \\|$").FindAllStringSubmatch(string(src), -1)
	if len(rows) < 20 {
		t.Errorf("%d rows, want at least 20", len(rows))
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	bodies, helpers := map[string]string{}, map[string]string{}
	fset := token.NewFileSet()
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(fset, name, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			body := string(text[fset.Position(f.Body.Pos()).Offset:fset.Position(f.Body.End()).Offset])
			if strings.HasPrefix(f.Name.Name, "TestMistake") {
				bodies[f.Name.Name] = body
			} else if strings.Contains(body, `t.Run("named"`) && f.Name.Name != "TestTable" {
				helpers[f.Name.Name] = body
			}
		}
	}
	seen := map[string]bool{}
	for _, row := range rows {
		name := row[1]
		body, exists := bodies[name]
		for helper, text := range helpers {
			if strings.Contains(body, "\t"+helper+"(") {
				body += text
			}
		}
		if !exists || !strings.Contains(body, `t.Run("named"`) || !strings.Contains(body, `t.Run("quiet"`) {
			t.Errorf("%s is not a test with the subtests named and quiet", name)
		}
		if seen[name] {
			t.Errorf("%s has two rows", name)
		}
		seen[name] = true
	}
	for name := range bodies {
		if !seen[name] {
			t.Errorf("docs/mistakes.md has no row for %s", name)
		}
	}
	// The page quotes the lines as they are logged.
	for _, line := range lines() {
		start, _, _ := strings.Cut(line, ":")
		if !strings.Contains(string(src), start) {
			t.Errorf("docs/mistakes.md does not quote %q", start)
		}
	}
}
