package policy

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestVulncheck holds that .ci/vulncheck fails for every failure except an unreachable
// vulnerability database.
func TestVulncheck(t *testing.T) {
	root(t)
	const unreachable = `govulncheck: fetching vulnerabilities: Get "https://vuln.go.dev/index/modules.json.gz": dial tcp: lookup vuln.go.dev: no such host`
	for _, tt := range []struct {
		name, output string
		code         string
		want         bool
	}{
		{"no finding", "No vulnerabilities found.", "0", true},
		{"no network", unreachable, "1", true},
		{"a finding", "Vulnerability #1: GO-2026-0001", "3", false},
		{"a finding that names the database", "Vulnerability #1: GO-2026-0001\n  More info: https://vuln.go.dev/GO-2026-0001", "3", false},
		{"a compile error beside it", "govulncheck: loading packages: a.go:1:1: expected 'package'\n" + unreachable, "1", false},
		{"an error of the database", `govulncheck: fetching vulnerabilities: unexpected status code: 500 from vuln.go.dev`, "1", false},
		{"a missing program", "", "127", false},
	} {
		program := filepath.Join(t.TempDir(), "govulncheck")
		script := "#!/bin/sh\ncat <<'END' >&2\n" + tt.output + "\nEND\nexit " + tt.code + "\n"
		if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), ".ci/vulncheck", program).CombinedOutput()
		if (err == nil) != tt.want {
			t.Errorf("%s: got %v, want success: %t\n%s", tt.name, err, tt.want, out)
		}
	}
}

// TestVulncheckModules holds that .ci/vulncheck scans each module of the repository. The
// modules in internal folders are only for its own development.
func TestVulncheckModules(t *testing.T) {
	root(t)
	root, err := filepath.Abs(".")
	if err == nil {
		root, err = filepath.EvalSymlinks(root)
	}
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "internal" || path != "." && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case !d.IsDir() && d.Name() == "go.mod":
			want = append(want, filepath.Join(root, filepath.Dir(path)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	scanned := filepath.Join(t.TempDir(), "scanned")
	program := filepath.Join(t.TempDir(), "govulncheck")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n[ \"$1\" = ./... ] && pwd -P >>'"+scanned+"'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), ".ci/vulncheck", program).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(scanned)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(string(b))
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("modules scanned: %q\nmodules: %q", got, want)
	}
}
