// Package suites runs controller-runtime's own tests of its priority queue and of its controller
// on a queue of managerkit.NewQueue, and lists the tests that differ.
//
// The sources are those in the module cache. An overlay replaces the implementation of the
// queue by testdata/priorityqueue.go, and the few places in the tests that reach into that
// implementation or that make a queue of client-go.
//
// The package is a module of its own because these tests need Ginkgo and Gomega.
package suites
