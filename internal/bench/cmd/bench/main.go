// Command bench measures the rows of the folder rows and writes RESULTS.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/controllerkit/controllerkit/internal/bench"
	_ "github.com/controllerkit/controllerkit/internal/bench/rows"
)

// fewest is the minimum number of repeats for a meaningful median and spread.
const fewest = 5

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	name := flag.String("row", "", "run the row with this `name`, or the rows whose names begin with it; empty means all but those of make curves, make kubectl and make rest")
	repeats := flag.Int("repeats", fewest, fmt.Sprintf("number of measurements of each pair, at least %d", fewest))
	out := flag.String("out", "RESULTS.md", "`file` to write; rows that do not run keep their sections")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: use flags only", flag.Arg(0))
	}
	if *repeats < fewest {
		return fmt.Errorf("-repeats %d is not valid: use at least %d", *repeats, fewest)
	}
	env := bench.Here(ctx)
	if env.RaceEnabled {
		return fmt.Errorf("the program was built with -race, which distorts the figures: build it without")
	}
	all := bench.Rows()
	rows, err := bench.Select(all, *name)
	if err != nil {
		return err
	}
	return measure(ctx, rows, bench.Runner{Repeats: *repeats}, *out, env, bench.Names(all))
}

// measure measures the rows and writes the file. A row that fails does not stop the others.
func measure(ctx context.Context, rows []bench.Row, runner bench.Runner, out string, env bench.Environment, known []string) error {
	var failed []error
	for _, row := range rows {
		start := time.Now()
		fmt.Fprintf(os.Stderr, "%s: measuring\n", row.Name)
		result, err := runner.Run(ctx, row)
		switch {
		case err != nil && ctx.Err() != nil:
			return errors.Join(append(failed, err)...)
		case err != nil:
			fmt.Fprintln(os.Stderr, "bench:", err)
			failed = append(failed, err)
			continue
		}
		// Update after each row, so that an interrupt loses only one row.
		if err := bench.Update(out, result, env, known); err != nil {
			return err
		}
		if row.Curve != "" {
			if err := bench.Draw(filepath.Join(filepath.Dir(out), "..", "..", "docs", "curves"), result); err != nil {
				return err
			}
		}
		fmt.Printf("%s\n", bench.Section(result, env))
		fmt.Fprintf(os.Stderr, "%s: %v\n", row.Name, time.Since(start).Round(100*time.Millisecond))
	}
	return errors.Join(failed...)
}
