package main

import (
	"bytes"
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
	late   []byte        // while it is not empty, responses wait on connections whose requests have it
	due    chan struct{} // closed when late becomes empty
	closed chan struct{}
	conns  map[net.Conn]bool
}

// A pair is a connection and the one that it is forwarded to.
type pair struct {
	requests []byte // the first ones; guarded by the relay's mu
}

// maxRequests bounds the requests of a connection that are kept. A kube-apiserver has a connection for
// each resource, and lists and watches the resource first.
const maxRequests = 64 << 10

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

// delay lets responses wait on connections whose requests have the text, or lets all pass if it is empty.
func (r *relay) delay(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.late) > 0 {
		close(r.due)
	}
	r.late = []byte(text)
	r.due = make(chan struct{})
}

// wait waits until bytes may pass. It reports false once the relay is closed.
func (r *relay) wait() bool {
	r.mu.Lock()
	open := r.open
	r.mu.Unlock()
	return r.await(open)
}

// waitFor waits until a response on the pair may pass.
func (r *relay) waitFor(p *pair) bool {
	r.mu.Lock()
	due := r.open
	if len(r.late) > 0 && bytes.Contains(p.requests, r.late) {
		due = r.due
	}
	r.mu.Unlock()
	return r.await(due) && r.wait()
}

func (r *relay) await(open <-chan struct{}) bool {
	select {
	case <-open:
		return true
	case <-r.closed:
		return false
	}
}

// keepRequest keeps what was sent on the pair.
func (r *relay) keepRequest(p *pair, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if free := maxRequests - len(p.requests); free > 0 {
		p.requests = append(p.requests, data[:min(free, len(data))]...)
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
	p := &pair{}
	var back sync.WaitGroup
	defer back.Wait()
	back.Go(func() { r.copy(from, to, func([]byte) bool { return r.waitFor(p) }) })
	r.copy(to, from, func(data []byte) bool {
		r.keepRequest(p, data)
		return r.wait()
	})
}

func (r *relay) dial() net.Conn {
	for _, address := range r.targets() {
		if conn, err := net.Dial(r.listener.Addr().Network(), address); err == nil {
			return conn
		}
	}
	return nil
}

// copy copies until an end fails or pass returns false for the next bytes, and then closes both.
func (r *relay) copy(to, from net.Conn, pass func([]byte) bool) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if !pass(buffer[:n]) {
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
