// Package fault gives a test control over the connection of a process to the API
// server. An [Incarnation] is one life of a process: its clients have their own
// connections, which the test can break, delay, freeze and kill.
//
// It replaces reactors of fake clients and hand-written RoundTrippers. It works with
// any server that a rest.Config reaches, such as a kube-apiserver or one of
// net/http/httptest. Package controllertest injects its faults with it.
//
//	process, err := fault.New(cfg, func(op *fault.Op) fault.Fault {
//		if op.Verb == "create" && op.Resource == "configmaps" {
//			return fault.Fault{Lose: true} // the server creates it, and the process sees an error
//		}
//		return fault.Fault{}
//	}, nil)
//	if err != nil { ... }
//	defer process.Kill()
//	client, err := kubernetes.NewForConfig(process.Config())
//
// Most callers need [New], one [Fault] at the request that matters, and a look at the
// objects on the server afterwards.
//
// # Two lives
//
// To test a restart, make two incarnations of one configuration. Call Kill on the first
// one before you cancel the context of its program, because a process that dies does
// not clean up first.
//
// # Guarantees
//
//   - N1: If Kill has returned, no new request of the incarnation reaches the server, and no
//     connection or goroutine of it is left. The server may still execute requests that were
//     running.
//   - N2: If a request is lost or its Response has Commit, it reaches the server once; if
//     dropped, or if its Response has no Commit, never.
//   - N3: A watch delivers an unchanged prefix of the server's lines, without the bookmark
//     that NoBookmark removes, then at most one 410 event.
//   - N4: No error contains the token of the configuration.
//
// # Caveats
//
//   - A response other than a watch is read whole before the caller sees its first
//     byte, so a followed log arrives when it ends.
//   - Requests that change the protocol, such as exec and port-forward, fail.
//   - Clients receive JSON, whatever they prefer. An Op shows a protobuf body of a
//     built-in type as JSON; it does not decode other encodings.
//   - Kill does not end the goroutines of the program or release its locks and files.
//   - A caller may still process bytes that it received before Kill, Hold or Freeze.
package fault
