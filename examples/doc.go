// Package examples holds complete controllers, one a folder. It declares
// nothing; its tests hold that the packages of the library, which do not know
// each other, fit together.
package examples
