// Package kubectltest has the tests of applyset beside kubectl apply --applyset, and beside Flux.
package kubectltest
