// Package controllerkit is the map of a library of production primitives for
// Kubernetes controllers, built on client-go alone. It declares nothing.
package controllerkit
