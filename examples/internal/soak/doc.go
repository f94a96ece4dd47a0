// Soak runs the example operators for hours as real processes on a cluster of etcds and
// kube-apiservers, while users change objects and processes are killed, paused and cut off.
// The target soak of the Makefile starts it.
//
// Each cycle takes about a minute. In its first part users create, edit and delete objects,
// others edit and delete the children, and faults begin and end. Then all is quiet, and a
// checker compares the cluster, the DNS service and the billing service with the users'
// wishes. It reads the API server and the services only: it shares no code with the
// controllers. If a difference is still there after a bound, it is a violation.
//
// At the end of a cycle the memory, goroutines, metrics series and connections of each
// replica are sampled. At the end of the run a robust slope of each must be flat.
//
// The folder has the state of the run, its samples, violations, report and plots. An
// interrupted run goes on in the same folder, with a new cluster.
//
// It requires Linux, because it reads /proc.
package main
