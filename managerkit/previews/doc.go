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
//	err = p.Run(ctx, mgr.Start) // returns when each request has run
//	report := p.Report()
//
// For controllers of managerkit/bridge, set operator.Options.Preview in place of Controller. For managerkit.Complete,
// set Queue of the loop to one of preview.NewQueue, and call [Controller] with nil options.
//
// The caveats of package preview hold. Sources that are no informers, such as a channel, add
// requests as always.
//
// # Guarantees
//
//   - PM1: If each controller of a manager is one of Controller or of managerkit/bridge, Preview.Run returns
//     after each request of the first lists has run once, and nothing is stored.
package previews
