<<<<<<< HEAD
// Package kubectltest has the rivals of applyset, kubectl apply --applyset and Flux, and the
// tests of applyset beside them.
=======
// Package kubectltest has the tests that compare applyset with kubectl apply --applyset and
// with Flux.
>>>>>>> 02558ab (docs: plainer comments where a habit was above twice the standard library's rate)
package kubectltest
