// Controlplane is a real Kubernetes API server in one binary, for tests and
// demonstrations. One process runs etcd, kube-apiserver, and the garbage collector
// and namespace controllers of kube-controller-manager. It needs no container engine
// and no downloaded binaries:
//
//	go run github.com/controllerkit/controllerkit/controlplane@latest -kubeconfig /tmp/kubeconfig
//
// The first build compiles Kubernetes, which takes a few minutes. Later a start takes
// two to three seconds on an idle machine, and about 300 MB of memory.
//
// Unlike a cluster, it has no nodes, no scheduler and no other controllers, so a
// Deployment creates no Pods. Resource versions, conflicts, admission, server-side
// apply, RBAC, watch caches, finalizers, cascading deletion and the deletion of
// namespaces are Kubernetes' own code.
//
// It is Kubernetes 1.37. In a clone of the repository the same code compiles with other module
// files, for tests on an older version:
//
//	go build -modfile=kubernetes-1.34.mod -o controlplane-1.34 .
//
// # Usage
//
//	controlplane [flags] [-- kube-apiserver flags]
//
//	-kubeconfig FILE   write an administrator's kubeconfig here (mode 0600);
//	                   empty means a file in a temporary folder, whose name is printed;
//	                   a stop deletes it
//	-ready-file FILE   create this file once the server is ready; a stop deletes it, and
//	                   so does the next start if the process was killed
//	-data FOLDER       store etcd's data here and start with the data in it, so that a
//	                   test can restart a server or restore it from a copy; a folder is
//	                   for one process at a time;
//	                   empty means a temporary folder
//	-v N               verbosity of Kubernetes' log on stderr; 0 writes the log to the
//	                   temporary folder and prints its end only after a failure
//	-stdin             stop when standard input is closed, so that the server also
//	                   stops if its parent process is killed
//	-etcds N           number of etcds: 1, or 3 to 9 for a cluster
//	-servers N         number of kube-apiservers: 1, or 2 to 9 for a cluster
//	-garbage-collector=false
//	                   run no garbage collector, so that a test can run its own
//	-assets FOLDER     write the programs etcd and kube-apiserver into the folder, print
//	                   its path, and exit; see below
//	-commands          read commands for a cluster from standard input
//
// Arguments after -- are passed to kube-apiserver after this program's own settings,
// so they override them. --secure-port and --bind-address are an error: the port is a free
// one, which the kubeconfig names.
//
// # In place of envtest's binaries
//
// A suite that uses controller-runtime's package envtest runs unchanged, on the same versions as
// controlplane, without a garbage collector and a namespace controller, as always with envtest:
//
//	KUBEBUILDER_ASSETS=$(controlplane -assets bin/assets) go test ./...
//
// The folder has no kubectl. To run the suite with both controllers, start controlplane and set
// USE_EXISTING_CLUSTER=true beside its KUBECONFIG.
//
// # Clusters
//
// With -etcds or -servers above 1, each etcd and each kube-apiserver is a process, with the
// names etcd-0, server-0 and so on. The kubeconfig's current context is a load balancer,
// which passes over the servers that are down. Each server also has a context with its
// name. In the folder of -data each etcd has a folder with its name. A cluster of three etcds
// and two servers needs about 1 GB of memory.
//
// With -commands, each line of standard input is a command and a name, and is answered by
// one line that begins with "ok:" or "error:":
//
//	pause NAME    suspend the process (SIGSTOP)
//	resume NAME   let it go on
//	stop NAME     stop it gracefully
//	kill NAME     kill it (SIGKILL)
//	start NAME    start it again, with its address and its data
//	await NAME    wait until it is ready
//	cut SERVER    hold all bytes between the server and the etcds, so that it serves
//	              old reads, and writes hang
//	delay SERVER RESOURCE
//	              hold what the etcds send of a resource, so that the server serves and
//	              writes all else, with an old cache of that resource
//	join SERVER   deliver the held bytes, and let others pass
//
// # Guarantees
//
//   - Everything listens on loopback: API servers on free TCP ports with TLS, etcds on
//     sockets in a folder that only the owner can enter.
//   - Each start creates new credentials and, without -data, new data in a new
//     temporary folder with mode 0700. A stop deletes that folder. Any number of
//     servers may run at once, because they share no state.
//   - On SIGTERM or SIGINT, or at the end of standard input with -stdin, it stops
//     within ten seconds with exit code 0. A second signal kills it.
//   - Audit is off, and etcd does not sync to disk. By design, the data does not
//     survive a crash of the machine.
//
// # Caveats
//
//   - It is a test server without any hardening beyond the guarantees above.
//   - The garbage collector discovers new custom resources every second instead of
//     every 30 seconds, so their first cascading deletion starts sooner than in a
//     cluster. The namespace controller empties a deleted namespace after five
//     seconds, as in any cluster.
package main
