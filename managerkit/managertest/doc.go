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
// The controllers can be those of controller-runtime's builder, with or without managerkit.
//
// # Guarantees
//
//   - MT1: If the context of a process of Start is done, it returns after all Runnables have
//     returned, and leaves no goroutine of the manager.
//   - MT2: Each process of Start has options and a scheme of its own, opens no port, and
//     caches and elects in the namespace of its run. The given options do not change.
//   - MT3: If a loop of managerkit.Complete has waiting keys, the explorer does not take the
//     cluster for at rest.
package managertest
