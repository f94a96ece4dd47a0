// Package tenure has the common parts of packages leader and shard, whose processes hold Leases:
// the time for which a holder may act, the rules of the durations, the classes of errors, the
// transport that keeps back writes, and the goroutine of a term.
package tenure
