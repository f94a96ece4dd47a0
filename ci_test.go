package controllerkit_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestVulncheck holds that .ci/vulncheck fails for every failure except an unreachable
// vulnerability database.
func TestVulncheck(t *testing.T) {
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
