package shutdown

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"
)

// Server returns a part that listens on srv.Addr and serves until its context is done.
// Then it lets running requests finish, and closes the remaining connections. If it
// cannot listen, it returns an error at once.
//
// Requests have three quarters of the time that the [Group] gives the part, or 10s outside
// of a Group. Connections that are still busy then are closed, which ends the contexts of
// their requests, and the part returns an error. A new connection without a request counts
// as busy for its first 5 to 6 seconds. Hijacked connections (WebSockets) are not waited
// for.
//
// If srv.TLSConfig has a certificate or a function that returns one, the server uses TLS.
// A TLSConfig without either is an error, so that no server uses plain HTTP by mistake.
//
// Timeouts that are 0 get defaults, so that no client can hold a connection without limit:
// ReadHeaderTimeout 10s (or ReadTimeout, if that is shorter), ReadTimeout 30s (for a request
// with its body), IdleTimeout 2 min. They do not bound a handler that has read the
// request: it may stream its response without limit. Set ReadTimeout to -1 if clients
// stream request bodies. Positive and negative values keep their meaning in net/http.
// WriteTimeout stays as it is: set it if no handler streams.
//
// If srv.BaseContext is nil, the contexts of requests have the values of the part's context, such as
// its logger. They do not end with it: running requests are finished.
//
// srv belongs to the part: do not call its methods, except RegisterOnShutdown before the
// part starts. An http.Server serves once, so the part can run only once.
func Server(srv *http.Server) func(context.Context) error {
	var served atomic.Bool // srv has had a listener
	return func(ctx context.Context) error {
		if srv == nil {
			return errors.New("shutdown: Server got a nil *http.Server: pass one")
		}
		setTimeouts(srv)
		secure := servesTLS(srv)
		if srv.TLSConfig != nil && !secure && !served.Load() { // serving sets one
			return errors.New("shutdown: http.Server.TLSConfig has no certificate: set its Certificates, GetCertificate or GetConfigForClient, or set no TLSConfig to serve plain HTTP")
		}
		addr := srv.Addr
		if addr == "" { // as in ListenAndServe and ListenAndServeTLS
			addr = ":http"
			if secure {
				addr = ":https"
			}
		}
		var lc net.ListenConfig
		ln, err := lc.Listen(ctx, "tcp", addr)
		if err != nil {
			if ctx.Err() != nil {
				return nil // stopped before it listened
			}
			if errors.Is(err, syscall.EADDRINUSE) {
				return fmt.Errorf("shutdown: server: %w: set another Addr, or stop the process that listens there", err)
			}
			return fmt.Errorf("shutdown: server: %w", err)
		}

		defer ln.Close() // if Serve is not called
		if served.Swap(true) {
			return fmt.Errorf("shutdown: server %s was run twice: an http.Server serves once, create a new one", addr)
		}
		if srv.BaseContext == nil {
			values := context.WithoutCancel(ctx)
			srv.BaseContext = func(net.Listener) context.Context { return values }
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
				return nil // other code called Shutdown or Close
			}
			_ = srv.Close() // the listener failed; connections must not outlive the part
			return fmt.Errorf("shutdown: server %s: %w", ln.Addr(), err)
		case <-ctx.Done():
		}

		// The requests' time continues after ctx, which is done.
		draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime(ctx))
		defer cancel()
		err = srv.Shutdown(draining)
		if err != nil {
			err = fmt.Errorf("shutdown: server %s: closed connections that were still open: %w", ln.Addr(), err)
			_ = srv.Close() // Shutdown's error already reports an unclean end
		}
		<-ended //nolint:errcheck // it is ErrServerClosed
		return err
	}
}

// setTimeouts sets the timeouts that are 0.
func setTimeouts(srv *http.Server) {
	if srv.ReadHeaderTimeout == 0 {
		srv.ReadHeaderTimeout = 10 * time.Second
		if srv.ReadTimeout > 0 {
			srv.ReadHeaderTimeout = min(srv.ReadHeaderTimeout, srv.ReadTimeout)
		}
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

// drainTime returns the time that running requests have. In the remaining quarter of the
// part's time the server closes connections and returns, so that it is not late.
func drainTime(ctx context.Context) time.Duration {
	p, ok := ctx.Value(partKey{}).(*part)
	if !ok {
		return 10 * time.Second
	}
	deadline := p.deadline.Load()
	if deadline == nil { // a function between the group and Server ended ctx
		return 10 * time.Second
	}
	return time.Until(*deadline) / 4 * 3
}
