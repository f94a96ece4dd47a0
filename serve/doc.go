// Package serve protects /metrics and /debug: it asks the API server for each token who
// sends it and whether that user may read the path, and serves over TLS with certificates
// that may be renewed.
//
// client-go has no counterpart. controller-runtime's filter of the same purpose depends on
// k8s.io/apiserver. This package depends on client-go alone.
//
//	guard := &serve.Guard{
//		Tokens: kube.AuthenticationV1().TokenReviews(),
//		Access: kube.AuthorizationV1().SubjectAccessReviews(),
//	}
//	server, err := serve.New(serve.Config{
//		Addr: ":8443", Handler: mux, Open: []string{"/readyz", "/livez"},
//		Guard: guard, KeyPair: &serve.KeyPair{Cert: "/tls/tls.crt", Key: "/tls/tls.key"},
//	})
//	if err != nil {
//		return err
//	}
//	group.Add("https", shutdown.Server(server))
//
// Most callers set no more fields. The file rbac.yaml of this package has the rights of
// the controller and of a scraper.
//
// # Guarantees
//
//   - SV1: If a request has no token, several Authorization headers, or a token that is not
//     valid for the audience, the response is 401.
//   - SV2: If the token's user may not use the method on the path, the response is 403.
//   - SV3: If the API server fails, or does not respond within Timeout, the response is 503.
//   - SV4: If equal requests arrive within a minute, or within 10s after a rejection, one
//     review serves them.
//   - SV5: If clients send any number of new tokens, the reviews a second, also of one
//     address, and the memory are bounded, and the rest gets 429.
//   - SV6: If clients send any number of bad tokens, the last 1024 allowed requests stay
//     allowed, also when they are reviewed again.
//   - SV7: Tokens are not logged, not stored, and not passed to the handler.
//   - SV8: If a path is not canonical, such as one with empty, dot or needlessly encoded
//     parts, the response is 400.
//   - SV9: If the files of a KeyPair change, connections use the new pair within 10s.
//   - SV13: If the new pair of a KeyPair is broken, the last good one stays, and Check and a
//     log line report it.
//   - SV10: If other hosts can reach the address, New requires a Guard and a KeyPair.
//   - SV14: If a server has no Guard, a request whose Host is not loopback gets 403.
//   - SV11: If a client sends or reads slowly, its connection closes within a minute, and
//     headers that are too large get 431.
//   - SV12: The rights of rbac.yaml suffice for a controller and a scraper.
//
// # Caveats
//
//   - A deleted or expired token works until its review is a minute old.
//   - During a flood from many addresses, a token that was not allowed before may get 429.
//     Scrapers retry. The number of connections is not bounded: use a NetworkPolicy.
//   - Without Audiences, a scraper sends a token that is also valid for the API server.
//     With them, a leaked token is valid only here.
//   - HTTP/2 is off because of CVE-2023-44487. To use it, set the server's Protocols to nil.
package serve
