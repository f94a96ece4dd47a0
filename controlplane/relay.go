package main

import (
	"net"
	"sync"
)

// A relay accepts connections and forwards their bytes. While it is held, the bytes wait,
// as on a network that loses all packets and later sends them again.
type relay struct {
	listener net.Listener
	targets  func() []string // addresses; the first one that accepts a connection is used

	mu     sync.Mutex
	open   chan struct{} // closed while bytes may pass
	closed chan struct{}
	conns  map[net.Conn]bool
}

func newRelay(network, address string, targets func() []string) (*relay, error) {
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	r := &relay{listener: l, targets: targets, open: make(chan struct{}), closed: make(chan struct{}), conns: map[net.Conn]bool{}}
	close(r.open)
	return r, nil
}

// hold stops the forwarding, or lets it go on.
func (r *relay) hold(held bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.open:
		if held {
			r.open = make(chan struct{})
		}
	default:
		if !held {
			close(r.open)
		}
	}
}

// wait waits until bytes may pass. It reports false once the relay is closed.
func (r *relay) wait() bool {
	r.mu.Lock()
	open := r.open
	r.mu.Unlock()
	select {
	case <-open:
		return true
	case <-r.closed:
		return false
	}
}

// run accepts connections until close.
func (r *relay) run() {
	var forwarding sync.WaitGroup
	defer forwarding.Wait()
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return
		}
		if !r.keep(conn) {
			return
		}
		forwarding.Go(func() { r.forward(conn) })
	}
}

// keep stores a connection that close has to close.
func (r *relay) keep(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.closed:
		conn.Close()
		return false
	default:
		r.conns[conn] = true
		return true
	}
}

func (r *relay) drop(conn net.Conn) {
	r.mu.Lock()
	delete(r.conns, conn)
	r.mu.Unlock()
	conn.Close()
}

func (r *relay) forward(from net.Conn) {
	defer r.drop(from)
	if !r.wait() {
		return
	}
	to := r.dial()
	if to == nil || !r.keep(to) {
		return
	}
	defer r.drop(to)
	var back sync.WaitGroup
	defer back.Wait()
	back.Go(func() { r.copy(from, to) })
	r.copy(to, from)
}

func (r *relay) dial() net.Conn {
	for _, address := range r.targets() {
		if conn, err := net.Dial(r.listener.Addr().Network(), address); err == nil {
			return conn
		}
	}
	return nil
}

// copy copies until an end fails, and then closes both.
func (r *relay) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if !r.wait() {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// close ends all connections; run then returns.
func (r *relay) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.closed)
	r.listener.Close()
	for conn := range r.conns {
		conn.Close()
	}
}
