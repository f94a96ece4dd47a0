// Package tenure has what the holders of a Lease share, which are packages leader and shard: how
// long the holder may act, the durations and their rules, what an error of the API server means,
// the transport that keeps back writes, and the goroutine of a term.
package tenure
