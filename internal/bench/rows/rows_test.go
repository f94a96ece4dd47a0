package rows_test

import (
	"os"
	"strings"
	"testing"

	"github.com/controllerkit/controllerkit/internal/bench"
	_ "github.com/controllerkit/controllerkit/internal/bench/rows"
)

// TestResults checks that RESULTS.md contains the present text of each row that it
// has figures of.
func TestResults(t *testing.T) {
	data, err := os.ReadFile("../RESULTS.md")
	if err != nil {
		t.Fatal(err)
	}
	text, rows := string(data), bench.Rows()
	if bench.Merge(text, nil, bench.Names(rows)) != text {
		t.Error("RESULTS.md has another preamble, other rows or another order: run make bench")
	}
	for _, row := range rows {
		heading := "## " + row.Name + "\n\n"
		if strings.Contains(text, heading) && !strings.Contains(text, heading+row.About+"\n\n| case |") {
			t.Errorf("RESULTS.md has another description of %s: run make bench ROW=%[1]s", row.Name)
		}
	}
}

// TestRows checks that every row runs: both contenders of each pair do the same
// number of operations and measure the same figures, and every goal is checked.
func TestRows(t *testing.T) {
	rows := bench.Rows()
	if len(rows) == 0 {
		t.Fatal("there are no rows")
	}
	for _, row := range rows {
		if row.Name == "applyset/beside" {
			continue // it compiles kubectl and Flux; make kubectl runs it
		}
		t.Run(row.Name, func(t *testing.T) {
			if _, err := (bench.Runner{Repeats: 1, Quick: true}).Run(t.Context(), row); err != nil {
				t.Error(err)
			}
		})
	}
}
