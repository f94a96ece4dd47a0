// Package testpipe has a listener whose connections are in memory, as a bubble of synctest
// needs.
package testpipe

import (
	"context"
	"net"
	"testing"
)

// Listener is a net.Listener. Its connections come from this host.
type Listener struct {
	conns chan net.Conn
	done  chan struct{}
}

// Listen returns a Listener for one server.
func Listen() *Listener {
	return &Listener{conns: make(chan net.Conn), done: make(chan struct{})}
}

// Dial returns a connection to the server when the server accepts it.
func (l *Listener) Dial(t testing.TB) net.Conn {
	t.Helper()
	c, err := l.DialContext(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// DialContext is Dial for http.Transport.
func (l *Listener) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- conn{server}:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error { close(l.done); return nil }

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

type conn struct{ net.Conn }

// RemoteAddr implements net.Conn.
func (conn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
