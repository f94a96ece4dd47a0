// Package clustertest has tests of several packages against a cluster of three etcds and two
// kube-apiservers, whose processes are paused, killed and cut off.
package clustertest
