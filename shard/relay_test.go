package shard_test

import (
	"net"
	"net/url"
	"sync"

	"k8s.io/client-go/rest"
)

// A relay is a TCP proxy between one replica and the API server.
type relay struct {
	listener net.Listener
	target   string
	wg       sync.WaitGroup

	mu     sync.Mutex    // guards the fields below
	open   chan struct{} // closed while bytes may pass
	down   bool          // new connections are closed
	closed bool
	conns  map[net.Conn]bool
}

// newRelay returns a relay and a configuration whose requests pass through it. It runs until
// it is closed.
func newRelay(config *rest.Config) (*relay, *rest.Config, error) {
	server, err := url.Parse(config.Host)
	if err != nil {
		return nil, nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	r := &relay{listener: l, target: server.Host, open: make(chan struct{}), conns: map[net.Conn]bool{}}
	close(r.open)
	r.wg.Go(r.accept)
	config = rest.CopyConfig(config)
	server.Host, config.ServerName = l.Addr().String(), server.Hostname()
	config.Host = server.String()
	return r, config, nil
}

func (r *relay) accept() {
	for {
		from, err := r.listener.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", r.target)
		if err != nil {
			_ = from.Close()
			continue
		}
		r.mu.Lock()
		refused := r.down || r.closed
		if !refused {
			r.conns[from], r.conns[to] = true, true
		}
		r.mu.Unlock()
		if refused {
			_, _ = from.Close(), to.Close()
			continue
		}
		r.wg.Go(func() { r.copy(to, from) })
		r.wg.Go(func() { r.copy(from, to) })
	}
}

// copy forwards bytes until one connection ends. While the relay is cut they wait, as on a
// network that loses all packets and later sends them again.
func (r *relay) copy(to, from net.Conn) {
	defer r.drop(to)
	defer r.drop(from)
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		r.mu.Lock()
		open := r.open
		r.mu.Unlock()
		<-open
		if _, writeErr := to.Write(buffer[:n]); err != nil || writeErr != nil {
			return
		}
	}
}

func (r *relay) drop(conn net.Conn) {
	r.mu.Lock()
	delete(r.conns, conn)
	r.mu.Unlock()
	_ = conn.Close()
}

// cut stops all bytes in both directions, or lets them pass again.
func (r *relay) cut(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.open:
		if on && !r.closed {
			r.open = make(chan struct{})
		}
	default:
		if !on {
			close(r.open)
		}
	}
}

// refuse closes all connections, and closes new ones until it is called with false.
func (r *relay) refuse(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = on
	if on {
		for conn := range r.conns {
			_ = conn.Close()
		}
	}
}

// close ends all connections.
func (r *relay) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	_ = r.listener.Close()
	r.refuse(true)
	r.cut(false)
	r.wg.Wait()
}
