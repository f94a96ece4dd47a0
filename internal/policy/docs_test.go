package policy

import (
	"bytes"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// TestPackageComments holds that every package says what it is.
func TestPackageComments(t *testing.T) {
	root(t)
	for _, p := range goList(t, "./...") {
		if strings.Contains(p.ImportPath, "/client/") {
			continue // generated
		}
		if p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		if slices.Contains(library(), rel) && !slices.Contains(p.GoFiles, "doc.go") {
			t.Errorf("%s has no doc.go", p.ImportPath)
		}
	}
}

// TestPackageCommentsAreShort holds that a reader of ten minutes can read a package
// comment: the words before the first heading are enough to use the package.
func TestPackageCommentsAreShort(t *testing.T) {
	root(t)
	for _, name := range published() {
		p, _, _ := parsePackage(t, name)
		intro, _, _ := strings.Cut(p.Doc, "\n# ")
		if n := words(intro); n > 150 {
			t.Errorf("the comment of package %s has %d words before its first heading, want at most 150", name, n)
		}
		if n := words(p.Doc); n > 600 {
			t.Errorf("the comment of package %s has %d words, want at most 600", name, n)
		}
	}
}

// words counts the words of a text, code included, without bullets and punctuation.
func words(text string) (n int) {
	for word := range strings.FieldsSeq(text) {
		if strings.ContainsFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			n++
		}
	}
	return n
}

// TestManifests holds that a package comment names each manifest, so that users find it.
func TestManifests(t *testing.T) {
	root(t)
	for _, name := range published() {
		files, err := filepath.Glob(filepath.Join(name, "manifests", "*"))
		if err != nil {
			t.Fatal(err)
		}
		if len(files) == 0 {
			continue
		}
		p, _, _ := parsePackage(t, name)
		for _, file := range files {
			if mention := "manifests/" + filepath.Base(file); !strings.Contains(p.Doc, mention) {
				t.Errorf("the comment of package %s does not name %s", name, mention)
			}
		}
	}
}

// TestFirstTest holds that the test which the package comment of controllertest
// shows is one that runs, and is short.
func TestFirstTest(t *testing.T) {
	root(t)
	source, err := os.ReadFile("controllertest/first_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, ok := strings.Cut(string(source), "\nfunc TestGreeter(")
	if !ok {
		t.Fatal("controllertest/first_test.go has no TestGreeter")
	}
	code = "func TestGreeter(" + code
	if lines := strings.Count(code, "\n"); lines >= 30 {
		t.Errorf("a user's first test has %d lines, want fewer than 30", lines)
	}
	var shown strings.Builder
	for line := range strings.Lines(code) {
		shown.WriteString("//\t" + line)
	}
	comment, err := os.ReadFile("controllertest/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(comment), shown.String()) {
		t.Error("controllertest/doc.go does not show TestGreeter as first_test.go has it")
	}
}

// TestDocs holds that the Go blocks of docs/ compile; TestREADME compares that of README.md. A block
// that begins with a package clause stands for itself; the others of a page
// are the declarations of one file, whose imports are in the page's first. The files of
// docs/testdata/PAGE, which a reader generates, join them. The pages in-your-manager.md and
// tracing.md are about the modules managerkit and tracing, whose TestDocs compile them. The code of
// docs/recipes is that of its tests: see TestRecipes.
func TestDocs(t *testing.T) {
	root(t)
	var pages []string
	err := filepath.WalkDir("docs", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path == filepath.Join("docs", "recipes") {
			return fs.SkipDir
		}
		if err == nil && strings.HasSuffix(path, ".md") && path != filepath.Join("docs", "in-your-manager.md") && path != filepath.Join("docs", "tracing.md") {
			pages = append(pages, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	// Inside the module, so that the pages see this checkout, and out of the
	// sight of ./... by its name.
	dir, err := os.MkdirTemp(".", "_docs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	block := regexp.MustCompile("(?ms)^```go\n(.*?)^```$")
	var packages []string
	blocks := 0
	for i, page := range pages {
		src, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		var whole []string
		var parts strings.Builder
		for _, m := range block.FindAllSubmatch(src, -1) {
			blocks++
			if code := string(m[1]); strings.HasPrefix(code, "package ") {
				whole = append(whole, code)
			} else {
				parts.WriteString(code)
			}
		}
		if parts.Len() > 0 {
			whole = append(whole, "package page\n\n"+parts.String())
		}
		for j, code := range whole {
			sub := filepath.Join(dir, fmt.Sprintf("p%d_%d", i, j))
			if err := os.Mkdir(sub, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(sub, strings.NewReplacer("/", "_", ".md", ".go").Replace(page)), []byte(code), 0o644); err != nil {
				t.Fatal(err)
			}
			generated, err := filepath.Glob(filepath.Join("docs", "testdata", strings.TrimSuffix(filepath.Base(page), ".md"), "*.go"))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range generated {
				text, err := os.ReadFile(name)
				if err == nil {
					err = os.WriteFile(filepath.Join(sub, filepath.Base(name)), text, 0o644)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			packages = append(packages, "./"+filepath.ToSlash(sub))
		}
	}
	if blocks == 0 {
		t.Fatal("no Go block found: this test checks nothing")
	}
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"vet"}, packages...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestNamespacesPage holds that docs/namespaces.md shows the code that operator's
// TestServerNamespaces runs.
func TestNamespacesPage(t *testing.T) {
	root(t)
	page, err := os.ReadFile("docs/namespaces.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("operator/example_scope_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, found := bytes.Cut(source, []byte("\n// scoped reconciles"))
	code, _, found2 := bytes.Cut(code, []byte("\n}\n\n// The namespaces of a controller"))
	if !found || !found2 || !bytes.Contains(page, code) {
		t.Error("docs/namespaces.md does not show the type scoped of operator/example_scope_test.go as it is")
	}
}

// TestTrimmedStatus holds that no page has informer.Trim and status.Update in its code: the status of a built-in kind
// would take the trimmed annotation from the stored object.
func TestTrimmedStatus(t *testing.T) {
	root(t)
	pages, err := filepath.Glob("docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("the pages are %v, %v", pages, err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(text, []byte("WithTransform(informer.Trim)")) && bytes.Contains(text, []byte("status.Update(ctx")) {
			t.Errorf("%s trims a cache and shows status.Update: use status.Patch", page)
		}
	}
}

// TestByHandPage holds that docs/by-hand.md shows the code that operator's TestServerKind compares with Kind.
func TestByHandPage(t *testing.T) {
	root(t)
	page, err := os.ReadFile("docs/by-hand.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("operator/by_hand_server_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, found := bytes.Cut(source, []byte("\ntype byHand struct"))
	code, _, found2 := bytes.Cut(code, []byte("\n// testByHand:"))
	if !found || !found2 || !bytes.Contains(page, bytes.TrimSpace(code)) {
		t.Error("docs/by-hand.md does not show the type byHand of operator/by_hand_server_test.go as it is")
	}
}

// TestRecipes holds that a page of docs/recipes is short, and that it shows whole declarations of the
// package's tests and whole files of its testdata, as they are.
func TestRecipes(t *testing.T) {
	root(t)
	pages, err := filepath.Glob("docs/recipes/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("the pages are %v, %v", pages, err)
	}
	shown := map[string][]string{} // the texts that a page can show, by the language
	for language, pattern := range map[string]string{"go": "docs/recipes/*_test.go", "yaml": "docs/recipes/testdata/*.yaml"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			shown[language] = append(shown[language], string(text))
		}
	}
	block := regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")
	indented := regexp.MustCompile("(?m)^    .*$")
	files := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if n := words(indented.ReplaceAllString(block.ReplaceAllString(string(text), ""), "")); n > 200 {
			t.Errorf("%s has %d words beside its code, want at most 200", page, n)
		}
		blocks := block.FindAllStringSubmatch(string(text), -1)
		if len(blocks) == 0 {
			t.Errorf("%s has no code", page)
		}
		for _, b := range blocks {
			language, code := b[1], b[2]
			switch language {
			case "yaml":
				files++
				if !slices.Contains(shown[language], code) {
					t.Errorf("%s shows a manifest that is no file of docs/recipes/testdata:\n%s", page, code)
				}
			case "go":
				if _, err := parser.ParseFile(token.NewFileSet(), page, "package page\n"+code, parser.SkipObjectResolution); err != nil {
					t.Errorf("%s shows code that is no whole declaration: %v", page, err)
				}
				if !slices.ContainsFunc(shown[language], func(source string) bool { return strings.Contains(source, "\n"+code) }) {
					t.Errorf("%s shows code that is not in a test of docs/recipes:\n%s", page, code)
				}
			default:
				t.Errorf("%s has a block of the language %q: use go, yaml, or indented commands", page, language)
			}
		}
	}
	if files != len(shown["yaml"]) {
		t.Errorf("the pages show %d of the %d files of docs/recipes/testdata", files, len(shown["yaml"]))
	}
}

// TestMyths holds that the tests exist which docs/myths.md names as proofs.
func TestMyths(t *testing.T) {
	root(t)
	page, err := os.ReadFile("docs/myths.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	err = filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		src, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(src, -1) {
			tests[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(Test\\w+)`").FindAllSubmatch(page, -1)
	for _, m := range named {
		if !tests[string(m[1])] {
			t.Errorf("docs/myths.md names the test %s, which does not exist", m[1])
		}
	}
	if len(named) == 0 {
		t.Error("docs/myths.md names no test")
	}
}
