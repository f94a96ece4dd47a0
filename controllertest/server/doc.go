// Package server starts a real Kubernetes API server for the tests of a controller: etcd,
// kube-apiserver, the garbage collector and the namespace controller, in a few seconds.
//
//	var config *rest.Config
//
//	func TestMain(m *testing.M) {
//		s, err := server.Start(context.Background(), server.Options{CRDs: []string{"../config/crd"}})
//		if err != nil {
//			log.Fatal(err)
//		}
//		config = s.Config()
//		code := m.Run()
//		if err := s.Stop(); err != nil {
//			log.Print(err)
//		}
//		os.Exit(code)
//	}
//
// It replaces envtest, and needs no download of binaries: if no controlplane is installed, the
// first Start compiles the one of this module's version into the user's cache, which takes
// minutes. Most callers give each test a namespace of its own.
//
// # Where the server comes from
//
// Start takes the first of these that is there: the cluster of KUBECONFIG if
// USE_EXISTING_CLUSTER is "true"; the binary of the variable CONTROLPLANE; the controlplane
// of PATH; the one in the user's cache. To install it beforehand:
//
//	go install github.com/controllerkit/controllerkit/controlplane@latest
//
// # Guarantees
//
//   - V1: If Start returns an error, or Stop has returned, no process and no file of the
//     server is left.
//   - V2: If the test process dies, the server stops.
//
// # Caveats
//
//   - No kubelet, scheduler or other controllers run: no Pod starts, and a Deployment has no
//     status.
//   - An existing cluster is not stopped, and keeps the definitions and roles.
package server
