package controllerkit_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/doc"
	"go/importer"
	"go/parser"
	"go/printer"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
)

// The tests of this file are the rules of the repository. A rule that is in
// the way is discussed and changed here, not worked around.

const module = "github.com/controllerkit/controllerkit"

var update = flag.Bool("update", false, "write the golden files of the exported API instead of comparing with them")

// library lists the packages that users import.
func library() []string {
	return []string{
		"applyset", "consistency", "controllertest", "controllertest/cloud", "controllertest/fault", "controllertest/server", "crd", "enqueue", "external", "finalizer", "informer",
		"leader", "metrics", "operator", "owner", "queue", "reconcile", "recorder", "shutdown", "ssa", "status", "watcher",
	}
}

type listed struct {
	ImportPath, Dir, Name, Doc string
	Standard                   bool
	Imports, Deps              []string
	GoFiles                    []string
}

func goList(t *testing.T, args ...string) []listed {
	t.Helper()
	out := run(t, ".", "go", append([]string{"list", "-json"}, args...)...)
	var all []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var p listed
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

func run(t *testing.T, dir, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, stderr.String())
	}
	return out
}

// published lists the packages that users import, also those of nested modules.
func published() []string { return append(library(), "managerkit", "managerkit/managertest") }

// TestLibraryIsWhole holds that the list above, the folders and the map in
// doc.go name the same packages.
func TestLibraryIsWhole(t *testing.T) {
	var got []string
	for _, p := range goList(t, "./...") {
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		if rel == module || strings.Contains("/"+rel, "/internal/") || rel == "examples" || strings.HasPrefix(rel, "examples/") {
			continue
		}
		got = append(got, rel)
	}
	if diff := cmp.Diff(library(), got); diff != "" {
		t.Errorf("packages of the library (-listed +found):\n%s", diff)
	}
	src, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range library() {
		if !strings.Contains(string(src), "["+module+"/"+name+"]") {
			t.Errorf("doc.go, the map of the packages, does not link [%s/%s]", module, name)
		}
	}
}

// TestPackageComments holds that every package says what it is.
func TestPackageComments(t *testing.T) {
	for _, p := range goList(t, "./...") {
		if strings.Contains(p.ImportPath, "/client/") {
			continue // generated
		}
		if p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		if slices.Contains(library(), rel) && !slices.Contains(p.GoFiles, "doc.go") {
			t.Errorf("%s has no doc.go", p.ImportPath)
		}
	}
}

// TestPackageCommentsAreShort holds that a reader of ten minutes can read a package
// comment: the words before the first heading are enough to use the package.
func TestPackageCommentsAreShort(t *testing.T) {
	for _, name := range published() {
		p, _, _ := parsePackage(t, name)
		intro, _, _ := strings.Cut(p.Doc, "\n# ")
		if n := words(intro); n > 150 {
			t.Errorf("the comment of package %s has %d words before its first heading, want at most 150", name, n)
		}
		if n := words(p.Doc); n > 600 {
			t.Errorf("the comment of package %s has %d words, want at most 600", name, n)
		}
	}
}

// words counts the words of a text, code included, without bullets and punctuation.
func words(text string) (n int) {
	for word := range strings.FieldsSeq(text) {
		if strings.ContainsFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			n++
		}
	}
	return n
}

// TestImports holds that no package of the library except operator, which assembles
// them, and controllertest imports a sibling, that only metrics imports Prometheus, and that shutdown depends on the
// standard library alone. Shared rules live in internal packages, which all may import.
func TestImports(t *testing.T) {
	for _, name := range library() {
		p := goList(t, "./"+name)[0]
		for _, dep := range p.Deps {
			if strings.HasPrefix(dep, module+"/") && strings.Contains(dep, "/internal/") {
				continue // what it depends on is in Deps too
			}
			assembly := name == "operator" || strings.HasPrefix(name, "controllertest")
			switch {
			case strings.HasPrefix(dep, module+"/") && !assembly:
				t.Errorf("%s depends on %s: packages are taken one at a time", name, dep)
			case strings.HasPrefix(dep, "github.com/prometheus/") && name != "metrics" && !assembly:
				t.Errorf("%s depends on %s: only metrics may", name, dep)
			case strings.Contains(strings.SplitN(dep, "/", 2)[0], ".") && name == "shutdown":
				t.Errorf("shutdown depends on %s: it imports the standard library alone", dep)
			}
		}
	}
}

// heavy matches modules that a user of the library must never inherit.
var heavy = regexp.MustCompile(`^(go\.etcd\.io/|k8s\.io/(kubernetes|apiserver|apiextensions-apiserver|component-base|kube-aggregator|controller-manager)$|sigs\.k8s\.io/controller-runtime)`)

// TestModules holds what the go.mod files may say: a replace breaks go run
// module@version, heavy requirements would become every user's, and Kubernetes
// builds only with all of its staging modules at one version.
func TestModules(t *testing.T) {
	type require struct{ Path, Version string }
	mod := func(dir string) (m struct {
		Go      string
		Require []require
		Replace []any
	}) {
		if err := json.Unmarshal(run(t, dir, "go", "mod", "edit", "-json"), &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	root := mod(".")
	if len(root.Replace) > 0 {
		t.Error("the root go.mod has a replace")
	}
	if root.Go != "1.26.0" {
		t.Errorf("the root go.mod says go %s, want 1.26.0", root.Go)
	}
	for _, r := range root.Require {
		if strings.HasPrefix(r.Path, "k8s.io/") && (r.Path == "k8s.io/api" || r.Path == "k8s.io/apimachinery" || r.Path == "k8s.io/client-go") && r.Version != "v0.37.2" {
			t.Errorf("the root go.mod requires %s %s, want v0.37.2", r.Path, r.Version)
		}
	}
	for line := range strings.Lines(string(run(t, ".", "go", "list", "-m", "all"))) {
		if path := strings.Fields(line)[0]; heavy.MatchString(path) {
			t.Errorf("users of the library would inherit %s", path)
		}
	}

	server := mod("controlplane")
	if len(server.Replace) > 0 {
		t.Error("controlplane/go.mod has a replace: go run module@version refuses it")
	}
	var kubernetes string
	required := map[string]string{}
	for _, r := range server.Require {
		required[r.Path] = r.Version
		if r.Path == "k8s.io/kubernetes" {
			kubernetes = r.Version
		}
	}
	want := strings.Replace(kubernetes, "v1.", "v0.", 1)
	var upstream struct {
		Replace []struct{ Old, New require }
	}
	dir := strings.TrimSpace(string(run(t, "controlplane", "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")))
	if err := json.Unmarshal(run(t, dir, "go", "mod", "edit", "-json"), &upstream); err != nil {
		t.Fatal(err)
	}
	if len(upstream.Replace) == 0 {
		t.Fatal("k8s.io/kubernetes replaces no staging module: this test reads the wrong file")
	}
	for _, r := range upstream.Replace {
		if got := required[r.Old.Path]; got != want {
			t.Errorf("controlplane/go.mod requires %s at %q, want %s", r.Old.Path, got, want)
		}
	}
}

// parsePackage returns a package's documentation and its test files' syntax.
func parsePackage(t *testing.T, dir string) (*doc.Package, *token.FileSet, []*ast.File) {
	t.Helper()
	fset := token.NewFileSet()
	var code, tests []*ast.File
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		f, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "_test.go") {
			tests = append(tests, f)
		} else {
			code = append(code, f)
		}
	}
	p, err := doc.NewFromFiles(fset, code, module+"/"+filepath.ToSlash(dir))
	if err != nil {
		t.Fatal(err)
	}
	return p, fset, tests
}

// TestAPI holds that the exported API is what api/*.txt says, so that a change
// of it is seen in review. go test -run TestAPI . -update writes the files.
func TestAPI(t *testing.T) {
	for _, name := range published() {
		t.Run(name, func(t *testing.T) {
			p, fset, _ := parsePackage(t, name)
			got := exported(t, p, fset)
			golden := filepath.Join("api", strings.ReplaceAll(name, "/", "_")+".txt")
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
	for _, name := range published() {
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

// TestFirstTest holds that the test which the package comment of controllertest
// shows is one that runs, and is short.
func TestFirstTest(t *testing.T) {
	source, err := os.ReadFile("controllertest/first_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, ok := strings.Cut(string(source), "\nfunc TestGreeter(")
	if !ok {
		t.Fatal("controllertest/first_test.go has no TestGreeter")
	}
	code = "func TestGreeter(" + code
	if lines := strings.Count(code, "\n"); lines >= 30 {
		t.Errorf("a user's first test has %d lines, want fewer than 30", lines)
	}
	var shown strings.Builder
	for line := range strings.Lines(code) {
		shown.WriteString("//\t" + line)
	}
	comment, err := os.ReadFile("controllertest/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(comment), shown.String()) {
		t.Error("controllertest/doc.go does not show TestGreeter as first_test.go has it")
	}
}

// TestDocs holds that the Go blocks of README.md and docs/ compile. A block
// that begins with a package clause stands for itself; the others of a page
// are the declarations of one file, whose imports are in the page's first. The files of
// docs/testdata/PAGE, which a reader generates, join them. The page in-your-manager.md is
// about the module managerkit, whose TestDocs compiles it.
func TestDocs(t *testing.T) {
	pages := []string{"README.md"}
	err := filepath.WalkDir("docs", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") && path != filepath.Join("docs", "in-your-manager.md") {
			pages = append(pages, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	// Inside the module, so that the pages see this checkout, and out of the
	// sight of ./... by its name.
	dir, err := os.MkdirTemp(".", "_docs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	block := regexp.MustCompile("(?ms)^```go\n(.*?)^```$")
	var packages []string
	blocks := 0
	for i, page := range pages {
		src, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		var whole []string
		var parts strings.Builder
		for _, m := range block.FindAllSubmatch(src, -1) {
			blocks++
			switch code := string(m[1]); {
			case strings.HasPrefix(code, "package "):
				whole = append(whole, code)
			case strings.Contains(code, "\npackage main\n"):
				// The minimal example, which TestREADME compares.
			default:
				parts.WriteString(code)
			}
		}
		if parts.Len() > 0 {
			whole = append(whole, "package page\n\n"+parts.String())
		}
		for j, code := range whole {
			sub := filepath.Join(dir, "p"+string(rune('a'+i))+string(rune('a'+j)))
			if err := os.Mkdir(sub, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(sub, strings.NewReplacer("/", "_", ".md", ".go").Replace(page)), []byte(code), 0o644); err != nil {
				t.Fatal(err)
			}
			generated, err := filepath.Glob(filepath.Join("docs", "testdata", strings.TrimSuffix(filepath.Base(page), ".md"), "*.go"))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range generated {
				text, err := os.ReadFile(name)
				if err == nil {
					err = os.WriteFile(filepath.Join(sub, filepath.Base(name)), text, 0o644)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			packages = append(packages, "./"+filepath.ToSlash(sub))
		}
	}
	if blocks == 0 {
		t.Fatal("no Go block found: this test checks nothing")
	}
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"vet"}, packages...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestMyths holds that the tests exist which docs/myths.md names as proofs.
func TestMyths(t *testing.T) {
	page, err := os.ReadFile("docs/myths.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	err = filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		src, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(src, -1) {
			tests[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(Test\\w+)`").FindAllSubmatch(page, -1)
	for _, m := range named {
		if !tests[string(m[1])] {
			t.Errorf("docs/myths.md names the test %s, which does not exist", m[1])
		}
	}
	if len(named) == 0 {
		t.Error("docs/myths.md names no test")
	}
}

// TestREADME holds that the README stays short and that the program it shows
// is the one that runs.
func TestREADME(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(strings.Fields(string(readme))); n > 600 {
		t.Errorf("README.md has %d words, want at most 600", n)
	}
	program, err := os.ReadFile("examples/minimal/main.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(program, []byte("\n")); n > 60 {
		t.Errorf("examples/minimal/main.go has %d lines, want at most 60", n)
	}
	if !bytes.Contains(readme, append([]byte("```go\n"), program...)) {
		t.Error("README.md does not show examples/minimal/main.go as it is")
	}
}

// TestWebsiteIsShort holds that an operator stays about as long as with another framework:
// the lines with code of the website example, without its API types and its DNS service.
func TestWebsiteIsShort(t *testing.T) {
	lines := func(file string) (n int) {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(src)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
				n++
			}
		}
		return n
	}
	program, controller := lines("examples/website/main.go"), lines("examples/website/controller/controller.go")
	if program > 35 || program+controller > 190 {
		t.Errorf("examples/website has %d lines in main.go and %d in all, want at most 35 and 190", program, program+controller)
	}
	files, err := filepath.Glob("examples/website/controller/*.go")
	if err != nil {
		t.Fatal(err)
	}
	if files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") }); len(files) != 1 {
		t.Errorf("the lines of %q are not all counted", files)
	}
}

// TestWebsiteNamesFew holds that an operator needs few names of the library: the packages'
// functions, types and constants, and the methods and fields, by name.
func TestWebsiteNamesFew(t *testing.T) {
	packages := []string{"./examples/website", "./examples/website/controller"}
	exports := map[string]string{}
	for line := range strings.Lines(string(run(t, ".", "go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}, packages...)...))) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[path] = file
	}
	fset := token.NewFileSet()
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })}
	names := map[string]bool{}
	for _, p := range goList(t, packages...) {
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
		if _, err := config.Check(p.ImportPath, fset, files, info); err != nil {
			t.Fatal(err)
		}
		for _, obj := range info.Uses {
			if obj.Pkg() == nil || !obj.Exported() || !slices.Contains(library(), strings.TrimPrefix(obj.Pkg().Path(), module+"/")) {
				continue
			}
			if obj.Parent() == obj.Pkg().Scope() {
				names[obj.Pkg().Name()+"."+obj.Name()] = true
			} else {
				names["."+obj.Name()] = true
			}
		}
	}
	all := slices.Sorted(maps.Keys(names))
	if len(all) == 0 || len(all) > 30 {
		t.Errorf("examples/website uses %d names of the library, want 1 to 30: %q", len(all), all)
	}
	t.Logf("%d names: %s", len(all), strings.Join(all, " "))
}

// guarantees returns the items under the heading Guarantees of a package's
// documentation, each as one line.
func guarantees(comment string) []string {
	_, rest, found := strings.Cut(comment, "\n# Guarantees\n")
	if !found {
		return nil
	}
	var items []string
	for line := range strings.Lines(rest) {
		line = strings.TrimRight(line, "\n")
		switch text := strings.TrimSpace(line); {
		case strings.HasPrefix(line, "# "):
			return items
		case strings.HasPrefix(text, "- "):
			items = append(items, strings.TrimPrefix(text, "- "))
		case text != "" && len(items) > 0:
			items[len(items)-1] += " " + text
		}
	}
	return items
}

// TestGuarantees holds that GUARANTEES.md has a row for each promise of the
// packages' documentation, with its id and in its words, that the tests it names prove
// it by their comments, and that it counts the other tests that do.
func TestGuarantees(t *testing.T) {
	src, err := os.ReadFile("GUARANTEES.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][][]string{} // by package
	var section string
	ids := map[string]bool{}
	for line := range strings.Lines(string(src)) {
		line = strings.TrimRight(line, "\n")
		if name, ok := strings.CutPrefix(line, "## "); ok {
			section = name
		}
		if cells := strings.Split(line, " | "); strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| id ") {
			if len(cells) != 3 {
				t.Errorf("a row of %s has %d cells, want 3: %s", section, len(cells), line)
				continue
			}
			id := strings.TrimPrefix(cells[0], "| ")
			if ids[id] {
				t.Errorf("the id %s is there twice", id)
			}
			ids[id] = true
			rows[section] = append(rows[section], cells)
		}
	}
	for _, name := range published() {
		t.Run(name, func(t *testing.T) {
			p, _, tests := parsePackage(t, name)
			var got []string
			for _, cells := range rows[name] {
				got = append(got, strings.TrimPrefix(cells[0], "| ")+": "+cells[1])
			}
			if diff := cmp.Diff(guarantees(p.Doc), got); diff != "" {
				t.Errorf("promises (-documentation +GUARANTEES.md):\n%s", diff)
			}
			proofs := map[string][]string{} // the tests of each id, by their comments
			below, err := filepath.Glob(filepath.Join(name, "internal", "*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, dir := range below {
				_, _, more := parsePackage(t, dir)
				tests = append(tests, more...)
			}
			for _, f := range tests {
				for _, d := range f.Decls {
					if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
						_, proves, _ := strings.Cut(strings.Join(strings.Fields(fn.Doc.Text()), " "), "roves ")
						for _, id := range regexp.MustCompile(`\b[A-Z]{1,2}[0-9]+\b`).FindAllString(proves, -1) {
							proofs[id] = append(proofs[id], fn.Name.Name)
						}
					}
				}
			}
			for _, cells := range rows[name] {
				id := strings.TrimPrefix(cells[0], "| ")
				text, more, _ := strings.Cut(strings.TrimSuffix(cells[2], " |"), " +")
				named := strings.Split(text, ", ")
				for _, test := range named {
					if !slices.Contains(proofs[id], test) {
						t.Errorf("%s names the test %q, but %s has no such test whose comment says that it proves %s", id, test, name, id)
					}
				}
				others, _ := strconv.Atoi(more) // 0 if there are no others
				if got := len(named) + others; got != len(proofs[id]) {
					t.Errorf("%s has %d tests, but by their comments these prove it: %v", id, got, proofs[id])
				}
				delete(proofs, id)
			}
			for id, tests := range proofs {
				t.Errorf("%v prove %s, which is not a row of %s", tests, id, name)
			}
			if len(rows[name]) == 0 {
				t.Errorf("GUARANTEES.md has nothing about %s", name)
			}
		})
	}
}
