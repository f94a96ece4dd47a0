package policy

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestREADME holds that the README stays short and that the code it shows is a part of a program
// that runs.
func TestREADME(t *testing.T) {
	root(t)
	readme := string(read(t, "README.md"))
	if n := words(readme); n > 600 {
		t.Errorf("README.md has %d words, want at most 600", n)
	}
	program := read(t, "examples/minimal/main.go")
	if n := bytes.Count(program, []byte("\n")); n > 45 {
		t.Errorf("examples/minimal/main.go has %d lines, want at most 45", n)
	}
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(readme, -1)
	if len(blocks) != 1 {
		t.Fatalf("README.md has %d blocks of Go, want one", len(blocks))
	}
	code := blocks[0][1]
	if n := strings.Count(code, "\n"); n > 25 {
		t.Errorf("README.md shows %d lines of code, want at most 25", n)
	}
	var lines strings.Builder
	for line := range strings.Lines(string(program)) {
		lines.WriteString(strings.TrimPrefix(line, "\t"))
	}
	if !strings.Contains(lines.String(), "\n"+code) {
		t.Error("README.md does not show a part of examples/minimal/main.go as it is")
	}
}

// TestREADMEFigures holds that each figure of the README is the one of the row or the page that it
// names, and that its counts are right.
func TestREADMEFigures(t *testing.T) {
	root(t)
	readme := string(read(t, "README.md"))
	results := string(read(t, "internal/bench/RESULTS.md"))
	rows := regexp.MustCompile(`(?m)^\| (.+) \| ([\w ,-]+): (\S+)( \w+)? \| (\S+)( \w+)? \| \[([^]]+)\]\(([^)#]+)(#\w+)?\) \|$`).FindAllStringSubmatch(readme, -1)
	table := regexp.MustCompile(`(?m)^\|.*\|$`).FindAllString(readme, -1)
	if len(rows) == 0 || len(rows) != len(table)-2 {
		t.Fatalf("README.md has %d rows of figures and %d that cannot be read", len(rows), len(table)-2-len(rows))
	}
	for _, row := range rows {
		what, rival, before, unit, after, name, page := row[1], row[2], row[3], row[4], row[5], row[7], row[8]
		if page == "internal/bench/RESULTS.md" {
			if anchor := "#" + strings.ReplaceAll(name, "/", ""); anchor != row[9] {
				t.Errorf("%s: the link to %s is %s, want %s", what, name, row[9], anchor)
			}
			_, section, _ := strings.Cut(results, "\n## "+name+"\n")
			section, _, _ = strings.Cut(section, "\n## ")
			if !slices.ContainsFunc(strings.Split(section, "\n"), func(line string) bool {
				cells := strings.Split(line, " | ")
				return len(cells) > 4 && median(cells[2]) == after && strings.HasPrefix(cells[3], rival) && median(cells[4]) == before
			}) {
				t.Errorf("%s: %s has no line with %s beside %s of %s", what, name, after, before, rival)
			}
			continue
		}
		cells := `(?m)^\| .* \| ` + regexp.QuoteMeta(before+unit) + `(| with .*) \| ` + regexp.QuoteMeta(after+row[6]) + ` \|`
		if !regexp.MustCompile(cells).Match(read(t, page)) {
			t.Errorf("%s: %s has no line with %s%s beside %s%s", what, page, after, row[6], before, unit)
		}
	}
	for _, c := range []struct{ text, row, line string }{
		{"with all guards by hand an object takes 7 requests too", "life/requests", `\| requests/life \| 7 \| controller-runtime, all guarded \| 7( |$)`},
		{"with events during an outage 35 calls in place of 29", "life/reconciles", `\| outage with events \| reconciles, outage/object \| 35 \| controller-runtime, status guarded \| 29 `},
		{"after it 0.9 s until success", "life/reconciles", `\| outage \| seconds from its end to the success/object \| 0\.(8[5-9]|9[0-4]?) .* controller-runtime`},
		{"a stop takes 0.5 s", "stop/load", `\| ns/stop \| (4[5-9]|5[0-4])\d,\d{3},\d{3} .* controller-runtime`},
	} {
		_, section, _ := strings.Cut(results, "\n## "+c.row+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		if !strings.Contains(strings.Join(strings.Fields(readme), " "), c.text) || !regexp.MustCompile(c.line).MatchString(section) {
			t.Errorf("README.md does not have %q, or %s no line that fits %s", c.text, c.row, c.line)
		}
	}
	count := func(page, pattern string) int {
		return len(regexp.MustCompile(pattern).FindAll(read(t, page), -1))
	}
	all, onServer := count("GUARANTEES.md", `(?m)^\| [A-Z]+\d+ \|`), count("GUARANTEES.md", `(?m)^\| [A-Z]+\d+ \|.* TestServer\w*( \+\d+)? \|$`)
	if share := float64(onServer) / float64(all); !strings.Contains(readme, "half of them on a real kube-apiserver") || share < 0.45 || share > 0.55 {
		t.Errorf("%d of %d promises name a test on the real API server, and README.md should say half", onServer, all)
	}
	for _, c := range []struct {
		text string
		n    int
	}{
		{`(\d+) promises\]`, all},
		{`(\d+) bugs\]`, count("docs/findings.md", `(?m)^## (A|JobSet|cert-manager) `)},
	} {
		m := regexp.MustCompile(c.text).FindStringSubmatch(readme)
		if m == nil || m[1] != strconv.Itoa(c.n) {
			t.Errorf("README.md has %q for %s, want %d", m, c.text, c.n)
		}
	}
}

// median returns the median of a cell of RESULTS.md, which has the range in parentheses.
func median(cell string) string {
	m, _, _ := strings.Cut(strings.TrimSpace(cell), " ")
	return m
}

// TestQuestions holds that each link of doc.go leads to a package, a name, an example or a page that
// exists, and that the index of questions has links.
func TestQuestions(t *testing.T) {
	root(t)
	src := string(read(t, "doc.go"))
	links := regexp.MustCompile(`(?m)^// \[([^]]+)\]: (\S+)$`).FindAllStringSubmatch(src, -1)
	if len(links) < len(library()) {
		t.Fatalf("doc.go has %d links, want one for each of %d packages and more", len(links), len(library()))
	}
	for _, link := range links {
		text, target := link[1], link[2]
		if n := strings.Count(src, "["+text+"]"); n < 2 {
			t.Errorf("doc.go does not use the link [%s]", text)
		}
		if page, ok := strings.CutPrefix(target, "https://"+module+"/blob/main/"); ok {
			if _, err := os.Stat(page); err != nil {
				t.Errorf("[%s]: %v", text, err)
			}
			continue
		}
		dir, anchor, _ := strings.Cut(strings.TrimPrefix(target, "https://pkg.go.dev/"+module+"/"), "#")
		if files, err := filepath.Glob(filepath.Join(dir, "*.go")); err != nil || len(files) == 0 {
			t.Errorf("[%s]: %s is no package", text, target)
			continue
		}
		if anchor != "" && !named(t, dir, anchor) {
			t.Errorf("[%s]: package %s has no %s", text, dir, anchor)
		}
	}
}

// named reports whether a package has an exported name, such as T, T.Method or T.Field, or an
// example, such as example-T.
func named(t *testing.T, dir, anchor string) bool {
	t.Helper()
	example, ok := strings.CutPrefix(anchor, "example-")
	if !ok {
		return exec.CommandContext(t.Context(), "go", "doc", "./"+dir, anchor).Run() == nil
	}
	tests, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	example = strings.NewReplacer("package", "", ".", "_", "-", "_").Replace(example)
	return slices.ContainsFunc(tests, func(file string) bool {
		return bytes.Contains(bytes.ToLower(read(t, file)), []byte("func example"+strings.ToLower(example)+"()"))
	})
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
