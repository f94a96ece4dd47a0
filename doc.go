// Package controllerkit maps a library of production primitives for Kubernetes
// controllers, on client-go alone. Import each package alone, into any informer-driven
// controller: a package imports this one and its parent; only the assembly and controllertest
// import others. This package declares the interfaces, errors and results by which packages and
// users work for each other. An index of questions follows the map.
//
// # A page
//
//   - [operator]: a whole process from the packages below: one function from an object to its children
//     and status; a line for each resource, election, probes, metrics, ordered stop
//
// # Run
//
//   - [queue]: the work queue: priorities, fairness, delays, drain; rate limiters
//   - [enqueue]: informer events to keys; predicates
//   - [enqueue/pause]: annotations that pause one object, or ask for a reconcile now
//   - [enqueue/reads]: what a reconcile has read runs it again, without a mapping function
//   - [reconcile]: the loop: a key in, a result or a classed error out; panics, timeouts, ordered stop
//   - [leader]: one leader, by the clock; hand-over in milliseconds
//   - [leader/fence]: the API server rejects the late writes of an earlier leader
//   - [shard]: many active replicas: one owner for each shard of the objects, hand-over without
//     overlap
//   - [shard/filter]: informers that hold the objects of the owned shards alone
//   - [shutdown]: parts that start together and stop in order; readiness and liveness
//
// # Read
//
//   - [informer]: informers that start together, or an error that names the late one and the reason
//   - [informer/compact]: informers whose caches take a fraction of the memory, and whose reads return
//     private copies
//   - [informer/ondemand]: informers that are opened, shared and closed while the program runs
//   - [informer/scope]: one informer of namespaces and a selector that change while the program runs
//   - [watcher]: a watch that survives failures and never fails silently
//   - [consistency]: read your own writes; confirm an object before a destructive act
//   - [crd]: client, informer and lister of a custom resource, without generated code
//   - [crd/crdtest]: the fake of such a client
//   - [crd/migrate]: the second version of a CustomResourceDefinition, and the end of the first one
//
// # Write
//
//   - [finalizer]: stored before work, removed only after a clean cleanup
//   - [status]: conditions; one write or none
//   - [status/fleet]: the objects of a resource by their conditions, for metrics
//   - [status/kstatus]: whether objects of any kinds are ready, by the rules of kstatus; conditions
//     that it reads right
//   - [ssa]: server-side apply that skips no-ops
//   - [ssa/applyset]: a set of objects of any kinds: apply in stages, prune, delete
//   - [owner]: controller references; adopt and release by labels
//   - [external]: one external thing for each object, created, kept and deleted across crashes
//   - [recorder]: Events, deduplicated and bounded
//
// # Observe and test
//
//   - [metrics]: Prometheus collectors for the packages above
//   - [debug]: a page that shows why an object does not move
//   - [serve]: metrics and debug pages only for users who may read them; TLS
//   - [preview]: what a new version of an operator would change, by dry runs
//   - [controllertest]: runs a controller under crashes, lost responses and stale caches, and judges
//     the result
//   - [controllertest/fault]: the faults alone
//   - [controllertest/cloud]: a fake external service
//   - [controllertest/server]: a real API server for tests
//   - [controllertest/world]: Pods that run, Nodes and claims for it
//   - [controllertest/world/acme]: a certificate authority that speaks ACME
//
// Two packages are modules of their own: github.com/controllerkit/controllerkit/managerkit brings
// these packages into a manager of controller-runtime, and
// github.com/controllerkit/controllerkit/tracing makes OpenTelemetry spans of reconciles.
//
// # Questions
//
// Where is, or how do I:
//
//   - adoption, release of objects: [owner.Claim]
//   - alerts, dashboard, runbooks: [docs/alerts.md]
//   - backoff, retries, rate limits: [docs/recipes/backoff.md]; [reconcile.Result] has what each error
//     does; [queue.Exponential], [queue.TokenBucket], [queue.MaxOf]
//   - calls to an external service, throttled: [docs/recipes/rate-limit.md]
//   - children: [operator.Children] and [operator.Controller.Apply]; by hand, [ssa.ApplyChanged] and
//     [owner.SetController]
//   - clusters, several: [docs/recipes/clusters.md]
//   - conditions, observedGeneration: [operator.Kind] and [status.Set]; in place of a phase,
//     [docs/recipes/phase.md]
//   - configuration that changes: [docs/recipes/settings.md]
//   - conflicts (409), RetryOnConflict: return the error; [reconcile.Result] says what follows
//   - controller-runtime: these packages in a manager of it: [docs/in-your-manager.md]
//   - cron, a schedule, run again later: [reconcile.Result.RequeueAfter], [docs/recipes/schedule.md]
//   - CRDs: install them, or refuse to start on an old one: [migrate.Install], [migrate.Require];
//     versions of a CRD, [docs/crd-versions.md]
//   - deletions, DeletedFinalStateUnknown: [enqueue.Handler], [enqueue: a tombstone]
//   - dependencies: wait until a child, such as a Deployment, is ready, or another object:
//     [docs/recipes/wait.md], [operator.Reads], [kstatus.Of]
//   - drift of an external resource: [external.Ensure]
//   - dry run: of a whole operator, [preview.Preview]; of a set, [applyset.Set.Plan]; of one object,
//     DryRun in the options of client-go
//   - dynamic informers, kinds known at run time: [ondemand.Informers]; an optional kind,
//     [operator.Reading.Optional]
//   - envtest, an API server in tests: [server.Start]
//   - errors that need no retry: [reconcile.ErrTerminal]
//   - Events: [recorder.Recorder]
//   - events of one object for many keys: [operator.Reads]; by hand, [operator.Watches],
//     [enqueue: many keys]
//   - exactly once in another service: [external.Once]; deletion there, [external.Delete]
//   - finalizers: [operator.Reconciler.Cleanup]; by hand, [finalizer.Ensure], [finalizer.Plan]
//   - fleet, metrics of the state of all objects: package operator has them, [docs/alerts.md]; by hand,
//     [fleet.Tracker]
//   - leader election: [operator.Options.LeaseNamespace], [leader.Elector]; for parts beside it,
//     [docs/recipes/singleton.md]
//   - logging: [docs/logging.md]
//   - log level at run time: [debug.Page.Verbosity]
//   - memory of caches: [compact.New], [informer.Trim], [docs/memory.md]
//   - metrics endpoint: [operator.Options.Listen]; for authorized users alone, [serve.Guard],
//     [docs/serving.md]
//   - migration of stored objects to a new version, storedVersions: [migrate.Migrator],
//     [docs/crd-versions.md]; of a field, [docs/recipes/migration.md]
//   - namespaces, many or changing: [scope.Informer], [docs/namespaces.md]
//   - new repository, scaffolding: [cmd/newoperator], [docs/start.md]
//   - outages and other bad days, what the on-call sees: [docs/gamedays.md]
//   - owner references: [owner.SetController]
//   - pause of one object, a reconcile now: [pause.Annotations]
//   - periodic reconciles, resync: [reconcile.Every]
//   - pprof: [operator.Options.Debug], [debug.Profiles], [docs/debug.md]
//   - predicates, filters of events: [enqueue.Filter], [enqueue.GenerationChanged]
//   - priorities of keys: [queue.Queue.AddWith]
//   - probes: readiness and liveness: [operator.Options.Listen]; by hand, [shutdown.Group.Ready]
//   - RBAC, generated: [operator.Operator.Rules]
//   - replicas that all work: [shard.Group], [docs/sharding.md]
//   - Secrets and other objects that a reconcile reads: [operator.Reads]
//   - SIGTERM, signals, graceful shutdown: [shutdown.Context], section Stop of [operator]; by hand,
//     [shutdown.Group]
//   - speed, 100,000 objects: [docs/performance.md]
//   - stale caches, read your own writes: [consistency.Store]
//   - standby that is warm: [leader: a warm standby]
//   - stuck objects: [debug.Page], [docs/recipes/stuck-object.md]
//   - tests under faults: [controllertest.Explore], [docs/first-scenario.md]
//   - tracing: [docs/tracing.md]
//   - unit tests, fake clients: [crdtest.NewFake], [docs/crd.md]; [docs/testing.md]
//   - upgrades of an operator, what a new version would change: [preview.Preview],
//     [docs/upgrades.md]
//   - versions of client-go and Kubernetes: [docs/versions.md]
//   - watches, RetryWatcher: [watcher.RetryWatcher]
//   - webhooks: [docs/recipes/admission.md]
//   - without the assembly: [operator: the pieces], [docs/by-hand.md]
//   - workers: [operator.Controller.Loop], [reconcile.Controller.Workers]
//
// # Guarantees
//
// The packages share these promises, and state their own.
//
//   - CK1: If a function sends an object to the API server, it does not change the caller's object.
//   - CK2: If an argument is not valid, the error names it and no request is sent.
//   - CK3: If other users write a large or hostile object, a package that reads it stays
//     bounded in time and memory.
//   - CK4: If a process dies at any write of finalizer, status, ssa or applyset, repeated
//     calls end in the same objects as without a crash.
//   - CK5: If keys and groups are many or long, the size of a Snapshot stays bounded.
//   - CK6: If a program has the rights that a package's documentation names, RBAC allows all requests
//     of the package.
//
// # Composition
//
// Everything that runs has a method Run that blocks until everything it started has stopped.
// Where a time limit ends the wait, Run returns an error that names what still runs. There is no
// manager: elector.Run(ctx, controller.Run) is the whole integration. Most functions that write
// take a one-method interface that generated clients already implement. Packages meet by methods with types of the standard library or of
// Kubernetes: a *queue.Queue is a workqueue.TypedRateLimitingInterface, a
// *consistency.Store is a Gate of reconcile, and *metrics.Metrics implements the Metrics
// interface of every package, where nil disables metrics.
//
// The folder examples has complete controllers, and cmd/newoperator writes the repository of a new one.
// The nested module controlplane is a real API server for tests.
//
// [applyset.Set.Plan]: https://pkg.go.dev/github.com/controllerkit/controllerkit/ssa/applyset#Set.Plan
// [cmd/newoperator]: https://pkg.go.dev/github.com/controllerkit/controllerkit/cmd/newoperator
// [compact.New]: https://pkg.go.dev/github.com/controllerkit/controllerkit/informer/compact#New
// [consistency]: https://pkg.go.dev/github.com/controllerkit/controllerkit/consistency
// [consistency.Store]: https://pkg.go.dev/github.com/controllerkit/controllerkit/consistency#Store
// [controllertest]: https://pkg.go.dev/github.com/controllerkit/controllerkit/controllertest
// [controllertest.Explore]: https://pkg.go.dev/github.com/controllerkit/controllerkit/controllertest#Explore
// [controllertest/cloud]: https://pkg.go.dev/github.com/controllerkit/controllerkit/controllertest/cloud
// [controllertest/fault]: https://pkg.go.dev/github.com/controllerkit/controllerkit/controllertest/fault
// [controllertest/server]: https://pkg.go.dev/github.com/controllerkit/controllerkit/controllertest/server
// [controllertest/world]: https://pkg.go.dev/github.com/controllerkit/controllerkit/controllertest/world
// [controllertest/world/acme]: https://pkg.go.dev/github.com/controllerkit/controllerkit/controllertest/world/acme
// [crd]: https://pkg.go.dev/github.com/controllerkit/controllerkit/crd
// [crd/crdtest]: https://pkg.go.dev/github.com/controllerkit/controllerkit/crd/crdtest
// [crd/migrate]: https://pkg.go.dev/github.com/controllerkit/controllerkit/crd/migrate
// [crdtest.NewFake]: https://pkg.go.dev/github.com/controllerkit/controllerkit/crd/crdtest#NewFake
// [debug]: https://pkg.go.dev/github.com/controllerkit/controllerkit/debug
// [debug.Page]: https://pkg.go.dev/github.com/controllerkit/controllerkit/debug#Page
// [debug.Page.Verbosity]: https://pkg.go.dev/github.com/controllerkit/controllerkit/debug#Page.Verbosity
// [debug.Profiles]: https://pkg.go.dev/github.com/controllerkit/controllerkit/debug#Profiles
// [docs/alerts.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/alerts.md
// [docs/by-hand.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/by-hand.md
// [docs/crd-versions.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/crd-versions.md
// [docs/crd.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/crd.md
// [docs/debug.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/debug.md
// [docs/first-scenario.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/first-scenario.md
// [docs/gamedays.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/gamedays.md
// [docs/in-your-manager.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/in-your-manager.md
// [docs/logging.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/logging.md
// [docs/memory.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/memory.md
// [docs/namespaces.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/namespaces.md
// [docs/performance.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/performance.md
// [docs/recipes/admission.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/recipes/admission.md
// [docs/recipes/backoff.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/recipes/backoff.md
// [docs/recipes/clusters.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/recipes/clusters.md
// [docs/recipes/migration.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/recipes/migration.md
// [docs/recipes/phase.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/recipes/phase.md
// [docs/recipes/rate-limit.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/recipes/rate-limit.md
// [docs/recipes/schedule.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/recipes/schedule.md
// [docs/recipes/settings.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/recipes/settings.md
// [docs/recipes/singleton.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/recipes/singleton.md
// [docs/recipes/stuck-object.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/recipes/stuck-object.md
// [docs/recipes/wait.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/recipes/wait.md
// [docs/serving.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/serving.md
// [docs/sharding.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/sharding.md
// [docs/start.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/start.md
// [docs/testing.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/testing.md
// [docs/upgrades.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/upgrades.md
// [docs/tracing.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/tracing.md
// [docs/versions.md]: https://github.com/controllerkit/controllerkit/blob/main/docs/versions.md
// [enqueue]: https://pkg.go.dev/github.com/controllerkit/controllerkit/enqueue
// [enqueue.Filter]: https://pkg.go.dev/github.com/controllerkit/controllerkit/enqueue#Filter
// [enqueue.GenerationChanged]: https://pkg.go.dev/github.com/controllerkit/controllerkit/enqueue#GenerationChanged
// [enqueue.Handler]: https://pkg.go.dev/github.com/controllerkit/controllerkit/enqueue#Handler
// [enqueue/pause]: https://pkg.go.dev/github.com/controllerkit/controllerkit/enqueue/pause
// [enqueue/reads]: https://pkg.go.dev/github.com/controllerkit/controllerkit/enqueue/reads
// [enqueue: a tombstone]: https://pkg.go.dev/github.com/controllerkit/controllerkit/enqueue#example-Handler-Tombstone
// [enqueue: many keys]: https://pkg.go.dev/github.com/controllerkit/controllerkit/enqueue#example-Handler-ManyKeys
// [external]: https://pkg.go.dev/github.com/controllerkit/controllerkit/external
// [external.Delete]: https://pkg.go.dev/github.com/controllerkit/controllerkit/external#Delete
// [external.Ensure]: https://pkg.go.dev/github.com/controllerkit/controllerkit/external#Ensure
// [external.Once]: https://pkg.go.dev/github.com/controllerkit/controllerkit/external#Once
// [finalizer]: https://pkg.go.dev/github.com/controllerkit/controllerkit/finalizer
// [finalizer.Ensure]: https://pkg.go.dev/github.com/controllerkit/controllerkit/finalizer#Ensure
// [finalizer.Plan]: https://pkg.go.dev/github.com/controllerkit/controllerkit/finalizer#Plan
// [fleet.Tracker]: https://pkg.go.dev/github.com/controllerkit/controllerkit/status/fleet#Tracker
// [informer]: https://pkg.go.dev/github.com/controllerkit/controllerkit/informer
// [informer.Trim]: https://pkg.go.dev/github.com/controllerkit/controllerkit/informer#Trim
// [informer/compact]: https://pkg.go.dev/github.com/controllerkit/controllerkit/informer/compact
// [informer/ondemand]: https://pkg.go.dev/github.com/controllerkit/controllerkit/informer/ondemand
// [informer/scope]: https://pkg.go.dev/github.com/controllerkit/controllerkit/informer/scope
// [kstatus.Of]: https://pkg.go.dev/github.com/controllerkit/controllerkit/status/kstatus#Of
// [leader]: https://pkg.go.dev/github.com/controllerkit/controllerkit/leader
// [leader.Elector]: https://pkg.go.dev/github.com/controllerkit/controllerkit/leader#Elector
// [leader/fence]: https://pkg.go.dev/github.com/controllerkit/controllerkit/leader/fence
// [leader: a warm standby]: https://pkg.go.dev/github.com/controllerkit/controllerkit/leader#example-Elector.Run-WarmStandby
// [metrics]: https://pkg.go.dev/github.com/controllerkit/controllerkit/metrics
// [migrate.Install]: https://pkg.go.dev/github.com/controllerkit/controllerkit/crd/migrate#Install
// [migrate.Migrator]: https://pkg.go.dev/github.com/controllerkit/controllerkit/crd/migrate#Migrator
// [migrate.Require]: https://pkg.go.dev/github.com/controllerkit/controllerkit/crd/migrate#Require
// [ondemand.Informers]: https://pkg.go.dev/github.com/controllerkit/controllerkit/informer/ondemand#Informers
// [operator]: https://pkg.go.dev/github.com/controllerkit/controllerkit/operator
// [operator.Children]: https://pkg.go.dev/github.com/controllerkit/controllerkit/operator#Children
// [operator.Controller.Apply]: https://pkg.go.dev/github.com/controllerkit/controllerkit/operator#Controller.Apply
// [operator.Controller.Loop]: https://pkg.go.dev/github.com/controllerkit/controllerkit/operator#Controller.Loop
// [operator.Kind]: https://pkg.go.dev/github.com/controllerkit/controllerkit/operator#Kind
// [operator.Operator.Rules]: https://pkg.go.dev/github.com/controllerkit/controllerkit/operator#Operator.Rules
// [operator.Options.Debug]: https://pkg.go.dev/github.com/controllerkit/controllerkit/operator#Options.Debug
// [operator.Options.LeaseNamespace]: https://pkg.go.dev/github.com/controllerkit/controllerkit/operator#Options.LeaseNamespace
// [operator.Options.Listen]: https://pkg.go.dev/github.com/controllerkit/controllerkit/operator#Options.Listen
// [operator.Reading.Optional]: https://pkg.go.dev/github.com/controllerkit/controllerkit/operator#Reading.Optional
// [operator.Reads]: https://pkg.go.dev/github.com/controllerkit/controllerkit/operator#Reads
// [operator.Reconciler.Cleanup]: https://pkg.go.dev/github.com/controllerkit/controllerkit/operator#Reconciler.Cleanup
// [operator.Watches]: https://pkg.go.dev/github.com/controllerkit/controllerkit/operator#Watches
// [operator: the pieces]: https://pkg.go.dev/github.com/controllerkit/controllerkit/operator#example-package-Pieces
// [owner]: https://pkg.go.dev/github.com/controllerkit/controllerkit/owner
// [owner.Claim]: https://pkg.go.dev/github.com/controllerkit/controllerkit/owner#Claim
// [owner.SetController]: https://pkg.go.dev/github.com/controllerkit/controllerkit/owner#SetController
// [pause.Annotations]: https://pkg.go.dev/github.com/controllerkit/controllerkit/enqueue/pause#Annotations
// [preview]: https://pkg.go.dev/github.com/controllerkit/controllerkit/preview
// [preview.Preview]: https://pkg.go.dev/github.com/controllerkit/controllerkit/preview#Preview
// [queue]: https://pkg.go.dev/github.com/controllerkit/controllerkit/queue
// [queue.Exponential]: https://pkg.go.dev/github.com/controllerkit/controllerkit/queue#Exponential
// [queue.MaxOf]: https://pkg.go.dev/github.com/controllerkit/controllerkit/queue#MaxOf
// [queue.Queue.AddWith]: https://pkg.go.dev/github.com/controllerkit/controllerkit/queue#Queue.AddWith
// [queue.TokenBucket]: https://pkg.go.dev/github.com/controllerkit/controllerkit/queue#TokenBucket
// [reconcile]: https://pkg.go.dev/github.com/controllerkit/controllerkit/reconcile
// [reconcile.Controller.Workers]: https://pkg.go.dev/github.com/controllerkit/controllerkit/reconcile#Controller.Workers
// [reconcile.ErrTerminal]: https://pkg.go.dev/github.com/controllerkit/controllerkit/reconcile#ErrTerminal
// [reconcile.Every]: https://pkg.go.dev/github.com/controllerkit/controllerkit/reconcile#Every
// [reconcile.Result]: https://pkg.go.dev/github.com/controllerkit/controllerkit/reconcile#Result
// [reconcile.Result.RequeueAfter]: https://pkg.go.dev/github.com/controllerkit/controllerkit/reconcile#Result.RequeueAfter
// [recorder]: https://pkg.go.dev/github.com/controllerkit/controllerkit/recorder
// [recorder.Recorder]: https://pkg.go.dev/github.com/controllerkit/controllerkit/recorder#Recorder
// [scope.Informer]: https://pkg.go.dev/github.com/controllerkit/controllerkit/informer/scope#Informer
// [serve]: https://pkg.go.dev/github.com/controllerkit/controllerkit/serve
// [serve.Guard]: https://pkg.go.dev/github.com/controllerkit/controllerkit/serve#Guard
// [server.Start]: https://pkg.go.dev/github.com/controllerkit/controllerkit/controllertest/server#Start
// [shard]: https://pkg.go.dev/github.com/controllerkit/controllerkit/shard
// [shard.Group]: https://pkg.go.dev/github.com/controllerkit/controllerkit/shard#Group
// [shard/filter]: https://pkg.go.dev/github.com/controllerkit/controllerkit/shard/filter
// [shutdown]: https://pkg.go.dev/github.com/controllerkit/controllerkit/shutdown
// [shutdown.Context]: https://pkg.go.dev/github.com/controllerkit/controllerkit/shutdown#Context
// [shutdown.Group]: https://pkg.go.dev/github.com/controllerkit/controllerkit/shutdown#Group
// [shutdown.Group.Ready]: https://pkg.go.dev/github.com/controllerkit/controllerkit/shutdown#Group.Ready
// [ssa]: https://pkg.go.dev/github.com/controllerkit/controllerkit/ssa
// [ssa.ApplyChanged]: https://pkg.go.dev/github.com/controllerkit/controllerkit/ssa#ApplyChanged
// [ssa/applyset]: https://pkg.go.dev/github.com/controllerkit/controllerkit/ssa/applyset
// [status]: https://pkg.go.dev/github.com/controllerkit/controllerkit/status
// [status.Set]: https://pkg.go.dev/github.com/controllerkit/controllerkit/status#Set
// [status/fleet]: https://pkg.go.dev/github.com/controllerkit/controllerkit/status/fleet
// [status/kstatus]: https://pkg.go.dev/github.com/controllerkit/controllerkit/status/kstatus
// [watcher]: https://pkg.go.dev/github.com/controllerkit/controllerkit/watcher
// [watcher.RetryWatcher]: https://pkg.go.dev/github.com/controllerkit/controllerkit/watcher#RetryWatcher
package controllerkit
