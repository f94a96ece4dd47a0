// Package bench stands beside the library and compares it with what people use
// today. It is a module of its own, so that its competitors are nobody else's
// dependencies.
package bench
