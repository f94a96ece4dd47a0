// Package integration holds the tests of the whole tenant example: the built
// program as a process of its own, under the shipped RBAC role, on a real API
// server. It declares nothing.
package integration
