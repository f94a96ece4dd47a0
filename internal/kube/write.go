package kube

import "net/http"

// NoVersion is a resource version that no object has. An apply with it creates an object, and
// fails with a conflict if the object exists.
const NoVersion = "9223372036854775807"

// IsWrite reports whether a request to the API server can change something: its method is not
// GET, HEAD or OPTIONS, or it opens a connection, as exec, attach and port-forward by
// WebSocket do. client-go's transports for WebSocket and SPDY set the header Upgrade after
// all wrappers, so the headers with the names of the protocols decide too. A watch is a
// read, also by WebSocket.
func IsWrite(req *http.Request) bool {
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions: // "" is GET
		return connects(req.Header) && (req.URL == nil || !IsWatch(req.URL))
	}
	return true
}

// connects reports whether the header asks for a connection. Its keys are canonical.
func connects(header http.Header) bool {
	for _, key := range [...]string{"Upgrade", "Sec-Websocket-Protocol", "X-Stream-Protocol-Version"} {
		if len(header[key]) > 0 {
			return true
		}
	}
	return false
}
