// Package controllertest explores how a controller behaves under faults. It runs the
// controller against a real API server many times, each time with another fault at
// another place, which envtest does not, and compares the outcome with runs without faults.
//
//	func TestGreeter(t *testing.T) {
//		controllertest.Explore(t, controllertest.Scenario{
//			Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
//				return runGreeter(ctx, cfg, env.Namespace) // what main does
//			},
//			Script: []controllertest.Step{{
//				Name: "create a name",
//				Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
//					name := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "gopher"}}
//					_, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().ConfigMaps(env.Namespace).Create(ctx, name, metav1.CreateOptions{})
//					return err
//				},
//			}},
//			Converged: func(s *controllertest.State) error {
//				name, greeting := s.Get("configmaps", "gopher"), s.Get("configmaps", "gopher-greeting")
//				if (name == nil) != (greeting == nil) {
//					return errors.New("a greeting is missing, or left")
//				}
//				return nil
//			},
//		}, controllertest.Options{})
//	}
//
// Each call of Start is a process of its own: it shares no state, and blocks until all that
// it started has stopped. Explore starts the API server. It takes minutes, and go test -short
// skips it.
//
// # Plans
//
// Explore first runs the script four times without faults. The writes, reads and
// external calls that all four runs make are the operations, named by their effect and
// occurrence: "patch configmaps parent metadata.finalizers#1". After the script, the
// user deletes the created objects.
//
// A plan injects faults at operations. Explore runs a plan for each kind of fault at
// each operation that it fits, and restarts with each old list of each watched resource.
// If Options.Budget is set, random plans of two to four faults follow until it ends. A
// failing plan loses the faults that it does not need.
//
// # Oracles
//
//   - [EndState]: after each step, the objects and the cloud are as without faults.
//   - [Events]: no object is created or deleted more often than without faults.
//   - [Invariance]: the invariants of the scenario hold in every state.
//   - [Liveness]: the cluster converges after the last fault.
//   - [Quiescence]: the controller then stops writing, and its queues are empty.
//   - [Upgrade]: a new version changes nothing that the user has not asked for: see Scenario.From.
//   - [Health]: the controller does not panic, stops in time, leaks no goroutine, and sends no
//     request that its operator does not declare.
//
// A failing plan runs three times more. A [Failure] groups plans with the same finding. It
// holds the simplest plan, a timeline, and the environment variable that repeats the plan.
//
// # Guarantees
//
//   - X1: If a controller is correct, no plan fails, because a server, proxy, network,
//     process or user can cause each fault.
//   - X2: If a fault of a plan did not happen, or something other than the controller decided its
//     outcome, the plan neither passes nor fails, and the report counts it.
//   - X3: If all resource versions come from one etcd, invariants get the stored states in
//     order, each external call placed between its two adjacent writes.
//   - X4: If a scenario cannot be explored, Explore fails in time and names the reason and
//     the cure.
//   - X5: If an exploration has ended, no part of it runs, and without KeepNamespaces its
//     namespaces and finalizers are gone, or the error names a left object.
//   - X6: Each bug in the zoo is found by its plan within three runs, and the zoo's correct
//     controllers pass each plan with one fault.
//   - X7: If a version that takes over from Scenario.From creates, deletes or changes an object, outside of its
//     status, or an external resource, without a request of the user, that is a finding.
//
// # Caveats
//
//   - Start runs in the process of the test: package-level variables survive a crash.
//     Scenario.Command runs a real process instead.
//   - If a controller leaves an error to a person on purpose, such as a 422, leave the
//     kind out of Options.Faults.
//   - A passed exploration is no proof: operations that not all runs without faults make,
//     and paths that the script does not take, get no faults.
//   - Clients with their own transport bypass the faults.
//   - If a controller does not restore a changed child, even after a restart, no plan fails.
package controllertest
