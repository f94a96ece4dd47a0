// Package fault puts a process's connection to the API server into the hands of a
// test: an [Incarnation] is a rest.Config whose clients share nothing with other
// clients, whose requests can be dropped, lost, delayed or answered with anything
// that a server may answer, whose watches can be held and cut, and which can be
// killed. It is what controllertest injects its faults with, and works without it
// in any test that has a rest.Config: of a real server, or of net/http/httptest.
//
//	process, err := fault.New(cfg, func(op *fault.Op) fault.Fault {
//		if op.Verb == "create" && op.Resource == "configmaps" {
//			return fault.Fault{Lose: true} // it is made, and the process does not learn that
//		}
//		return fault.Fault{}
//	}, nil)
//	if err != nil { ... }
//	defer process.Kill()
//	client, err := kubernetes.NewForConfig(process.Config())
//
// The functions that New is given decide about each request; they are told what it
// is by an [Op]. The methods of the incarnation are about all of them: Freeze,
// Reset and Kill about the process, Hold and Cut about its watches. Most tests of a
// package need no explorer and no plans: one fault at the request that matters,
// and a look at what the server has afterwards.
//
// A test that wants two lives of a process makes two incarnations of one
// configuration. It ends the first by Kill, and then cancels the context of what ran
// in it: in this order, as a process that dies does not tidy up before.
//
// # Guarantees
//
//   - N1: Once Kill has returned, nothing of the incarnation reaches the server:
//     neither requests of old clients nor of new ones, nor what waited for a delay.
//     What is under way ends with ErrKilled. No connection and no goroutine of the
//     incarnation is left.
//   - N2: A request that is dropped, or answered without Commit, does not reach the
//     server; one that is lost, or answered with Commit, does, once.
//   - N3: A watch delivers a beginning of the lines that the server sent, in their
//     order and unchanged, and after it at most one 410 event, when it was cut so:
//     no part of an event can be taken for one, none is forged, and none overtakes
//     another. NoBookmark takes out the bookmark that ends the initial list, and
//     nothing else.
//   - N4: Between Freeze and thaw nothing is sent, and the process sees no answer,
//     no event and no failure. Between Hold and release the watches of the resource
//     deliver nothing.
//   - N5: Answers decode as those of an API server: the predicates of apierrors and
//     SuggestsClientDelay understand them. A reset connection is one that client-go
//     knows as such, so it repeats reads by itself, as it does in production.
//   - N6: Two incarnations of one configuration have no connection in common, and what is
//     done to one does not happen to the other.
//   - N7: No error tells the token of the configuration.
//
// # Caveats
//
//   - An answer other than a watch's is read whole before the caller sees the
//     beginning of it. A log that is followed does not arrive until it ends.
//   - Requests that change the protocol (exec, attach, port-forward) are not
//     supported.
//   - Answers are asked for in JSON, whatever the client prefers, so that they can be
//     read. What a client sends stays as it is; an Op shows protobuf of the built-in
//     types as JSON, and other encodings without the name of what is created.
//   - Kill ends what goes through the incarnation. Goroutines of the program that
//     runs in it, and its locks and files, are the test's to end.
//   - A read that was received before Kill, Hold or Freeze may still be processed by
//     its caller.
package fault
