//go:build !race

package ondemand_test

// starts is the number of informers that TestManyStartsAndStops starts and stops.
const starts = 10000
