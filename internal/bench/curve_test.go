package bench_test

import (
	"context"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/controllerkit/controllerkit/internal/bench"
)

// TestDraw checks the table and the chart of a row: a decade of each axis has the same length,
// and each contender has one line through its medians.
func TestDraw(t *testing.T) {
	stat := func(v float64) bench.Stat { return bench.Stat{Median: v, Min: v / 2, Max: v * 2} }
	line := func(x, ours, theirs float64, rival string) bench.Line {
		return bench.Line{X: x, Figure: bench.Time, Rival: rival, Ours: stat(ours), Theirs: stat(theirs)}
	}
	r := bench.Result{Row: bench.Row{Name: "curves/work", Op: "key", Curve: "keys <ready>"}, Lines: []bench.Line{
		line(10, 2, 20, "a"), line(10, 3, 20, "b"), line(100, 20, 200, "a"), line(100, 30, 0, "b"), line(1000, 200, 250, "a"),
	}}
	dir := filepath.Join(t.TempDir(), "new")
	if err := bench.Draw(dir, r); err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile(filepath.Join(dir, "work.csv"))
	if err != nil {
		t.Fatal(err)
	}
	const want = `keys <ready>,figure,contender,median,min,max
10,ns/key,controllerkit,2,1,4
100,ns/key,controllerkit,20,10,40
1000,ns/key,controllerkit,200,100,400
10,ns/key,a,20,10,40
100,ns/key,a,200,100,400
1000,ns/key,a,250,125,500
10,ns/key,b,20,10,40
100,ns/key,b,0,0,0
`
	if string(table) != want {
		t.Errorf("the table is\n%swant\n%s", table, want)
	}
	data, err := os.ReadFile(filepath.Join(dir, "work.svg"))
	if err != nil {
		t.Fatal(err)
	}
	if err := xml.Unmarshal(data, new(struct{})); err != nil {
		t.Errorf("the chart is no XML: %v", err)
	}
	for _, part := range []string{
		`points="80.0,227.9 275.0,154.6 470.0,81.3 "`, // 10, 100, 1000 between 10 and 1000; 2, 20, 200 between 1 and 1000
		">keys &lt;ready&gt;<", ">ns/key<", ">controllerkit<", ">a<", ">b<", ">1,000<",
	} {
		if strings.Count(string(data), part) == 0 {
			t.Errorf("the chart lacks %s:\n%s", part, data)
		}
	}
	if n := strings.Count(string(data), "<polyline"); n != 3 {
		t.Errorf("the chart has %d lines, want 3", n)
	}
}

// TestCurvePairs checks that the lines of a result have the X of their pairs.
func TestCurvePairs(t *testing.T) {
	var log []string
	row := rowOf(nil, bench.Pair{X: 7, Ours: counter("ours", "requests", 1, &log, 1, 1), Theirs: counter("theirs", "requests", 1, &log, 1, 1)})
	got, err := bench.Runner{Repeats: 1}.Run(context.Background(), row)
	if err != nil || got.Lines[0].X != 7 {
		t.Errorf("got %+v, error %v, want X 7", got.Lines, err)
	}
}
