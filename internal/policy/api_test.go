package policy

import (
	"flag"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files of the exported API instead of comparing with them")

// TestAPI holds that the exported API is what testdata/api/*.txt says, so that a change
// of it is seen in review. go test ./internal/policy -run TestAPI -update writes the files.
func TestAPI(t *testing.T) {
	root(t)
	for _, name := range append([]string{common}, published()...) {
		t.Run(name, func(t *testing.T) {
			dir := name
			if name == common {
				dir = "."
			}
			p, fset, _ := parsePackage(t, dir)
			got := exported(t, p, fset)
			golden := filepath.Join("internal/policy/testdata/api", strings.ReplaceAll(name, "/", "_")+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("the exported API is not what %s says (-golden +code); \"make generate\" accepts it:\n%s", golden, diff)
			}
		})
	}
}

// exported prints the exported declarations of a package without comments.
func exported(t *testing.T, p *doc.Package, fset *token.FileSet) string {
	t.Helper()
	var b strings.Builder
	show := func(decl ast.Decl) {
		if g, ok := decl.(*ast.GenDecl); ok {
			g.Doc = nil
			ast.Inspect(g, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.Field:
					n.Doc, n.Comment = nil, nil
				case *ast.ValueSpec:
					n.Doc, n.Comment = nil, nil
					if n.Type != nil {
						n.Values = nil
					}
				case *ast.TypeSpec:
					n.Doc, n.Comment = nil, nil
				}
				return true
			})
		}
		if f, ok := decl.(*ast.FuncDecl); ok {
			f.Doc, f.Body = nil, nil
		}
		if err := printer.Fprint(&b, fset, decl); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n\n")
	}
	for _, v := range slices.Concat(p.Consts, p.Vars) {
		show(v.Decl)
	}
	for _, f := range p.Funcs {
		show(f.Decl)
	}
	for _, typ := range p.Types {
		show(typ.Decl)
		for _, v := range slices.Concat(typ.Consts, typ.Vars) {
			show(v.Decl)
		}
		for _, f := range slices.Concat(typ.Funcs, typ.Methods) {
			show(f.Decl)
		}
	}
	// The printer keeps the blank lines where comments were.
	return regexp.MustCompile(`\n{3,}`).ReplaceAllString(regexp.MustCompile(`\n\n+(\t| *\})`).ReplaceAllString(b.String(), "\n$1"), "\n\n")
}

// TestDocumented holds that every exported identifier and every exported field
// says what it is.
func TestDocumented(t *testing.T) {
	root(t)
	for _, name := range append([]string{"."}, published()...) {
		p, fset, _ := parsePackage(t, name)
		complain := func(pos token.Pos, what string) {
			t.Errorf("%s: %s has no doc comment", fset.Position(pos), what)
		}
		for _, v := range slices.Concat(p.Consts, p.Vars) {
			if v.Doc == "" {
				for _, spec := range v.Decl.Specs {
					if s := spec.(*ast.ValueSpec); s.Doc.Text() == "" && s.Comment.Text() == "" {
						complain(s.Pos(), s.Names[0].Name)
					}
				}
			}
		}
		for _, f := range p.Funcs {
			if f.Doc == "" {
				complain(f.Decl.Pos(), f.Name)
			}
		}
		for _, typ := range p.Types {
			if typ.Doc == "" {
				complain(typ.Decl.Pos(), typ.Name)
			}
			for _, f := range slices.Concat(typ.Funcs, typ.Methods) {
				if f.Doc == "" {
					complain(f.Decl.Pos(), typ.Name+"."+f.Name)
				}
			}
		}
	}
}

// TestExamples holds that every entry point is shown: each exported function
// and each type that runs is used in an Example whose output is checked.
func TestExamples(t *testing.T) {
	root(t)
	for _, name := range published() {
		t.Run(name, func(t *testing.T) {
			p, _, tests := parsePackage(t, name)
			used := map[string]bool{}
			for _, ex := range doc.Examples(tests...) {
				if ex.Output == "" && !ex.EmptyOutput {
					t.Errorf("Example%s has no output", ex.Name)
				}
				var syntax ast.Node = ex.Code
				if ex.Play != nil {
					syntax = ex.Play
				}
				ast.Inspect(syntax, func(n ast.Node) bool {
					if sel, ok := n.(*ast.SelectorExpr); ok {
						if x, ok := sel.X.(*ast.Ident); ok && x.Name == p.Name {
							used[sel.Sel.Name] = true
						}
					}
					return true
				})
			}
			for _, f := range p.Funcs {
				if !used[f.Name] && !takesTB(f.Decl) {
					t.Errorf("%s.%s is used in no Example", name, f.Name)
				}
			}
			for _, typ := range p.Types {
				for _, f := range typ.Funcs {
					if !used[f.Name] {
						t.Errorf("%s.%s is used in no Example", name, f.Name)
					}
				}
				for _, m := range typ.Methods {
					if (m.Name == "Run" || m.Name == "Events") && !used[typ.Name] {
						t.Errorf("%s.%s is used in no Example", name, typ.Name)
					}
				}
			}
		})
	}
}

// takesTB reports whether a function is called by tests only: its package comment
// shows it, as an Example has no test to give it.
func takesTB(f *ast.FuncDecl) bool {
	params := f.Type.Params.List
	if len(params) == 0 {
		return false
	}
	sel, ok := params[0].Type.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "TB"
}

// TestErrorPrefixes holds that no text of an error begins with the name of another package
// of the library, or has the name of its own package twice.
func TestErrorPrefixes(t *testing.T) {
	root(t)
	names := map[string]bool{}
	for _, dir := range published() {
		names[path.Base(dir)] = true
	}
	prefixed := 0
	for _, dir := range published() {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				text := errorText(n)
				first, _, found := strings.Cut(text, ": ")
				if found && names[first] {
					prefixed++
				}
				own := path.Base(dir)
				again := strings.Contains(": "+strings.TrimPrefix(text, own+": "), ": "+own+": ")
				if again || found && names[first] && first != own {
					t.Errorf("%v: the error %q must have one prefix, %q", fset.Position(n.Pos()), text, own)
				}
				return true
			})
		}
	}
	if prefixed < 100 {
		t.Errorf("%d errors have a prefix: the test does not find them", prefixed)
	}
}

// errorText returns the text or the format of a call of errors.New or fmt.Errorf, and ""
// of other nodes.
func errorText(n ast.Node) string {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) == 0 {
		return ""
	}
	if f, ok := call.Fun.(*ast.SelectorExpr); !ok || f.Sel.Name != "Errorf" && f.Sel.Name != "New" {
		return ""
	}
	literal, ok := call.Args[0].(*ast.BasicLit)
	if !ok {
		return ""
	}
	text, _ := strconv.Unquote(literal.Value)
	return text
}
