package suites_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/controllerkit/controllerkit/internal/testserver"
)

// A program is the tests of packages of a module in the module cache, with changed files.
type program struct {
	module, source string // the source is a folder
	packages       []string
	files          map[string][]byte // the changed and added files; nil leaves a file out
	race           bool
	racy           string // a pattern of specs that do not run
}

// An edit replaces a text in the files of a module that match a pattern of path.Match.
type edit struct {
	files, old, new string
	times           int // in all these files
}

// edited returns the files that the edits change.
func edited(t *testing.T, source string, edits ...edit) map[string][]byte {
	t.Helper()
	texts := map[string][]byte{}
	for _, e := range edits {
		n := 0
		for _, name := range matches(t, source, e.files) {
			text, ok := texts[name]
			if !ok {
				text = read(t, filepath.Join(source, filepath.FromSlash(name)))
			}
			n += bytes.Count(text, []byte(e.old))
			texts[name] = bytes.ReplaceAll(text, []byte(e.old), []byte(e.new))
		}
		if n != e.times {
			t.Fatalf("%s has %q %d times, want %d: adapt the edits to this version", e.files, e.old, n, e.times)
		}
	}
	return texts
}

// matches returns the names of the files of a module that match a pattern.
func matches(t *testing.T, source, pattern string) []string {
	t.Helper()
	names, err := fs.Glob(os.DirFS(source), pattern)
	must(t, err)
	if len(names) == 0 {
		t.Fatalf("%s has no file %s: adapt the edits to this version", source, pattern)
	}
	return names
}

// build compiles a program and returns the folder of its binaries. The go command allows no overlay over the module cache,
// so the sources appear in a folder that does not exist, in place of the module. Its path is fixed,
// for the build cache.
func (p program) build(t *testing.T) (out string) {
	t.Helper()
	out, work := t.TempDir(), t.TempDir()
	root, err := filepath.Abs(filepath.Join("testdata", path.Base(p.module)))
	must(t, err)
	overlay := map[string]string{}
	must(t, filepath.WalkDir(p.source, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(p.source, path)
		if filepath.Ext(name) == ".go" || name == "go.mod" {
			overlay[filepath.Join(root, name)] = path
		}
		return err
	}))
	for name, text := range p.files {
		name = filepath.FromSlash(name)
		if text == nil {
			delete(overlay, filepath.Join(root, name))
			continue
		}
		overlay[filepath.Join(root, name)] = write(t, filepath.Join(work, "files", name), text)
	}
	data, err := json.Marshal(map[string]any{"Replace": overlay})
	must(t, err)
	replacing := write(t, filepath.Join(work, "overlay.json"), data)
	mod := write(t, filepath.Join(work, "go.mod"), read(t, "go.mod"))
	write(t, filepath.Join(work, "go.sum"), read(t, "go.sum"))
	command(t, "go", "mod", "edit", "-replace="+p.module+"="+root, mod)
	args := []string{"test", "-c", fmt.Sprintf("-race=%t", p.race), "-vet=off", "-modfile=" + mod, "-overlay=" + replacing, "-o", out + string(filepath.Separator)}
	for _, name := range p.packages {
		args = append(args, p.module+"/"+name)
	}
	command(t, "go", args...)
	return out
}

// sourceOf returns the folder of a module in the module cache.
func sourceOf(t *testing.T, module string) string {
	t.Helper()
	return command(t, "go", "list", "-m", "-f", "{{.Dir}}", module)
}

// assets returns the environment by which a suite of envtest runs on controlplane.
func assets(t *testing.T) string {
	t.Helper()
	binary, err := testserver.Binary()
	must(t, err)
	folder := t.TempDir()
	command(t, binary, "-assets", folder)
	return "KUBEBUILDER_ASSETS=" + folder
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

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	return text
}

// write writes a file and returns its name.
func write(t *testing.T, file string, text []byte) string {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(file), 0o700))
	must(t, os.WriteFile(file, text, 0o600))
	return file
}
