// Package kubectltest has the tests of applyset beside kubectl apply --applyset.
package kubectltest
