// Package examples contains complete controllers, one in each folder: minimal on one page,
// website with package operator, tenant from the pieces. Its tests check that the packages
// of the library work together although they do not import each other.
package examples
