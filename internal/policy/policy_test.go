package policy

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// root begins a test in the root folder of the repository. Before m.Run of a TestMain the change of
// the folder would not be noted, and go test would repeat the results of other files.
func root(t *testing.T) {
	t.Helper()
	t.Chdir("../..")
}

const module = "github.com/controllerkit/controllerkit"

// library lists the packages that users import.
func library() []string {
	return []string{
		"consistency", "controllertest", "controllertest/cloud", "controllertest/fault", "controllertest/server", "controllertest/world", "controllertest/world/acme", "crd", "crd/crdtest", "crd/migrate", "debug",
		"enqueue", "enqueue/pause", "enqueue/reads", "external", "finalizer", "informer", "informer/compact", "informer/ondemand", "informer/scope", "leader", "leader/fence", "metrics", "operator",
		"owner", "preview", "queue", "reconcile", "recorder", "serve", "shard", "shard/filter", "shutdown", "ssa", "ssa/applyset", "status", "status/fleet", "status/kstatus", "watcher",
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
func published() []string {
	return append(library(), "managerkit", "managerkit/bridge", "managerkit/managertest", "managerkit/previews", "managerkit/remember", "tracing")
}

// TestLibraryIsWhole holds that the list above, the folders and the map in
// doc.go name the same packages.
func TestLibraryIsWhole(t *testing.T) {
	root(t)
	var got []string
	for _, p := range goList(t, "./...") {
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		if rel == module || strings.Contains("/"+rel, "/internal/") || rel == "examples" || strings.HasPrefix(rel, "examples/") || strings.HasPrefix(rel, "cmd/") || rel == "docs/recipes" {
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
		if link := "\n// [" + name + "]: https://pkg.go.dev/" + module + "/" + name + "\n"; !strings.Contains(string(src), link) {
			t.Errorf("doc.go, the map of the packages, does not have the link %q", link)
		}
	}
}

// TestImports holds that no package of the library except operator, which assembles
// them, controllertest, and a package below its parent imports a sibling, that only metrics imports Prometheus, and that shutdown depends on the
// standard library alone. Shared rules live in internal packages, which all may import. Templates call methods by
// name, so the linker keeps all methods of a program that imports them: a controller is then twice as large.
func TestImports(t *testing.T) {
	root(t)
	packages := library()
	patterns := make([]string, len(packages))
	for i, name := range packages {
		patterns[i] = "./" + name
	}
	for _, p := range goList(t, patterns...) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		for _, dep := range p.Deps {
			if strings.HasPrefix(dep, module+"/") && strings.Contains(dep, "/internal/") {
				continue // what it depends on is in Deps too
			}
			assembly := name == "operator" || strings.HasPrefix(name, "controllertest")
			switch {
			case strings.HasPrefix(dep, module+"/") && !assembly && !strings.HasPrefix(module+"/"+name, dep+"/"):
				t.Errorf("%s depends on %s: packages are taken one at a time", name, dep)
			case strings.HasPrefix(dep, "github.com/prometheus/") && name != "metrics" && !assembly:
				t.Errorf("%s depends on %s: only metrics may", name, dep)
			case (dep == "text/template" || dep == "html/template") && !strings.HasPrefix(name, "controllertest"):
				t.Errorf("%s depends on %s, which doubles the size of a program", name, dep)
			case strings.Contains(strings.SplitN(dep, "/", 2)[0], ".") && name == "shutdown":
				t.Errorf("shutdown depends on %s: it imports the standard library alone", dep)
			}
		}
	}
}

// heavy matches modules that a user of the library must never inherit.
var heavy = regexp.MustCompile(`^(go\.etcd\.io/|k8s\.io/(kubernetes|apiserver|apiextensions-apiserver|component-base|kube-aggregator|controller-manager)$|sigs\.k8s\.io/controller-runtime)`)

type require struct{ Path, Version string }

type moduleFile struct {
	Go      string
	Require []require
	Replace []any
}

// mod reads a module file.
func mod(t *testing.T, dir, file string) (m moduleFile) {
	t.Helper()
	if err := json.Unmarshal(run(t, dir, "go", "mod", "edit", "-json", file), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// floor is the oldest version of client-go that the library supports. Users who have it keep it.
const floor = "v0.36.0"

// TestModules holds what the go.mod files may say: a replace breaks go run
// module@version, heavy requirements would become every user's, and Kubernetes
// builds only with all of its staging modules at one version.
func TestModules(t *testing.T) {
	root(t)
	root := mod(t, ".", "go.mod")
	if len(root.Replace) > 0 {
		t.Error("the root go.mod has a replace")
	}
	if root.Go != "1.26.0" {
		t.Errorf("the root go.mod says go %s, want 1.26.0", root.Go)
	}
	for _, r := range root.Require {
		if strings.HasPrefix(r.Path, "k8s.io/") && (r.Path == "k8s.io/api" || r.Path == "k8s.io/apimachinery" || r.Path == "k8s.io/client-go") && r.Version != floor {
			t.Errorf("the root go.mod requires %s %s, want %s", r.Path, r.Version, floor)
		}
	}
	for line := range strings.Lines(string(run(t, ".", "go", "list", "-m", "all"))) {
		if path := strings.Fields(line)[0]; heavy.MatchString(path) {
			t.Errorf("users of the library would inherit %s", path)
		}
	}

	server := mod(t, "controlplane", "go.mod")
	if len(server.Replace) > 0 {
		t.Error("controlplane/go.mod has a replace: go run module@version refuses it")
	}
	files, err := filepath.Glob("controlplane/*.mod")
	if err != nil || len(files) < 2 {
		t.Fatalf("module files of controlplane: %v, %v, want go.mod and those of older versions", files, err)
	}
	for _, file := range files {
		staging(t, filepath.Base(file))
	}
}

// staging holds that a module file of controlplane requires all staging modules of Kubernetes at
// one version.
func staging(t *testing.T, file string) {
	t.Helper()
	var kubernetes string
	required := map[string]string{}
	for _, r := range mod(t, "controlplane", file).Require {
		required[r.Path] = r.Version
		if r.Path == "k8s.io/kubernetes" {
			kubernetes = r.Version
		}
	}
	if file != "go.mod" && !strings.HasPrefix(kubernetes, "v"+strings.TrimSuffix(strings.TrimPrefix(file, "kubernetes-"), ".mod")+".") {
		t.Errorf("controlplane/%s requires Kubernetes %s", file, kubernetes)
	}
	want := strings.Replace(kubernetes, "v1.", "v0.", 1)
	var upstream struct {
		Replace []struct{ Old, New require }
	}
	// GoMod, not Dir: a module whose source was never downloaded has no directory.
	path := strings.TrimSpace(string(run(t, "controlplane", "go", "list", "-modfile="+file, "-m", "-f", "{{.GoMod}}", "k8s.io/kubernetes")))
	if err := json.Unmarshal(run(t, ".", "go", "mod", "edit", "-json", path), &upstream); err != nil {
		t.Fatal(err)
	}
	if len(upstream.Replace) == 0 {
		t.Fatal("k8s.io/kubernetes replaces no staging module: this test reads the wrong file")
	}
	for _, r := range upstream.Replace {
		if got := required[r.Old.Path]; got != want {
			t.Errorf("controlplane/%s requires %s at %q, want %s", file, r.Old.Path, got, want)
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
