package policy

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// guarantees returns the items under the heading Guarantees of a package's
// documentation, each as one line.
func guarantees(comment string) []string {
	_, rest, found := strings.Cut(comment, "\n# Guarantees\n")
	if !found {
		return nil
	}
	var items []string
	for line := range strings.Lines(rest) {
		line = strings.TrimRight(line, "\n")
		switch text := strings.TrimSpace(line); {
		case strings.HasPrefix(line, "# "):
			return items
		case strings.HasPrefix(text, "- "):
			items = append(items, strings.TrimPrefix(text, "- "))
		case text != "" && len(items) > 0:
			items[len(items)-1] += " " + text
		}
	}
	return items
}

// common is the section of GUARANTEES.md with the promises of several packages. Their ids
// begin with CK, and they stand in the documentation of the root package.
const common = "controllerkit"

// TestGuarantees holds that GUARANTEES.md has a row for each promise of the
// packages' documentation, with its id and in its words, that the tests it names prove
// it by their comments, and that it counts the other tests that do.
func TestGuarantees(t *testing.T) {
	root(t)
	src, err := os.ReadFile("GUARANTEES.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][][]string{} // by package
	var section string
	ids := map[string]bool{}
	for line := range strings.Lines(string(src)) {
		line = strings.TrimRight(line, "\n")
		if name, ok := strings.CutPrefix(line, "## "); ok {
			section = name
		}
		if cells := strings.Split(line, " | "); strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| id ") {
			if len(cells) != 3 {
				t.Errorf("a row of %s has %d cells, want 3: %s", section, len(cells), line)
				continue
			}
			id := strings.TrimPrefix(cells[0], "| ")
			if ids[id] {
				t.Errorf("the id %s is there twice", id)
			}
			ids[id] = true
			rows[section] = append(rows[section], cells)
		}
	}
	for _, name := range append([]string{common}, published()...) {
		t.Run(name, func(t *testing.T) {
			dir, from := name, []string{name}
			if name == common {
				dir, from = ".", published()
			}
			p, _, _ := parsePackage(t, dir)
			var got []string
			for _, cells := range rows[name] {
				got = append(got, strings.TrimPrefix(cells[0], "| ")+": "+cells[1])
			}
			if diff := cmp.Diff(guarantees(p.Doc), got); diff != "" {
				t.Errorf("promises (-documentation +GUARANTEES.md):\n%s", diff)
			}
			proven := map[string][]string{} // the tests of each id, by their comments
			for _, dir := range from {
				for id, tests := range proofs(t, dir) {
					if strings.HasPrefix(id, "CK") == (name == common) {
						proven[id] = append(proven[id], tests...)
					}
				}
			}
			for _, cells := range rows[name] {
				id := strings.TrimPrefix(cells[0], "| ")
				text, more, _ := strings.Cut(strings.TrimSuffix(cells[2], " |"), " +")
				named := strings.Split(text, ", ")
				for _, test := range named {
					if !slices.Contains(proven[id], test) {
						t.Errorf("%s names the test %q, but %s has no such test whose comment says that it proves %s", id, test, name, id)
					}
				}
				others, _ := strconv.Atoi(more) // 0 if there are no others
				if got := len(named) + others; got != len(proven[id]) {
					t.Errorf("%s has %d tests, but by their comments these prove it: %v", id, got, proven[id])
				}
				delete(proven, id)
			}
			for id, tests := range proven {
				t.Errorf("%v prove %s, which is not a row of %s", tests, id, name)
			}
			if len(rows[name]) == 0 {
				t.Errorf("GUARANTEES.md has nothing about %s", name)
			}
		})
	}
}

// proofs returns the names of a package's tests by the ids of the promises that they
// prove by their comments. The tests of its internal packages count.
func proofs(t *testing.T, name string) map[string][]string {
	t.Helper()
	below, err := filepath.Glob(filepath.Join(name, "internal", "*"))
	if err != nil {
		t.Fatal(err)
	}
	byID := map[string][]string{}
	for _, dir := range append([]string{name}, below...) {
		_, _, tests := parsePackage(t, dir)
		for _, f := range tests {
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
					_, proves, _ := strings.Cut(strings.Join(strings.Fields(fn.Doc.Text()), " "), "roves ")
					for _, id := range regexp.MustCompile(`\b[A-Z]{1,2}[0-9]+\b`).FindAllString(proves, -1) {
						byID[id] = append(byID[id], fn.Name.Name)
					}
				}
			}
		}
	}
	return byID
}
