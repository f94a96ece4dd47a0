package policy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// logLine is a call of a logger: Info(msg, kv...) or Error(err, msg, kv...).
type logLine struct {
	call *ast.CallExpr
	err  ast.Expr // nil in an Info
	kv   []ast.Expr
}

// logLines returns the lines that a file logs. Their messages are literals that begin with a
// capital, as those of no other methods of these names.
func logLines(file *ast.File) (lines []logLine) {
	message := regexp.MustCompile(`^"[A-Z]`)
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if p, ok := method.X.(*ast.Ident); ok && p.Name == "http" {
			return true
		}
		line, args := logLine{call: call}, call.Args
		switch {
		case method.Sel.Name == "Error" && len(args) > 1:
			line.err, args = args[0], args[1:]
		case method.Sel.Name != "Info" || len(args) == 0:
			return true
		}
		if text, ok := args[0].(*ast.BasicLit); ok && message.MatchString(text.Value) {
			line.kv = args[1:]
			lines = append(lines, line)
		}
		return true
	})
	return lines
}

// TestLogLines holds that a line of log about an error has one, that keys and values come in
// pairs, and each key once. It also holds that the tests of a package that logs use
// internal/testlog, themselves or by testserver.Main: it ends the process at a value that
// some logger could not print.
func TestLogLines(t *testing.T) {
	root(t)
	goodKey := regexp.MustCompile(`^"[a-z][A-Za-z0-9]*"$`)
	found := map[string]int{} // by folder
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"bench", "bin", "controlplane", "findings", "zoo"}, d.Name())):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, line := range logLines(file) {
			found[filepath.Dir(path)]++
			at, seen := fset.Position(line.call.Pos()), map[string]bool{}
			if ident, ok := line.err.(*ast.Ident); ok && ident.Name == "nil" {
				t.Errorf("%s: the error is nil: give it one, or use Info", at)
			}
			if len(line.kv)%2 != 0 && !line.call.Ellipsis.IsValid() {
				t.Errorf("%s: the last key has no value", at)
			}
			for i := 0; i+1 < len(line.kv); i += 2 {
				key, ok := line.kv[i].(*ast.BasicLit)
				if !ok || !goodKey.MatchString(key.Value) || seen[key.Value] {
					t.Errorf("%s: key %d is no literal in lowerCamel, or is there twice", at, i/2+1)
					continue
				}
				seen[key.Value] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	strict := regexp.MustCompile(`\b(testserver\.(Main|Run)|testlog\.(Install|Strict|New))\(`)
	sum := 0
	for dir, n := range found {
		sum += n
		if !slices.Contains(published(), filepath.ToSlash(dir)) {
			continue // a program, or a folder whose importers have the tests
		}
		tests, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(tests, func(path string) bool {
			text, err := os.ReadFile(path)
			return err == nil && strict.Match(text)
		}) {
			t.Errorf("the tests of %s do not use internal/testlog: call testserver.Main in TestMain", dir)
		}
	}
	if sum < 60 {
		t.Errorf("%d lines of log were found, want more: has their form changed?", sum)
	}
}
