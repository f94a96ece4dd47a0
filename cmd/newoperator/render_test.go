package main

import (
	"go/format"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/examples"
)

func checked(t *testing.T, n names) names {
	t.Helper()
	n, err := n.check()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestRender: with any names, no name of the example is left, the code is formatted, the manifests
// can be read, and a second time the files are the same.
func TestRender(t *testing.T) {
	for _, n := range []names{
		{module: "example.com/shop", kind: "Shop", group: "shop.example.com"},
		{module: "example.com/x/y/v2", kind: "Policy", group: "a.example.com"},
		{module: "example.com/Bus_1", kind: "Bus", group: "example.com"},
		{module: "github.com/a/b", kind: "Day", group: "z.io"},
		{module: "example.com/dns", kind: "DNSRecord", group: "dns.example.com"},
		{module: "example.com/deploy", kind: "Deployment", group: "example.com"}, // a file of config has this name
		{module: "example.com/sheep", kind: "Sheep", plural: "sheep", group: "farm.example.com"},
		{module: "example.com/long", kind: "K" + strings.Repeat("k", maxKind-1), group: strings.Repeat("g", maxGroup-4) + ".com"},
	} {
		n = checked(t, n)
		files, err := render(n)
		if err != nil {
			t.Fatalf("%+v: %v", n, err)
		}
		again, err := render(n)
		if err != nil || !maps.Equal(files, again) {
			t.Errorf("%+v: another result the second time, %v", n, err)
		}
		for path, text := range files {
			if left := regexp.MustCompile(`(?i).*(website|web\.example\.com).*`).FindString(path + "\n" + text); left != "" {
				t.Errorf("%s has a name of the example: %s", path, left)
			}
			if strings.Contains(text, "\r") {
				t.Errorf("%s has carriage returns", path)
			}
			if path == "go.mod" || strings.Contains(path, "\\") || !fs.ValidPath(path) {
				t.Errorf("a file has the path %q", path)
			}
			switch {
			case strings.HasSuffix(path, ".go"):
				if formatted, err := format.Source([]byte(text)); err != nil || string(formatted) != text {
					t.Errorf("%s is not formatted: %v", path, err)
				}
			case strings.HasSuffix(path, ".yaml") || strings.HasSuffix(path, ".yml"):
				for document := range strings.SplitSeq(text, "\n---\n") {
					var obj map[string]any
					if err := yaml.UnmarshalStrict([]byte(document), &obj); err != nil || len(obj) == 0 {
						t.Errorf("%s: %v, %v", path, obj, err)
					}
				}
			}
		}
		for _, path := range []string{
			".dockerignore", ".gitattributes", ".github/workflows/ci.yml", ".gitignore", "AGENTS.md", "Dockerfile", "Makefile", "README.md", "main.go",
			"api/v1/types.go", "config/kustomization.yaml", "config/sample.yaml", "controller/controller.go", "controller/explore_test.go", "dns/client.go",
		} {
			if files[path] == "" {
				t.Errorf("%+v: no file %s", n, path)
			}
		}
	}
}

// TestArticle: texts have the article of the kind.
func TestArticle(t *testing.T) {
	for kind, want := range map[string]string{"Shop": "the life of a shop many times", "Order": "the life of an order many times"} {
		files, err := render(checked(t, names{module: "example.com/shop", kind: kind, group: "shop.example.com"}))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(files["controller/explore_test.go"], want) {
			t.Errorf("%s: no text %q", kind, want)
		}
	}
}

// TestRenderWebsite: with the names of the example the files are those of the example, so formatting
// changes no generated file.
func TestRenderWebsite(t *testing.T) {
	n := checked(t, names{module: library + "x/examples/website", kind: "Website", group: "web.example.com"})
	files, err := render(n)
	if err != nil {
		t.Fatal(err)
	}
	same := 0
	for path, text := range files {
		want, err := fs.ReadFile(examples.Website, "website/"+path)
		if _, ours := fs.Stat(template, "template/"+path); ours == nil || strings.HasSuffix(path, ".go") {
			continue // another file, or another module
		}
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), text); diff != "" {
			t.Errorf("%s (-example +rendered):\n%s", path, diff)
		}
		same++
	}
	if same < 6 {
		t.Errorf("compared %d files", same)
	}
}

// TestRenderCarriageReturns: a checkout with carriage returns makes the same files.
func TestRenderCarriageReturns(t *testing.T) {
	n := checked(t, names{module: "example.com/shop", kind: "Shop", group: "shop.example.com"})
	source := fstest.MapFS{}
	err := fs.WalkDir(examples.Website, "website", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(examples.Website, path)
		source[path] = &fstest.MapFile{Data: []byte(strings.ReplaceAll(string(data), "\n", "\r\n"))}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[string]string{}, map[string]string{}
	if err := add(want, examples.Website, "website", replacer(n)); err != nil {
		t.Fatal(err)
	}
	if err := add(got, source, "website", replacer(n)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" || len(want) < 15 {
		t.Errorf("%d files (-want +got):\n%s", len(want), diff)
	}
}

// TestRules: AGENTS.md is short, because an agent reads it in each session.
func TestRules(t *testing.T) {
	rules, err := fs.ReadFile(template, "template/AGENTS.md")
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(rules), "\n"); lines > 40 {
		t.Errorf("AGENTS.md has %d lines, want at most 40", lines)
	}
	for _, name := range regexp.MustCompile("`(operator|reconcile)\\.(\\w+)`").FindAllStringSubmatch(string(rules), -1) {
		api, err := os.ReadFile(filepath.Join(root(t), "internal", "policy", "testdata", "api", name[1]+".txt"))
		if err != nil || !regexp.MustCompile(`\b`+name[2]+`\b`).Match(api) {
			t.Errorf("AGENTS.md names %s, which does not exist: %v", name[0], err)
		}
	}
	if !strings.Contains(string(rules), "https://github.com/controllerkit/controllerkit/blob/main/docs/mistakes.md") {
		t.Error("AGENTS.md does not link mistakes.md")
	}
}
