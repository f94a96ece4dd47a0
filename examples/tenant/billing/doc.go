// Package billing is the external system of the tenant example: a small
// HTTP service that opens and closes accounts, and its client.
//
//	POST   /accounts          opens the account of the key in the header Idempotency-Key
//	DELETE /accounts?key=KEY  closes it permanently
//	GET    /accounts          lists the open accounts
//	GET    /counts            counts the requests of each kind
//	PUT    /mode              {"mode":"ok|fail|hang|slow","delay":"2s"}, or the same as query
//
// The same key always gets the same account, so a client that lost a response can
// retry. Closing is permanent, even for a key that has no account yet: the server
// remembers the key and rejects a later POST with 410 Gone. Otherwise a POST that
// was in flight when its client died could open an account after the cleanup
// closed it, and no request would ever close that account.
//
// A real service would also store its accounts on disk, authenticate its clients
// and eventually forget closed keys.
package billing
