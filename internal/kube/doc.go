// Package kube holds the rules of the Kubernetes API that several packages of the
// library share: which 404 means that an object is absent, how a failed test of a JSON
// patch becomes a Conflict, which owner references make an object a controller. Each
// rule has one home, because copies drift.
package kube
