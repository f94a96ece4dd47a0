package policy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// TestExamplesCleanUp holds that no example sets KeepNamespaces without a server of its own in
// Config. Without Config the option acts only on an existing cluster, where the namespaces of the
// runs and their finalizers would stay, and users copy the examples.
func TestExamplesCleanUp(t *testing.T) {
	root(t)
	checked := 0
	for _, dir := range []string{"examples", filepath.Join("managerkit", "examples"), "docs"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") {
				return err
			}
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				literal, ok := n.(*ast.CompositeLit)
				if !ok {
					return true
				}
				if s, ok := literal.Type.(*ast.SelectorExpr); !ok || s.Sel.Name != "Options" {
					return true
				}
				set := map[string]bool{}
				for _, e := range literal.Elts {
					if kv, ok := e.(*ast.KeyValueExpr); ok {
						if key, ok := kv.Key.(*ast.Ident); ok {
							set[key.Name] = true
						}
					}
				}
				checked++
				if set["KeepNamespaces"] && !set["Config"] {
					t.Errorf("%s: KeepNamespaces without Config leaves the namespaces of an existing cluster", fset.Position(literal.Pos()))
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if checked == 0 {
		t.Fatal("no Options found: this test checks nothing")
	}
}
