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
//   - N1: After Kill has returned, no request of the incarnation reaches the server, and
//     its connections and goroutines are gone. Running requests end with ErrKilled.
//   - N2: If a request is dropped, or its Response has no Commit, it does not reach the
//     server. If it is lost, or its Response has Commit, it does so once.
//   - N3: A watch delivers an unchanged prefix of the server's lines, then at most one
//     410 event. NoBookmark removes only the bookmark after the initial list.
//   - N4: Between Freeze and thaw, no request is sent and no response, event or error
//     delivered; between Hold and release, no event of the resource.
//   - N5: The predicates of apierrors and SuggestsClientDelay work with a Response.
//     After a reset, client-go repeats reads as in production.
//   - N6: Incarnations of one configuration share no connection, and no fault of one
//     affects another.
//   - N7: No error contains the token of the configuration.
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
