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
//   - MT1: If the context of a process of Start is done, it returns after all Runnables
//     have returned, and the manager's goroutines end.
//   - MT2: If a key of a loop of managerkit.Complete runs or is soon ready, the
//     exploration waits for it, and reports it if that takes too long.
package managertest
