// Package suites runs the tests of other projects on managerkit, and lists the tests that differ:
// controller-runtime's own tests of its priority queue and of its controller on the queue of
// managerkit.NewQueue, and the suites of two operators before and after the steps of
// docs/in-your-manager.md.
//
// The sources are those in the module cache. An overlay has the differences: for controller-runtime
// testdata/priorityqueue.go in place of its queue, and a few places of its tests that set the clock
// of its queue, compare depths, or make a queue of client-go. For an operator it has the diff that
// its authors would make, and the files of testdata that it calls.
//
// The package is a module of its own because these tests need Ginkgo, Gomega and the operators.
package suites
