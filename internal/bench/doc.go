// Package bench compares the library with client-go and controller-runtime. It is a
// nested module, so that users of the library do not depend on controller-runtime.
//
//	make bench                 # every row
//	make bench ROW=queue/      # the rows of an area
//	make bench ROW=queue/cycle # one row
//
// The run writes its figures to RESULTS.md. Rows that did not run keep their figures.
//
// # How it measures
//
// A row describes work that the library and its rivals do. The library and each
// rival form a pair. After a warm-up, both contenders of a pair run directly after
// each other, -repeats times, in alternating order. RESULTS.md reports the median and
// the spread of each figure, and the median of the ratios within the repeats: a
// temporary slowdown of the machine affects both contenders of a pair. Goals are
// checked against the printed numbers.
//
// # Adding a row
//
// Add a file to the folder rows, with the row's name, and register the row in its
// init function.
//
//	func init() {
//		bench.Register(bench.Row{
//			Name:  "ssa/unchanged",
//			About: "An apply that changes nothing.",
//			Op:    "apply",
//			Goals: []bench.Goal{{Figure: "requests", AtMost: 0}},
//			Pairs: func(ctx context.Context) ([]bench.Pair, func(), error) {
//				server, err := startServer(ctx) // shared by the contenders
//				...
//				return []bench.Pair{{Ours: ours, Theirs: theirs}}, server.Stop, nil
//			},
//		})
//	}
//
// A [Contender] prepares its work, passes the work to [Meter.Measure] or counts to
// [Meter.Count], and returns the number of operations. Both contenders of a pair must
// do the same number of operations. [Meter.N] returns the sizes, so that the tests
// can run every row quickly. A measured function should take at least 100ms, and a
// row at most a minute.
//
// A row about queues is shorter: see rows/queue.go. The tests of rows check for every
// contender that its queue returns the keys as the row declares.
package bench
