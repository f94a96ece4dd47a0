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
//   - SV1: If a request has no token, a malformed one, two Authorization headers, or a
//     token that the API server rejects or that is for another audience, the response is
//     401.
//   - SV2: If the token's user may not use the method on the path, the response is 403.
//   - SV3: If the API server fails, or does not respond within Timeout, the response is
//     503.
//   - SV4: An allowed request is reviewed again after a minute, a rejected one after 10s.
//     If equal requests arrive at once, one is reviewed.
//   - SV5: If clients send any number of new tokens, at most 10 a second are reviewed, 2 a
//     second of one address, after bursts of 20 and 10. The rest gets 429. Memory is
//     bounded.
//   - SV6: If such a flood lasts, requests that were allowed before are still allowed, also
//     when they are reviewed again.
//   - SV7: Tokens are not logged, not stored, and not passed to the handler.
//   - SV8: If a path has empty, dot or needlessly encoded parts, the response is 400, so
//     that the authorized path is the served one.
//   - SV9: If the files of a KeyPair change, connections use the new pair within 10s. If
//     the new pair is broken, the last good one stays, and Check and a log line report it.
//   - SV10: If other hosts can reach the address, New needs a Guard and a KeyPair. Without a
//     Guard, a request whose Host is not loopback gets 403.
//   - SV11: If a client is slow, its connection closes: after 10s without complete headers,
//     30s without a complete request, a minute without a read response. Headers over 32
//     KiB get 431. HTTP/2 is off.
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
