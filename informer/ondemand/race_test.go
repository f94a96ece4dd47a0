//go:build race

package ondemand_test

// starts is the number of informers that TestManyStartsAndStops starts and stops: the race
// detector makes each ten times slower.
const starts = 2000
