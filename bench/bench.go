package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Figures of every row that calls Meter.Measure. All are per operation.
const (
	Time   = "ns"
	Allocs = "allocs"
	Bytes  = "B"
)

// Row is one comparison.
type Row struct {
	// Name is the area and the work: "queue/cycle".
	Name string

	// About says in a sentence or two, as Markdown, what is done.
	About string

	// Op is what one operation is called: "key", "apply".
	Op string

	// Goals are judged wherever their figure was measured. One that is judged
	// nowhere is an error.
	Goals []Goal

	// Pairs prepares the row, right before it runs. The cleanup is called when
	// it has run, with an error too; nil means none.
	Pairs func(ctx context.Context) (pairs []Pair, cleanup func(), err error)
}

// Goal is an upper bound on a figure.
type Goal struct {
	Figure string

	// Rival names whose figure the library's is divided by. "" means the
	// library's own figure is bounded.
	Rival string

	AtMost  float64
	Stretch float64 // a bound that would be even better; 0 means none
}

// Pair is the library and one rival at the same work.
type Pair struct {
	Case   string // tells the pairs with the same rival apart: "string keys"; "" if there is one
	Ours   Contender
	Theirs Contender

	// Repeats is how often the pair is measured, if that is less often than the
	// others: for work that takes long and has the same figures each time. 0
	// means as often as they are.
	Repeats int
}

// Contender does a row's work in one way.
type Contender struct {
	Name string // "client-go"

	// Module is the path of the module whose version belongs to the figures.
	// "" means none: what it is made of is in this checkout.
	Module string

	// Run does the work once, from set-up to clean-up, and returns how many
	// operations it did.
	Run func(ctx context.Context, m *Meter) (ops int, err error)
}

var registered []Row

// Register makes a row known. It is called by init functions and panics if the
// row is wrong.
func Register(row Row) {
	switch area, work, ok := strings.Cut(row.Name, "/"); {
	case !ok || area == "" || work == "" || strings.ContainsAny(row.Name, " \n"):
		panic(fmt.Sprintf("bench: the name %q is not area/work", row.Name))
	case row.Op == "" || row.About == "" || row.Pairs == nil:
		panic(fmt.Sprintf("bench: the row %s lacks About, Op or Pairs", row.Name))
	case slices.ContainsFunc(registered, func(r Row) bool { return r.Name == row.Name }):
		panic(fmt.Sprintf("bench: the row %s is there twice", row.Name))
	}
	registered = append(registered, row)
}

// Rows returns the registered rows by name.
func Rows() []Row {
	rows := slices.Clone(registered)
	slices.SortFunc(rows, func(a, b Row) int { return strings.Compare(a.Name, b.Name) })
	return rows
}

// Select returns the row of the given name, or else those whose name begins
// with it. "" means all of them.
func Select(rows []Row, name string) ([]Row, error) {
	var selected []Row
	for _, row := range rows {
		if row.Name == name {
			return []Row{row}, nil
		}
		if strings.HasPrefix(row.Name, name) {
			selected = append(selected, row)
		}
	}
	if len(selected) == 0 {
		return nil, fmt.Errorf("no row is called %q; there are: %s", name, strings.Join(Names(rows), ", "))
	}
	return selected, nil
}

// Names returns the names of rows.
func Names(rows []Row) []string {
	names := make([]string, len(rows))
	for i, row := range rows {
		names[i] = row.Name
	}
	return names
}
