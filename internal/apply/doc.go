// Package apply decides about server-side applies without a request: whether an apply
// would change an object, and whether an apply without force would take fields that the
// API server does not report as conflicts. Packages that apply share it.
//
// Errors of this package have no prefix, because the packages that return them add
// their own.
package apply
