// Package suites runs controller-runtime's own tests of its priority queue and of its controller
// on the queue of managerkit.NewQueue. It lists the tests that differ.
//
// The sources are those in the module cache. An overlay replaces the implementation of the
// queue by testdata/priorityqueue.go. It also edits a few places of the tests: those that set
// the clock of that implementation, compare depths, or make a queue of client-go.
//
// The package is a module of its own because these tests need Ginkgo and Gomega.
package suites
