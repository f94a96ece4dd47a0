package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/controllerkit/controllerkit/internal/bench"
)

// TestRowFails checks that the error names the rows that cannot run, and that the others run.
func TestRowFails(t *testing.T) {
	broken := errors.New("no browser")
	one := bench.Contender{Name: "one", Run: func(_ context.Context, m *bench.Meter) (int, error) {
		m.Count("requests", 1)
		return 1, nil
	}}
	row := func(name string, err error) bench.Row {
		return bench.Row{Name: name, About: "Some work.", Op: "x", Pairs: func(context.Context) ([]bench.Pair, func(), error) {
			return []bench.Pair{{Ours: one, Theirs: one}}, nil, err
		}}
	}
	rows := []bench.Row{row("a/broken", broken), row("b/good", nil), row("c/broken", broken), row("d/good", nil)}
	rows[1].Curve = "things"
	dir := t.TempDir()
	out := filepath.Join(dir, "internal", "bench", "RESULTS.md")
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		t.Fatal(err)
	}
	err := measure(t.Context(), rows, bench.Runner{Repeats: 1}, out, bench.Here(t.Context()), bench.Names(rows))
	if want := "a/broken: no browser\nc/broken: no browser"; !errors.Is(err, broken) || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
	if _, err := os.Stat(filepath.Join(dir, "docs", "curves", "good.svg")); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"a/broken": false, "b/good": true, "c/broken": false, "d/good": true} {
		if got := strings.Contains(string(text), "## "+name+"\n"); got != want {
			t.Errorf("%s has a section: %t, want %t", name, got, want)
		}
	}
}

// TestInterrupt checks that no row begins after an interrupt.
func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	begun := 0
	row := bench.Row{Name: "a/b", About: "Some work.", Op: "x", Pairs: func(context.Context) ([]bench.Pair, func(), error) {
		begun++
		cancel()
		return nil, nil, context.Cause(ctx)
	}}
	if err := measure(ctx, []bench.Row{row, row}, bench.Runner{}, filepath.Join(t.TempDir(), "x"), bench.Environment{}, nil); !errors.Is(err, context.Canceled) || begun != 1 {
		t.Errorf("got error %v after %d rows, want context.Canceled after one", err, begun)
	}
}
