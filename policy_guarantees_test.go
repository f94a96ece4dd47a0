package controllerkit_test

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

// TestGuarantees holds that GUARANTEES.md has a row for each promise of the
// packages' documentation, with its id and in its words, that the tests it names prove
// it by their comments, and that it counts the other tests that do.
func TestGuarantees(t *testing.T) {
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
	for _, name := range published() {
		t.Run(name, func(t *testing.T) {
			p, _, tests := parsePackage(t, name)
			var got []string
			for _, cells := range rows[name] {
				got = append(got, strings.TrimPrefix(cells[0], "| ")+": "+cells[1])
			}
			if diff := cmp.Diff(guarantees(p.Doc), got); diff != "" {
				t.Errorf("promises (-documentation +GUARANTEES.md):\n%s", diff)
			}
			proofs := map[string][]string{} // the tests of each id, by their comments
			below, err := filepath.Glob(filepath.Join(name, "internal", "*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, dir := range below {
				_, _, more := parsePackage(t, dir)
				tests = append(tests, more...)
			}
			for _, f := range tests {
				for _, d := range f.Decls {
					if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
						_, proves, _ := strings.Cut(strings.Join(strings.Fields(fn.Doc.Text()), " "), "roves ")
						for _, id := range regexp.MustCompile(`\b[A-Z]{1,2}[0-9]+\b`).FindAllString(proves, -1) {
							proofs[id] = append(proofs[id], fn.Name.Name)
						}
					}
				}
			}
			for _, cells := range rows[name] {
				id := strings.TrimPrefix(cells[0], "| ")
				text, more, _ := strings.Cut(strings.TrimSuffix(cells[2], " |"), " +")
				named := strings.Split(text, ", ")
				for _, test := range named {
					if !slices.Contains(proofs[id], test) {
						t.Errorf("%s names the test %q, but %s has no such test whose comment says that it proves %s", id, test, name, id)
					}
				}
				others, _ := strconv.Atoi(more) // 0 if there are no others
				if got := len(named) + others; got != len(proofs[id]) {
					t.Errorf("%s has %d tests, but by their comments these prove it: %v", id, got, proofs[id])
				}
				delete(proofs, id)
			}
			for id, tests := range proofs {
				t.Errorf("%v prove %s, which is not a row of %s", tests, id, name)
			}
			if len(rows[name]) == 0 {
				t.Errorf("GUARANTEES.md has nothing about %s", name)
			}
		})
	}
}
