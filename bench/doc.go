// Package bench stands beside the library and compares it with what people use
// today. It is a module of its own, so that its competitors are nobody else's
// dependencies.
//
//	make bench                 # every row
//	make bench ROW=queue/      # the rows of an area
//	make bench ROW=queue/cycle # one row
//
// The figures go to RESULTS.md; the rows that did not run keep theirs.
//
// # How it measures
//
// A row is some work that the library and others do. Each rival makes a pair
// with the library. After a warm-up of both, the two run directly after one
// another, as often as -repeats says, and who goes first alternates. What is
// reported is the median and the spread, and the median of the ratios within
// the repeats: what slows the machine for a while slows both of a pair. Goals
// are judged on the numbers as they are printed.
//
// # Adding a row
//
// Add a file to the folder rows, named after the row, and register the row in
// its init function. Nothing else has to change.
//
//	func init() {
//		bench.Register(bench.Row{
//			Name:  "ssa/unchanged",
//			About: "An apply that changes nothing.",
//			Op:    "apply",
//			Goals: []bench.Goal{{Figure: "requests", AtMost: 0}},
//			Pairs: func(ctx context.Context) ([]bench.Pair, func(), error) {
//				server, err := startServer(ctx) // what the contenders share
//				...
//				return []bench.Pair{{Ours: ours, Theirs: theirs}}, server.Stop, nil
//			},
//		})
//	}
//
// A [Contender] sets up what it needs, gives the work itself to
// [Meter.Measure], or its count to [Meter.Count], and returns how many
// operations it did. Both contenders of a pair must do as many. Sizes come from
// [Meter.N], so that the tests can run every row quickly; a measured function
// should take 100 ms or longer, a row a minute at most.
//
// A row about queues is shorter: see rows/queue.go. What it says about the keys
// that are handed out is checked on every contender by the tests of rows.
package bench
