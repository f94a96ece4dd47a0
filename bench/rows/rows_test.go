package rows_test

import (
	"testing"

	"github.com/controllerkit/controllerkit/bench"
	_ "github.com/controllerkit/controllerkit/bench/rows"
)

// TestRows holds that every row runs: both contenders of each pair do as much
// and measure the same, and every goal is judged.
func TestRows(t *testing.T) {
	rows := bench.Rows()
	if len(rows) == 0 {
		t.Fatal("there are no rows")
	}
	for _, row := range rows {
		t.Run(row.Name, func(t *testing.T) {
			if _, err := (bench.Runner{Repeats: 1, Quick: true}).Run(t.Context(), row); err != nil {
				t.Error(err)
			}
		})
	}
}
