package suites_test

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	// Their requirements have the packages that the suites import.
	_ "sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	_ "sigs.k8s.io/controller-runtime/pkg/manager"
)

const (
	module     = "sigs.k8s.io/controller-runtime"
	queueTests = "pkg/controller/priorityqueue/priorityqueue_test.go"
	loopTests  = "pkg/internal/controller/controller_test.go"
)

// added are files of this repository beside those of controller-runtime.
var added = map[string]string{"pkg/internal/controller/stop_test.go": "testdata/stop_test.go"}

// replaced are the files that give controller-runtime our queue. It cannot import a package below
// an internal folder of ours, so prioritized.go appears below one of its own.
var replaced = map[string]string{
	"pkg/controller/priorityqueue/priorityqueue.go": "testdata/priorityqueue.go",
	"pkg/controller/priorityqueue/sums_test.go":     "testdata/sums_test.go",
	"pkg/internal/prioritized/prioritized.go":       "../prioritized/prioritized.go",
}

// edits are the places of the tests that compare the depth of each priority, or make a queue of
// client-go.
var edits = []struct {
	file, old, new string
	times          int
}{
	{queueTests, `metrics.depth["test"]).To(Equal(`, `metrics.depth["test"]).To(depths(`, 31},
	{loopTests, "workqueue.NewTyped[reconcile.Request]()", `priorityqueue.New[reconcile.Request]("")`, 2},
	{loopTests, "workqueue.NewTyped[TestRequest]()", `priorityqueue.New[TestRequest]("")`, 1},
}

// forwarder is the function of queueTests that replaces the clock of controller-runtime's queue.
// All its callers run in a bubble of synctest, whose clock is that of our queue.
const (
	forwarder = "newQueueWithTimeForwarder"
	sleeper   = "{ q, m := newQueue(); return q, m, time.Sleep"
)

// build compiles the tests of packages of controller-runtime into a folder, with ours or its own
// queue. The go command allows no overlay over the module cache, so the sources appear in a folder
// that does not exist, in place of the module. Its path is fixed, for the build cache.
func build(t *testing.T, source, out string, ours bool, packages ...string) {
	t.Helper()
	work := t.TempDir()
	root, err := filepath.Abs(filepath.Join("testdata", "controller-runtime"))
	must(t, err)
	overlay := map[string]string{}
	must(t, filepath.WalkDir(source, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(source, path)
		if filepath.Ext(name) == ".go" || name == "go.mod" {
			overlay[filepath.Join(root, name)] = path
		}
		return err
	}))
	place := func(files map[string]string) {
		for name, file := range files {
			path, err := filepath.Abs(file)
			must(t, err)
			overlay[filepath.Join(root, filepath.FromSlash(name))] = path
		}
	}
	place(added)
	if ours {
		place(replaced)
		for _, name := range []string{queueTests, loopTests} {
			path := filepath.Join(work, filepath.Base(name))
			must(t, os.WriteFile(path, edited(t, source, name), 0o600))
			overlay[filepath.Join(root, filepath.FromSlash(name))] = path
		}
	}
	data, err := json.Marshal(map[string]any{"Replace": overlay})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(work, "overlay.json"), data, 0o600))
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(name)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(work, name), data, 0o600))
	}
	mod := filepath.Join(work, "go.mod")
	command(t, "go", "mod", "edit", "-replace="+module+"="+root, mod)
	args := []string{"test", "-c", "-race", "-vet=off", "-modfile=" + mod, "-overlay=" + filepath.Join(work, "overlay.json"), "-o", out + string(filepath.Separator)}
	for _, name := range packages {
		args = append(args, module+"/"+name)
	}
	command(t, "go", args...)
}

// edited returns a file of the tests with the edits. Its lines keep their numbers.
func edited(t *testing.T, source, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(source, filepath.FromSlash(name)))
	must(t, err)
	if name == queueTests {
		text = replaceBody(t, text)
	}
	for _, e := range edits {
		if e.file != name {
			continue
		}
		if n := bytes.Count(text, []byte(e.old)); n != e.times {
			t.Fatalf("%s has %q %d times, want %d: adapt the edits to this version", name, e.old, n, e.times)
		}
		text = bytes.ReplaceAll(text, []byte(e.old), []byte(e.new))
	}
	return text
}

// replaceBody gives forwarder the body sleeper.
func replaceBody(t *testing.T, text []byte) []byte {
	t.Helper()
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, "", text, 0)
	must(t, err)
	for _, d := range f.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && d.Name.Name == forwarder {
			from, to := files.Position(d.Body.Lbrace).Offset, files.Position(d.Body.Rbrace).Offset
			body := sleeper + strings.Repeat("\n", bytes.Count(text[from:to], []byte("\n")))
			return append(append(bytes.Clone(text[:from]), body...), text[to:]...)
		}
	}
	t.Fatalf("%s has no function %s: adapt the edits to this version", queueTests, forwarder)
	return nil
}

// command runs a command and returns its output.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "GOWORK=off") // -modfile works in no workspace
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, &stderr)
	}
	return strings.TrimSpace(string(out))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
