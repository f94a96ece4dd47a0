// Controlplane is a real Kubernetes API server in one binary, for tests and
// demonstrations: etcd, kube-apiserver, and kube-controller-manager's garbage
// collector and namespace controllers, in one process. No container engine and
// no downloaded binaries are needed:
//
//	go run github.com/controllerkit/controllerkit/controlplane@latest -kubeconfig /tmp/kubeconfig
//
// The first build compiles Kubernetes, which takes a few minutes; after that a
// start takes two to three seconds and about 300 MB of memory.
//
// It differs from a cluster in what is missing: there are no nodes, no
// scheduler, and no controller but the two named above, so a Deployment stays
// an object. It does not differ in what an API server does: resource
// versions, conflicts, admission, server-side apply, RBAC, watch caches,
// finalizers, cascading deletion and the emptying of deleted namespaces are
// Kubernetes' own code.
//
// # Usage
//
//	controlplane [flags] [-- kube-apiserver flags]
//
//	-kubeconfig FILE   write an administrator's kubeconfig here (mode 0600);
//	                   empty means a file in the data folder, whose name is printed
//	-ready-file FILE   create this file once the server is ready
//	-data FOLDER       keep etcd's data here and start with what it holds: the
//	                   folder is how a test restarts a server, or restores it
//	                   from a copy; empty means a temporary folder
//	-v N               verbosity of Kubernetes' own log, written to stderr;
//	                   0 keeps the log in the data folder and prints its end only
//	                   when something fails
//	-stdin             stop when standard input is closed: a parent that holds the
//	                   other end takes the server with it, however it dies
//
// What follows -- goes to kube-apiserver after this program's own settings,
// and so overrides them.
//
// # Guarantees
//
//   - Everything listens on loopback: the API server on a free TCP port with
//     TLS, etcd on sockets in a folder that only the owner can enter.
//   - Data and credentials live in a new temporary folder with mode 0700 and are
//     gone after a stop, except the data of -data. Credentials are made at each
//     start; nothing is shared between two servers, and any number may run at once.
//   - SIGTERM, SIGINT, or the end of standard input with -stdin, stop it within
//     ten seconds with exit code 0; a second signal kills it.
//   - Audit is off, and etcd does not sync to disk: the data does not outlive the
//     machine, by design.
//
// # Caveats
//
//   - It is a test server. Nothing here is hardened beyond what is said above.
//   - The garbage collector looks for new custom resources each second, where
//     kube-controller-manager does each 30: cascades begin sooner here. A deleted
//     namespace is emptied five seconds later, as in any cluster.
package main
