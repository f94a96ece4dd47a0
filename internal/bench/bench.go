package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Figures that Meter.Measure counts. All are per operation.
const (
	Time   = "ns"
	Allocs = "allocs"
	Bytes  = "B"
)

// Row is one comparison.
type Row struct {
	// Name is the area and the work: "queue/cycle".
	Name string

	// About describes the work in a few sentences of Markdown.
	About string

	// Op is the name of one operation: "key", "apply".
	Op string

	// Long means that the row runs only if it is selected by name, since it takes many minutes.
	Long bool

	// Together means that all repeats of both contenders of a pair run at once, after one run of
	// each that warms up. It is for rows that wait most of the time, and not for Measure, which
	// sees the whole process.
	Together bool

	// Curve is the name of the axis of X, if the row is a curve: "keys". Draw draws it.
	Curve string

	// Goals are checked for every pair of their case that measures their figure. If no pair
	// does, the run fails.
	Goals []Goal

	// Pairs prepares the row right before it runs. Cleanup is called after the
	// run, even if the run fails. It may be nil.
	Pairs func(ctx context.Context) (pairs []Pair, cleanup func(), err error)
}

// Goal is an upper bound on a figure.
type Goal struct {
	Figure string

	// Case is the case of the pairs that the goal is for. "" means all cases.
	Case string

	// Rival is the contender whose figure divides the library's figure. If Rival
	// is "", the goal bounds the library's figure itself.
	Rival string

	// Worst means that the bound is for the worst repeat, and not for the median. It is for
	// counts of errors, and needs a Rival of "".
	Worst bool

	AtMost  float64
	Stretch float64 // an optional stricter bound; 0 means none
}

// Pair compares the library with one rival at the same work.
type Pair struct {
	X      float64 // of a Curve
	Case   string  // distinguishes pairs with the same rival: "string keys"; "" for a single pair
	Ours   Contender
	Theirs Contender
}

// Contender is one implementation of a row's work.
type Contender struct {
	Name string // "client-go"

	// Module is the path of the module whose version RESULTS.md prints with the
	// figures. If another program has the module, the version follows after a space. "" means
	// that all code is in this repository.
	Module string

	// Run does the work once, from set-up to clean-up, and returns the number of
	// operations.
	Run func(ctx context.Context, m *Meter) (ops int, err error)
}

var registered []Row

// Register adds a row. It is for init functions and panics if the row is invalid.
func Register(row Row) {
	switch area, work, ok := strings.Cut(row.Name, "/"); {
	case !ok || area == "" || work == "" || strings.ContainsAny(row.Name, " \n"):
		panic(fmt.Sprintf("bench: row name %q is not valid: use area/work", row.Name))
	case row.Op == "" || row.About == "" || row.Pairs == nil:
		panic(fmt.Sprintf("bench: row %q lacks a required field: set About, Op and Pairs", row.Name))
	case slices.ContainsFunc(row.Goals, func(g Goal) bool { return g.Worst && g.Rival != "" }):
		panic(fmt.Sprintf("bench: row %q has a goal with Worst and a Rival: remove one", row.Name))
	case slices.ContainsFunc(registered, func(r Row) bool { return r.Name == row.Name }):
		panic(fmt.Sprintf("bench: row name %q is registered already: choose another name", row.Name))
	}
	registered = append(registered, row)
}

// Rows returns the registered rows, sorted by name.
func Rows() []Row {
	rows := slices.Clone(registered)
	slices.SortFunc(rows, func(a, b Row) int { return strings.Compare(a.Name, b.Name) })
	return rows
}

// Select returns the row with the given name. If there is none, it returns the rows
// whose names begin with the given name. "" selects all rows that are not Long.
func Select(rows []Row, name string) ([]Row, error) {
	var selected []Row
	for _, row := range rows {
		if name == "" && row.Long {
			continue
		}
		if row.Name == name {
			return []Row{row}, nil
		}
		if strings.HasPrefix(row.Name, name) {
			selected = append(selected, row)
		}
	}
	if len(selected) == 0 {
		return nil, fmt.Errorf("unknown row %q: use one of %s", name, strings.Join(Names(rows), ", "))
	}
	return selected, nil
}

// Names returns the names of the rows.
func Names(rows []Row) []string {
	names := make([]string, len(rows))
	for i, row := range rows {
		names[i] = row.Name
	}
	return names
}
