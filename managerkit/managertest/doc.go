// Package managertest runs the managers of controller-runtime under package controllertest: in
// a test it explores what a controller does when it crashes, when responses are lost and when
// its cache is old.
//
//	controllertest.Explore(t, controllertest.Scenario{
//		CRDs: []string{"config/crd"},
//		Start: managertest.Start(ctrl.Options{}, func(mgr ctrl.Manager, env *controllertest.Env) error {
//			return setUpControllers(mgr)
//		}),
//		...
//	}, controllertest.Options{Sample: 50})
//
// The controllers can come from controller-runtime's builder, with or without managerkit.
//
// # Guarantees
//
//   - MT1: If the context of a process of Start is done, the process returns after all
//     Runnables have returned, and the manager's goroutines end.
//   - MT2: If Start begins a process, its manager has a copy of the options, and a scheme
//     of its own if options.Scheme is nil.
//   - MT4: If Start begins a process, it opens no port, and caches and elects in the
//     namespace of its run.
//   - MT3: If a key of a loop of managerkit.Complete runs or is soon ready, the
//     exploration waits for it, and reports it if that takes too long.
package managertest
