// Package kubectltest has the rivals of applyset, kubectl apply --applyset and Flux, and
// the tests that compare them with applyset.
package kubectltest
