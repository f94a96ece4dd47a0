// Package controller reconciles Tenants with the packages of controllerkit.
//
// For each Tenant the controller maintains a namespace with the tenant's name
// and an account in the billing service. The namespace contains a ResourceQuota,
// a RoleBinding to ClusterRole edit and a NetworkPolicy, each named "tenant". The
// conditions Ready, NamespaceReady and AccountOpen report the progress.
//
// When a Tenant is deleted, the controller deletes the namespace and then closes the account.
// Meanwhile the condition Terminating reports the step that the deletion waits for. If the
// namespace still exists after an hour, the account is closed nevertheless (cleanup.go).
//
// The code demonstrates four rules:
//
//   - The finalizer is stored before the account is opened. openAccount takes a
//     finalizer.Held, so a call without a stored finalizer does not compile
//     (reconcile.go).
//   - The controller never changes an object that does not belong to the tenant
//     (children.go). It creates the namespace instead of applying it. An apply to
//     an existing object carries that object's uid; an apply that may create an
//     object follows a live read and does not force.
//   - The controller watches every object that can block a tenant, whatever its
//     owner. The deletion of that object enqueues the tenant at once, without
//     polling (controller.go).
//   - If the cluster already matches the spec, a reconcile sends no writes.
package controller
