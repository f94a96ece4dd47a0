package acme

// NewNonce makes a nonce, as a request does.
func (s *Server) NewNonce() string { return s.newNonce() }
