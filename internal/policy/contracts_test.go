package policy

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestContracts holds that the root package stays one page of declarations: it imports the
// standard library and apimachinery alone.
func TestContracts(t *testing.T) {
	root(t)
	src, err := os.ReadFile("contracts.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(src, []byte("\n")); n > 200 {
		t.Errorf("contracts.go has %d lines, want at most 200", n)
	}
	if files, err := filepath.Glob("*.go"); err != nil || !slices.Equal(files, []string{"contracts.go", "doc.go"}) {
		t.Errorf("the root has the Go files %q (%v), want contracts.go and doc.go", files, err)
	}
	for _, path := range goList(t, ".")[0].Imports {
		if strings.Contains(path, ".") && !strings.HasPrefix(path, "k8s.io/apimachinery/") {
			t.Errorf("the root package imports %s", path)
		}
	}
}

// TestContractsAreDeclaredOnce holds that no package of the library declares an interface of the
// root package again, and that no error is marked by a method that the root package does not
// name.
func TestContractsAreDeclaredOnce(t *testing.T) {
	root(t)
	contracts := map[string]bool{}
	for _, text := range interfaces(t, "contracts.go") {
		contracts[text] = true
	}
	if len(contracts) < 12 {
		t.Fatalf("contracts.go has %d interfaces: the test does not find them: %v", len(contracts), contracts)
	}
	marks := regexp.MustCompile(`^func \((?:\w+ )?\*?(\w+)\) (\w+)\(\) bool +\{ return true \}$`)
	marked := 0
	for _, p := range goList(t, "./...") {
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		if p.ImportPath == module || strings.HasPrefix(rel, "examples") || strings.Contains(rel, "/internal/zoo") {
			continue
		}
		for _, name := range p.GoFiles {
			file := filepath.Join(p.Dir, name)
			for at, text := range interfaces(t, file) {
				if contracts[text] {
					t.Errorf("%s: the root package declares this interface: %s", at, text)
				}
			}
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(src)) {
				m := marks.FindStringSubmatch(strings.TrimSpace(line))
				if m == nil || !strings.HasSuffix(m[1], "Error") || m[2] == "Timeout" { // of net.Error
					continue
				}
				if marked++; !contracts[m[2]+"()(bool,)"] {
					t.Errorf("%s: %s of %s is no mark that the root package declares", file, m[2], m[1])
				}
			}
		}
	}
	if marked < 8 {
		t.Errorf("%d errors are marked: the test does not find them", marked)
	}
}

// interfaces returns the text of each interface of a file that has only methods, by its position.
func interfaces(t *testing.T, path string) map[string]string {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	parameter := regexp.MustCompile(`\b[A-Z]\b`) // of a type
	found := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		typ, ok := n.(*ast.InterfaceType)
		if !ok || len(typ.Methods.List) == 0 {
			return true
		}
		var all []string
		for _, m := range typ.Methods.List {
			fn, ok := m.Type.(*ast.FuncType)
			if !ok || len(m.Names) != 1 {
				return true
			}
			var b strings.Builder
			b.WriteString(m.Names[0].Name)
			for _, fields := range []*ast.FieldList{fn.Params, fn.Results} {
				if fields == nil {
					continue
				}
				b.WriteString("(")
				for _, f := range fields.List {
					for range max(1, len(f.Names)) {
						if err := printer.Fprint(&b, fset, f.Type); err != nil {
							t.Fatal(err)
						}
						b.WriteString(",")
					}
				}
				b.WriteString(")")
			}
			all = append(all, parameter.ReplaceAllString(strings.ReplaceAll(b.String(), "controllerkit.", ""), "_"))
		}
		slices.Sort(all)
		found[fset.Position(typ.Pos()).String()] = strings.Join(all, ";")
		return true
	})
	return found
}
