// Package controller reconciles Tenants with the packages of controllerkit.
//
// For each Tenant it keeps a namespace of the tenant's name, in it a
// ResourceQuota, a RoleBinding to ClusterRole edit and a NetworkPolicy, each
// named "tenant", and an account in the billing service. The conditions Ready,
// NamespaceReady and AccountOpen say how far it is.
//
// What it shows, and where to look:
//
//   - The finalizer is stored before the account is opened, and openAccount does
//     not compile without the proof of it (reconcile.go).
//   - What is not the tenant's own is never touched (children.go): a namespace
//     is created and not applied, and an apply carries the uid of the object
//     that it is meant for, or does not force.
//   - Every object that could stand in the way is watched, whoever owns it, so
//     that its deletion brings the tenant back at once, without polling
//     (controller.go).
//   - When nothing changes, nothing is written.
package controller
