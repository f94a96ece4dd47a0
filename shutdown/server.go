package shutdown

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// Server turns srv into a part: a function that listens on srv.Addr, serves
// until its context is done, then lets running requests finish, and closes what
// is left. An address that cannot be listened on is an error at once.
//
// Requests have three quarters of the time that the [Group] gives the part, or
// 10s outside of a Group. Connections that are still busy then are closed,
// which ends the contexts of their requests, and the part returns an error that
// says so. A connection on which no request came yet counts as busy for its
// first 5 to 6 seconds. Hijacked connections (WebSockets) are not waited for.
//
// TLS is served when srv.TLSConfig has a certificate or a function that finds
// one; one that has neither is an error, so that nobody serves HTTP by mistake.
// srv belongs to the part: do not call its methods, except
// RegisterOnShutdown before the part starts. An http.Server serves once, so the
// part can run only once.
//
// Timeouts that are 0 get defaults, so that no client holds a connection for ever:
// ReadHeaderTimeout 10s, ReadTimeout 30s (for a request with its body), IdleTimeout 2
// min. None of them bounds a handler that has read the request: it may stream its
// response for as long as it likes. Set ReadTimeout to -1 if clients stream requests. A
// positive ReadTimeout and negative values keep their meaning in net/http. WriteTimeout
// stays as it is: set it if no handler streams.
func Server(srv *http.Server) func(context.Context) error {
	var served atomic.Bool // there was a listener for it
	return func(ctx context.Context) error {
		if srv == nil {
			return errors.New("shutdown: Server needs an *http.Server, got nil")
		}
		setTimeouts(srv)
		secure := servesTLS(srv)
		if srv.TLSConfig != nil && !secure && !served.Load() { // serving sets one
			return errors.New("shutdown: Server has a TLSConfig without a certificate: set Certificates, GetCertificate or GetConfigForClient of it, or no TLSConfig to serve HTTP")
		}
		addr := srv.Addr
		if addr == "" { // as ListenAndServe and ListenAndServeTLS read it
			addr = ":http"
			if secure {
				addr = ":https"
			}
		}
		var lc net.ListenConfig
		ln, err := lc.Listen(ctx, "tcp", addr)
		if err != nil {
			if ctx.Err() != nil {
				return nil // told to stop before it listened
			}
			return fmt.Errorf("shutdown: server: %w", err)
		}

		defer ln.Close() // for the one case in which Serve does not: it never got to run
		if served.Swap(true) {
			return fmt.Errorf("shutdown: server %s was run twice: an http.Server serves once, make a new one", addr)
		}

		ended := make(chan error, 1)
		go func() {
			if secure {
				ended <- srv.ServeTLS(ln, "", "")
			} else {
				ended <- srv.Serve(ln)
			}
		}()
		select {
		case err := <-ended:
			if errors.Is(err, http.ErrServerClosed) {
				return nil // somebody called Shutdown or Close: that is how it was asked to end
			}
			_ = srv.Close() // the listener failed; what it accepted before must not outlive the part
			return fmt.Errorf("shutdown: server %s: %w", ln.Addr(), err)
		case <-ctx.Done():
		}

		// The requests' time must not end with ctx, which is done.
		draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime(ctx))
		defer cancel()
		err = srv.Shutdown(draining)
		if err != nil {
			err = fmt.Errorf("shutdown: server %s: closed connections that were still open: %w", ln.Addr(), err)
			_ = srv.Close() // Shutdown's error already says that the end was not clean
		}
		<-ended //nolint:errcheck // it says that it was shut down
		return err
	}
}

// setTimeouts sets what the caller has left at 0.
func setTimeouts(srv *http.Server) {
	if srv.ReadTimeout > 0 {
		return // net/http uses it for all three
	}
	if srv.ReadHeaderTimeout == 0 {
		srv.ReadHeaderTimeout = 10 * time.Second
	}
	if srv.IdleTimeout == 0 {
		srv.IdleTimeout = 2 * time.Minute
	}
	if srv.ReadTimeout == 0 && srv.ReadHeaderTimeout > 0 {
		srv.ReadTimeout = max(30*time.Second, srv.ReadHeaderTimeout)
	}
}

func servesTLS(srv *http.Server) bool {
	c := srv.TLSConfig
	return c != nil && (len(c.Certificates) > 0 || c.GetCertificate != nil || c.GetConfigForClient != nil)
}

// drainTime is how long the requests of a server may go on. The quarter that is
// kept lets the server close connections and return before it counts as late.
func drainTime(ctx context.Context) time.Duration {
	p, ok := ctx.Value(partKey{}).(*part)
	if !ok {
		return 10 * time.Second
	}
	deadline := p.deadline.Load()
	if deadline == nil { // not the group ended ctx, but a function around this one
		return 10 * time.Second
	}
	return time.Until(*deadline) / 4 * 3
}
