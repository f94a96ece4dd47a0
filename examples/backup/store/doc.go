// Package store is an external service with the records of snapshots, and its client. It stands
// for the provider of a real operator.
//
// The service chooses the id of each snapshot, and makes a second one if a request is repeated.
// Many providers are like that: package external of the library is for them.
package store
