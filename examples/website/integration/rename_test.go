package integration_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// TestServerRename makes a repository as docs/start.md shows, and runs its tests, which
// include an exploration on the API server.
func TestServerRename(t *testing.T) {
	testserver.Needed(t)
	t.Parallel()
	root, err := testserver.Root()
	if err != nil {
		t.Fatal(err)
	}
	server, err := testserver.Binary()
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(t.TempDir(), "shop")
	in := func(dir, name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "CONTROLLERKIT="+root, controllertest.ServerVariable+"="+server, "GOFLAGS=-mod=mod")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	in(root, "examples/website/rename.sh", folder, "example.com/shop", "Shop", "shop.example.com")
	if left, err := exec.Command("grep", "-rniE", "website|web.example.com", folder, "--include=*.go", "--include=*.yaml", "--include=*.md", "--include=Dockerfile").CombinedOutput(); err == nil {
		t.Errorf("old names are left:\n%s", left)
	}
	if module := in(folder, "go", "list", "-m"); module != "example.com/shop\n" {
		t.Errorf("the module is %q", module)
	}
	t.Log(in(folder, "go", "test", "-vet=off", "./...")) // rename.sh has vetted it

	cmd := exec.Command("examples/website/rename.sh", folder, "example.com/shop", "Shop", "shop.example.com")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "exists: use a new folder") {
		t.Errorf("a second time: %v, %q, want an error with the cure", err, out)
	}
}
