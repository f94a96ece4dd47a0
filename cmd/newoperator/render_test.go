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

// TestName: a second operator of a kind with the same name has other names for all objects that are not of its group.
func TestName(t *testing.T) {
	objects := func(n names) map[string]bool {
		files, err := render(checked(t, n))
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]bool{}
		for path, text := range files {
			if !strings.HasPrefix(path, "config/") || !strings.HasSuffix(path, ".yaml") || path == "config/sample.yaml" || path == "config/kustomization.yaml" {
				continue
			}
			for document := range strings.SplitSeq(text, "\n---\n") {
				var obj struct {
					Kind     string
					Metadata struct{ Namespace, Name string }
				}
				if err := yaml.Unmarshal([]byte(document), &obj); err != nil {
					t.Fatal(err)
				}
				all[obj.Kind+" "+obj.Metadata.Namespace+"/"+obj.Metadata.Name] = true
			}
		}
		return all
	}
	first := objects(names{module: "example.com/a", kind: "Database", group: "db.a.com"})
	second := objects(names{module: "example.com/b", kind: "Database", group: "db.b.com", name: "other"})
	for object := range second {
		if first[object] {
			t.Errorf("both operators have the %s", object)
		}
	}
	if len(second) < 12 || !second["Deployment other-system/other-operator"] || !first["Deployment database-system/database-operator"] {
		t.Errorf("the objects are %v and %v", first, second)
	}
	// The policy of newer servers is not part of an installation, so no target of the Makefile protects it.
	if third := objects(names{module: "example.com/c", kind: "Database", group: "db.c.com"}); third["MutatingAdmissionPolicy /finalizer.databases.db.a.com"] || !third["MutatingAdmissionPolicy /finalizer.databases.db.c.com"] {
		t.Errorf("the policy has no name of its own: %v", third)
	}
}

// TestREADME: the README leads to the alerts, their runbooks and the debug page, and its names are those of the files.
func TestREADME(t *testing.T) {
	files, err := render(checked(t, names{module: "example.com/shop", kind: "Shop", group: "shop.example.com"}))
	if err != nil {
		t.Fatal(err)
	}
	readme := files["README.md"]
	linked := map[string]bool{}
	for _, link := range regexp.MustCompile(`controllerkit/blob/main/([^)\s]+)`).FindAllStringSubmatch(readme, -1) {
		if linked[link[1]] = true; !exists(filepath.Join(root(t), filepath.FromSlash(link[1]))) {
			t.Errorf("README.md links %s, which does not exist", link[1])
		}
	}
	for _, page := range []string{"docs/alerts.md", "docs/runbooks.md", "docs/debug.md"} {
		if !linked[page] {
			t.Errorf("README.md does not link %s", page)
		}
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+[^/`])` \\|").FindAllStringSubmatch(readme, -1) {
		if files[row[1]] == "" {
			t.Errorf("README.md names %s, which does not exist", row[1])
		}
	}
	for _, want := range []string{"names: [shop-operator.shop-system.svc], type: A, port: 8080", "make undeploy", "in the state Terminating", "port-forward POD 6060"} {
		if !strings.Contains(readme, want) {
			t.Errorf("README.md lacks %q", want)
		}
	}
	if !strings.Contains(files["main.go"], `flag.StringVar(&o.Debug, "debug", "127.0.0.1:6060",`) {
		t.Errorf("main.go has no flag -debug with the port of README.md: %s", files["main.go"])
	}
	for path, want := range map[string]string{"config/service.yaml": "name: shop-operator\n  namespace: shop-system\n", "config/monitor.yaml": "app.kubernetes.io/name: shop-operator\n"} {
		if !strings.Contains(files[path], want) {
			t.Errorf("%s lacks %q", path, want)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
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
