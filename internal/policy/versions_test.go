package policy

import (
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestVersions holds that docs/versions.md has a row for each package and a column for each
// Kubernetes that controlplane compiles, that each gap has its reason on the page, and that make
// versions, the nightly workflow and README.md name the same versions.
func TestVersions(t *testing.T) {
	root(t)
	page := string(read(t, "docs/versions.md"))
	var older []string
	files, err := filepath.Glob("controlplane/kubernetes-*.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		older = append(older, strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "kubernetes-"), ".mod"))
	}
	newest := ""
	for _, r := range mod(t, "controlplane", "go.mod").Require {
		if r.Path == "k8s.io/kubernetes" {
			newest = minor(strings.TrimPrefix(r.Version, "v"))
		}
	}
	header := "| package | " + strings.Join(append(slices.Clone(older), newest), " | ") + " |\n"
	if !strings.Contains(page, header) {
		t.Fatalf("docs/versions.md has no table with the header %s", header)
	}
	cell := regexp.MustCompile(`^(yes|part: \[(\d+)\]\(#[a-z0-9-]+\)|no: \[(\d+)\]\(#[a-z0-9-]+\))$`)
	for _, name := range published() {
		row := regexp.MustCompile("(?m)^\\| `" + regexp.QuoteMeta(name) + "` \\| (.*) \\|$").FindStringSubmatch(page)
		if row == nil {
			t.Errorf("docs/versions.md has no row for %s", name)
			continue
		}
		cells := strings.Split(row[1], " | ")
		if len(cells) != len(older)+1 {
			t.Errorf("docs/versions.md has %d cells for %s, want %d", len(cells), name, len(older)+1)
		}
		for _, text := range cells {
			m := cell.FindStringSubmatch(text)
			if m == nil {
				t.Errorf("docs/versions.md: %s has the cell %q, want yes, or part or no with the link to a reason", name, text)
			} else if reason := m[2] + m[3]; reason != "" && !strings.Contains(page, "\n### "+reason+". ") {
				t.Errorf("docs/versions.md: %s names the reason %s, which the page lacks", name, reason)
			}
		}
	}
	for file, text := range map[string]string{
		"Makefile":                      "\nVERSIONS ?= " + strings.Join(older, " ") + "\n",
		".github/workflows/nightly.yml": `version: ["` + strings.Join(older, `", "`) + `"]`,
		"README.md":                     "client-go " + minor(strings.TrimPrefix(floor, "v")) + " or newer",
	} {
		if !strings.Contains(string(read(t, file)), text) {
			t.Errorf("%s does not have %q", file, text)
		}
	}
}

// minor returns 1.36 of 1.36.1.
// TestKubernetesModules holds that the module files of older Kubernetes were written for what controlplane imports.
// Loading the packages would tell too, but downloads each Kubernetes.
func TestKubernetesModules(t *testing.T) {
	root(t)
	imports := map[string]bool{}
	sources, err := filepath.Glob("controlplane/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range sources {
		f, err := parser.ParseFile(token.NewFileSet(), source, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(source, "_test.go") || strings.HasSuffix(source, "/staging.go") { // which is never built
			continue
		}
		for _, i := range f.Imports {
			if path := strings.Trim(i.Path.Value, `"`); strings.Contains(path, ".") {
				imports[path] = true
			}
		}
	}
	want := "// Imports: " + strings.Join(slices.Sorted(maps.Keys(imports)), " ") + "\n"
	files, err := filepath.Glob("controlplane/kubernetes-*.mod")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		if !strings.HasPrefix(string(read(t, file)), want) {
			t.Errorf("%s was written for other imports than those of controlplane: run .ci/kubernetes with its version", file)
		}
	}
}

func minor(version string) string { return version[:strings.LastIndex(version, ".")] }
