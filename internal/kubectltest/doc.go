// Package kubectltest has the rivals of applyset, kubectl apply --applyset and Flux, and the
// tests of applyset beside them.
package kubectltest
