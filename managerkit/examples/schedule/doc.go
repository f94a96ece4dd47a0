// Package schedule is an operator that runs Jobs by a cron expression, in two versions: before has
// the usual patterns of programs with controller-runtime, and after takes the packages of
// managerkit. Both have the functions of this package, so their difference is what the adoption
// changes. The tests run both, explore both, and measure both.
package schedule
