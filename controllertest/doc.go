// Package controllertest explores what a controller does when things go wrong: it
// runs the controller against a real API server again and again, each time with
// another fault at another place, and judges what comes out. It is for tests of any
// controller that can be started from a *rest.Config, whatever it is built with.
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
// It stands beside envtest, which gives a test an API server and nothing that goes
// wrong, and Sieve (OSDI 2022), whose idea it takes into the test's own process:
// a plan takes fractions of a second there instead of minutes.
//
// # How it works
//
// The story of a [Scenario] is told four times without faults. What the controller
// does in all of them are its operations: writes, reads and calls of external
// services, named by what they do ("patch configmaps parent metadata.finalizers")
// and by how many of the same came before (#1). Then come the plans: every kind of
// fault at every operation where it makes sense; restarts with every old list of
// every resource that the controller watches; and, for as long as Options.Budget
// lasts, random plans of two to four faults, of which the later ones are chosen
// among what the controller does after the earlier ones. Each plan has a namespace,
// clients and connections of its own, so dozens of them go on side by side. A plan
// that fails is made shorter for as long as it still fails.
//
// When the script is over, users delete what they have made, so that every run also
// shows how the controller cleans up.
//
// # What a run is judged by
//
//   - [EndState]: at rest after each step, objects and cloud are as without faults.
//   - [Events]: no object is created or deleted more often than without faults, as
//     seen by a watch of the explorer's own. What is created twice and mended again
//     is seen by this alone.
//   - [Invariance]: the scenario's invariants hold in every state on the way.
//   - [Liveness]: after the last fault the cluster converges.
//   - [Quiescence]: then nothing is written any more, and the queues that the
//     controller has registered are empty. A key that a reconcile.Controller slows down
//     is a delayed key of its queue, so a hot loop does not look like rest.
//   - [Health]: no panic, no goroutine that is left, no process that does not stop.
//
// # Reading a failure
//
// A failure is the plan, what is wrong, and the timeline: each operation with the
// process that made it, each fault, and each event as the cluster saw it. Its last
// line is an environment variable that makes Explore run that plan and no other.
//
// What can be found this way is shown by a zoo of small controllers with bugs from
// reports about real ones (docs/zoo.md): each is found by a plan that stands beside
// it, and their correct twins pass.
//
// # Guarantees
//
//   - X1: Each kind of fault happens to a correct controller without being held
//     against it. Nothing is forged or reordered: what a controller sees is what the
//     API server sent, late, cut off, or replaced by an answer that the server, or a
//     proxy before it, may give, as package fault promises; an old list is one that
//     the server had.
//   - X2: A plan counts as valid only if all its faults have happened. The others are
//     listed as invalid, and more than 2 % of them fail the test.
//   - X3: States are shown to invariants in the order in which the server stored
//     them, an external call between the writes that it was made between.
//   - X4: The line at the end of a failure runs the same plan.
//   - X5: A scenario that cannot be explored ends with a message that says why and
//     what to change: it does not converge without faults, writes without end, does
//     nothing, panics, does not stop, leaves goroutines, is told differently each
//     time, or needs longer than the budget.
//   - X6: When an exploration ends nothing of it runs any more. On a cluster that goes
//     on, unless KeepNamespaces is set, its namespaces are deleted and no finalizer
//     holds its objects.
//   - X7: Every bug of the zoo is found by the plan that stands beside it, in at most
//     three runs, and no plan with one fault fails for the correct controllers.
//
// # Caveats
//
//   - A controller runs in the test's process. Its package-level variables outlive a
//     crash, and a loop that never looks at its context goes on; it is a finding then.
//     Scenario.Command runs a real process instead, at the price of its start.
//   - client-go's own switch that a panic ends the process is off while explorations
//     run; the panic is a finding. A panic in a goroutine that client-go does not guard
//     ends the test, as it would end the controller.
//   - Kinds of faults that a controller leaves to humans on purpose, such as parking
//     a key at 422 until the object changes, have to be left out of Options.Faults.
//   - Silence is no proof. Operations that differ from run to run are left out (the
//     report lists them), a fault in a path that the script does not take is not
//     injected, and one API server answers with one voice: two that disagree are
//     imitated by old lists only.
//   - Streams are cut between two events, and bookmarks held back, for JSON only. The
//     configuration that Start gets asks for it.
//   - Clients that are given another transport, such as those of another cluster, are
//     out of sight.
//   - The order of external calls and writes relies on resource versions that are
//     revisions of one etcd.
//
// Start, Do and Converged are called from several goroutines at once, for
// different runs.
//
// The package is larger than most of this library: plans, runs and verdicts have
// little to do with each other but the run itself. How a fault is done is in package
// controllertest/fault, which tests can use without an explorer; an external service
// for scenarios is in controllertest/cloud.
package controllertest
