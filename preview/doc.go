// Package preview shows what a controller would change: each key runs once, and each write is a dry run.
//
// Before an upgrade of an operator, its users ask whether it restarts their Pods.
// Package operator needs one option, and gives a report:
//
//	p := &preview.Preview{}
//	op, err := operator.New(config, operator.Options{Name: "widgets", Preview: p})
//	...
//	err = op.Run(ctx) // returns when each key has run
//	report := p.Report()
//	report.WriteText(os.Stdout)
//	os.Exit(report.ExitCode())
//
// The process needs the whole Role of the operator, because RBAC cannot allow only dry runs. It takes no
// Lease and runs no part that was added to the operator's Group, so it runs beside the present version. Effects outside of the API server are not
// dry: guard them with [Skip].
//
// # Other loops
//
// Wrap the configuration of all clients with [Preview.Transport], give each loop a queue of [NewQueue],
// begin each call with [Preview.Begin], and run the loops by [Preview.Run].
//
// # How it works
//
// The transport asks for a dry run in each write, so the API server defaults, validates and admits it,
// and stores nothing. It reads the object before the write and compares it with the response. In
// the rest of the call, a GET of the object by a client returns the response, or NotFound if the
// object would be gone.
//
// # Guarantees
//
//   - PV1: Transport makes each write a dry run, or does not send it.
//   - PV2: If the last call of a key sent a write that would change an object, Report has it, with
//     the fields that would differ.
//   - PV3: In a preview, no cleanup of a finalizer and no Create, Update or Delete of package
//     external is called, and Report names those left out.
//   - PV4: If each key has run, the context of Run ends.
//
// # Caveats
//
//   - A preview shows one call of each key, without the consequences of its writes. A call that fails is
//     tried twice more, unless its error is terminal, and the last one counts. A write to an object that
//     the call would have created fails with NotFound.
//   - A list does not show the writes of the call. A Set of package ssa/applyset knows that, and shows each object that
//     it would apply and prune. A Batch with a new CustomResourceDefinition or Namespace fails.
//   - Clients of other configurations, and effects that are not guarded, are real.
//   - If the OpenAPI document of an aggregated API server has no dry runs of a resource, its writes fail.
package preview
