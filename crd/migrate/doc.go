// Package migrate gives the second version of a CustomResourceDefinition its path: it rewrites
// the stored objects in the storage version, so that the first version can be removed, and
// applies succeed afterwards.
//
// It replaces scripts that rewrite all objects and edit status.storedVersions by hand.
//
//	m := &migrate.Migrator{Client: client, Definition: "websites.example.com"}
//	...
//	err := elector.Run(ctx, func(ctx context.Context) error {
//		group, ctx := errgroup.WithContext(ctx)
//		group.Go(func() error { return m.Run(ctx) })
//		group.Go(func() error { return controller.Run(ctx) })
//		return group.Wait()
//	})
//
// Most callers run a [Migrator] beside their controllers, and call [Require] before them.
// [Migrator.Once] is for a Job. docs/crd-versions.md is the way from v1alpha1 to v1 and to the
// removal of v1alpha1, in commands.
//
// # Two API servers
//
// After a change of the storage version, an API server that has not seen the change, and a
// request that began before it, can store another object in the old version. No API shows which
// definition each server uses. Therefore a pass begins when the spec has not changed for
// [Migrator.Settle], and status.storedVersions is narrowed only if the spec has not changed since the
// pass began.
//
// # Guarantees
//
//   - VM1: If a Migrator rewrites an object, all fields but those that the API server sets keep their
//     values, and a manager that owns a field still owns it if the storage version has the field.
//   - VM2: If an object is deleted during the migration, no Migrator creates it again.
//   - VM3: If the spec of the definition changes during a pass, status.storedVersions stays, and
//     the pass begins again.
//   - VM4: If the process dies at any request, the next Migrator continues, and reaches the same
//     result.
//   - VM5: If an object cannot be written, or would lose a field under the conversion None, Once
//     returns an error that counts such objects and names the first ten, except as under Caveats. The
//     others are migrated, and status.storedVersions stays.
//   - VM6: If a version is not served during a call of Once that returns nil, the version can be
//     removed, and no manager's next apply fails because of the removal.
//   - VM7: If Helm or OLM manages the definition, or the live one has a version after those of the
//     given one or a field that the given one lacks, Install does not write it.
//   - VM8: While the API server cannot call the conversion webhook, the condition
//     StoredVersionsMigrated names the webhook. The migration continues within a minute after the
//     webhook serves again.
//
// # Rights
//
// A Migrator needs get, list, watch and patch on the definition, patch on
// customresourcedefinitions/status, and get, list and patch on the resource in all namespaces.
//
// # Caveats
//
//   - An API server whose watch of definitions is late by more than Settle, minus the time of a
//     request, can store an object in the old version unnoticed.
//   - An entry of managedFields loses the fields that the storage version lacks. If a webhook
//     renames a field, its manager owns the new one after its next apply.
//   - A conversion webhook must keep all fields in both directions. If it drops a field, the
//     migration loses the value, and no error shows it.
//   - If the conversion webhook rejects an object, and the API server cannot list in a stored version
//     without it either, such as one that is not served, Once returns the error of the list.
//   - It creates no StorageVersionMigration of Kubernetes, because that ends at the first object
//     that is not valid, and leaves managedFields. Both may run at once.
//   - It keeps its progress in an annotation and a condition of the definition.
package migrate
