// Package examples contains complete controllers, one in each folder. Its tests check
// that the packages of the library work together although they do not import each
// other.
package examples
