// Package billing is the external system of the tenant example: a small
// HTTP service that opens and closes accounts, and its client.
//
//	POST   /accounts          opens the account of the key in the header Idempotency-Key
//	DELETE /accounts?key=KEY  closes it, for good
//	GET    /accounts          lists the open accounts
//	GET    /counts            says how often each of these was asked
//	PUT    /mode              {"mode":"ok|fail|hang|slow","delay":"2s"}, or the same as query
//
// The same key always gets the same account, so a client that lost an answer
// asks again. Closing is final even for a key that has no account yet: the
// server remembers it and answers a later POST with 410 Gone. Without that, a
// POST that was still on its way when its client died could open an account
// after the cleanup had closed it, and nobody would ever close it again.
//
// A real service would keep its accounts on disk, ask who is calling, and
// forget closed keys some day. This one does not.
package billing
