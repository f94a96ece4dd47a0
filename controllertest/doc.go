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
// Each call of Start is an own process: it shares no state, and blocks until all that
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
//   - [Upgrade]: a new version changes nothing by itself: see Scenario.From.
//   - [Health]: the controller does not panic, stops in time, leaks no goroutine, and sends no
//     undeclared request.
//
// A failing plan runs three times more. A [Failure] groups plans with the same finding, with the
// simplest plan, its timeline, and the variable that repeats it.
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
//   - X7: If the version after Scenario.From changes something but a status before the user
//     acts, that is a finding.
//
// # Caveats
//
//   - Start runs in the test's process, so package-level variables survive a crash:
//     see Scenario.Command.
//   - Leave kinds of errors out of Options.Faults that the controller leaves to a person, such as a 422.
//   - A passed exploration is no proof: operations that not all runs without faults make,
//     and paths that the script does not take, get no faults.
//   - Clients with their own transport bypass the faults.
//   - A changed child that is not restored, even after a restart, fails no plan.
package controllertest
