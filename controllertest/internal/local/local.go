// Package local serves HTTP on the loopback interface.
package local

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/controllerkit/controllerkit/controllertest/internal/lines"
)

// A Server serves until Close.
type Server struct {
	URL string

	server *http.Server
	wg     sync.WaitGroup
}

// Serve serves a handler at a free port.
func Serve(ctx context.Context, h http.Handler) (*Server, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	s := &Server{URL: "http://" + listener.Addr().String(), server: &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ErrorLog: lines.Discard()}}
	s.wg.Go(func() { _ = s.server.Serve(listener) })
	return s, nil
}

// Close ends all connections, and returns after Serve's goroutine has ended.
func (s *Server) Close() {
	_ = s.server.Close()
	s.wg.Wait()
}
