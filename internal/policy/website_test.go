package policy

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestWebsiteNamesFew holds that an operator needs few names of the library: the packages'
// functions, types and constants, and the methods and fields, by name.
func TestWebsiteNamesFew(t *testing.T) {
	root(t)
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
	members := 0
	for _, name := range all {
		if strings.HasPrefix(name, ".") {
			members++
		}
	}
	if len(all) == 0 || len(all)-members > 12 || members > 12 {
		t.Errorf("examples/website uses %d names of packages of the library and %d methods and fields, want 1 to 12 of each: %q", len(all)-members, members, all)
	}
	t.Logf("%d names: %s", len(all), strings.Join(all, " "))
}

// TestWebsiteIsShort holds that an operator stays about as long as with another framework:
// the lines with code of the website example, without its API types and its DNS service.
func TestWebsiteIsShort(t *testing.T) {
	root(t)
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
	if program > 25 || program+controller > 116 {
		t.Errorf("examples/website has %d lines in main.go and %d in all, want at most 25 and 116", program, program+controller)
	}
	files, err := filepath.Glob("examples/website/controller/*.go")
	if err != nil {
		t.Fatal(err)
	}
	if files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") }); len(files) != 1 {
		t.Errorf("the lines of %q are not all counted", files)
	}
}
