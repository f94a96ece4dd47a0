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
//   - SV1: If a request has no valid token or its user lacks the right, the response is 401
//     or 403; if a review fails, 503, unless one allowed the request in the last hour.
//   - SV2: If clients send any number of new tokens, the memory and the reviews a second,
//     also of one address, are bounded; the rest gets 429.
//   - SV3: If clients send any number of bad tokens, the last 1024 allowed requests stay
//     allowed, also when they are reviewed again.
//   - SV4: Tokens are not logged, not stored, and not passed to the handler.
//   - SV5: If a path is not canonical, such as one with empty, dot or needlessly encoded
//     parts, the response is 400.
//   - SV6: If the files of a KeyPair change, connections use the new pair within 10s, or
//     the last good one if the new pair is broken.
//   - SV7: If other hosts can reach the address, New requires a Guard, and a KeyPair unless
//     Guard.PlainHTTP is set. Without a Guard, a request whose Host header is not loopback
//     gets 403.
//
// # Caveats
//
//   - A deleted or expired token works until its review is a minute old, or an hour while
//     the API server does not review, as in an outage.
//   - During a flood from many addresses, a token that was not allowed before may get 429.
//     Scrapers retry. The number of connections is not bounded: use a NetworkPolicy.
//   - Without Audiences, a scraper sends a token that is also valid for the API server.
//     With them, a leaked token is valid only here.
//   - HTTP/2 is off because of CVE-2023-44487. To use it, set the server's Protocols to nil.
package serve
