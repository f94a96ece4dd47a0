// Package acme has a certificate authority that speaks ACME (RFC 8555), for the exploration and
// the tests of controllers that order certificates.
//
//	ca := acme.NewServer()
//	defer ca.Close()
//
// The script of a Scenario gives the controller ca.URL, the URL of the directory, and ca.Root, the CA of its
// TLS certificate and of the certificates that it issues. All runs of an exploration can share one
// server, because each account has its own orders.
//
// The server believes each response to a challenge, unless Validate rejects it. With Trusted,
// names need no challenge, like those that an account has proven before. [Server.Issued]
// returns what was issued, so that a test can count it: a real authority limits
// certificates for the same names to a few in a week.
//
// # Guarantees
//
//   - AC1: A request counts only with a nonce that was not used before, the URL that it was sent to,
//     and the signature of the account's key.
//   - AC2: A certificate has the names of its order, and no other. An order has at most one.
//
// # Caveats
//
//   - There is no revocation, no change of an account's key, and no external account binding.
//   - Identifiers are DNS names. Challenges are http-01 and dns-01, and only dns-01 for wildcards.
//   - A challenge is valid or invalid in the response to its request, never processing.
//   - Faults of an exploration do not meet its requests, which do not pass the API server.
package acme
