// Package previews shows what the controllers of a manager would change, by package preview.
//
//	p := &preview.Preview{}
//	previews.Prepare(p, config, &options) // before ctrl.NewManager
//	mgr, err := ctrl.NewManager(config, options)
//	...
//	var o controller.Options
//	r := previews.Controller(p, "websites", &o, reconciler)
//	err = ctrl.NewControllerManagedBy(mgr).Named("websites").For(&v1.Website{}).WithOptions(o).Complete(r)
//	...
//	err = previews.Run(ctx, p, mgr) // returns when each request has run
//	report := p.Report()
//
// Controllers of managerkit/bridge need no more than operator.Options.Preview. The loop of managerkit.Complete
// takes a queue of preview.NewQueue, and the reconciler of [Controller] with nil options.
//
// The caveats of package preview hold. Sources that are no informers, such as a channel, add
// requests as always.
//
// # Guarantees
//
//   - PM1: If each controller of a manager is one of Controller or of managerkit/bridge, Run returns
//     after each request of the first lists has run once, and nothing is stored.
package previews
