package fault

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// ErrKilled is the error of every request of a killed incarnation.
var ErrKilled = errors.New("fault: the incarnation was killed")

// A Fault is applied to one request. The zero value does not change the request. The
// fields take effect in the order of this list.
//
// SlowBody and Truncate have no effect on a watch; use [Incarnation.Hold] and
// [Incarnation.Cut].
type Fault struct {
	Before  func()              // called before the request is sent
	Delay   time.Duration       // the wait after Before
	Drop    bool                // do not send the request; the caller sees a reset connection
	Rewrite func(*http.Request) // changes the request

	Response *Response // the caller sees this response, and the request is not sent
	Commit   bool      // with Response: the request is sent

	// NoBookmark removes the bookmark that ends the initial list from a watch-list, and
	// cuts the stream this long after its start. 0 means no effect.
	NoBookmark time.Duration

	After    func()        // called when the response is there, before the caller sees it
	Hold     time.Duration // the wait after After
	Lose     bool          // the caller sees a reset connection instead of the response
	SlowBody time.Duration // the approximate time of reading the body of the response
	Truncate bool          // the body of the response ends in the middle

	Finally func() // called right before the caller sees the outcome, whether an error or not
}

// A Response is a Status of an API server or of a proxy. The predicates of apierrors, and
// the delays and retries of client-go, treat it as in production.
type Response struct {
	Code       int
	Reason     metav1.StatusReason
	Message    string
	RetryAfter int // seconds; 0 means no Retry-After header
}

// An Incarnation is one life of a process. Clients made from [Incarnation.Config] have
// their own connections, to which the faults are applied and which end at
// [Incarnation.Kill]. No fault affects another incarnation. Make one with [New]. Its
// methods may be called concurrently.
type Incarnation struct {
	config *rest.Config
	prefix string
	base   *http.Transport
	on     func(*Op) Fault
	done   func(*Op, int, []byte)

	life context.Context
	kill context.CancelFunc

	mu      sync.Mutex
	conns   map[*conn]bool
	streams map[*stream]bool
	held    map[string]int // by resource, "" for all
	frozen  int
	changed chan struct{} // closed and replaced when held or frozen change
}

// New returns an incarnation that sends requests to the server of cfg. It calls on with
// each request, in the goroutine of the request, and applies the returned Fault; on may
// block. A nil on means no faults. It calls done with the status and the body of each
// response, even if the caller does not see the response. done must not modify the
// body, which is nil for a watch. A nil done means no calls.
//
// cfg must have no Transport, because an incarnation makes its own, and no
// ExecProvider, because client-go ignores it with another transport. WrapTransport of
// cfg wraps the incarnation.
func New(cfg *rest.Config, on func(*Op) Fault, done func(op *Op, status int, body []byte)) (*Incarnation, error) {
	switch {
	case cfg.Transport != nil:
		return nil, errors.New("fault: the configuration has a Transport, but an incarnation makes its own connections: set Transport to nil")
	case cfg.ExecProvider != nil:
		return nil, errors.New("fault: the configuration has an ExecProvider, which client-go uses only with its own connections: use a token or a client certificate")
	}
	tlsConfig, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("fault: %w", err)
	}
	host, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("fault: %w", err)
	}
	i := &Incarnation{
		prefix: strings.TrimSuffix(host.Path, "/"), on: on, done: done,
		conns: map[*conn]bool{}, streams: map[*stream]bool{}, held: map[string]int{}, changed: make(chan struct{}),
	}
	i.life, i.kill = context.WithCancel(context.Background())
	dial := cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	}
	proxy := cfg.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment // as client-go
	}
	i.base = &http.Transport{
		Proxy:               proxy,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 25,
		DisableCompression:  true, // bodies are cut and filtered
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(i.life, cancel)()
			c, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return i.track(c)
		},
	}
	// The incarnation is the transport and not a wrapper, so that it is below the wrappers
	// of the program, and client-go does not share its connections with other clients of
	// the server.
	own := rest.CopyConfig(cfg)
	own.TLSClientConfig = rest.TLSClientConfig{}
	own.Host = host.String()
	own.Dial, own.Proxy = nil, nil
	own.Transport = i
	own.DisableCompression = true
	// So that names and watch events can be read.
	own.ContentType, own.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	i.config = own
	return i, nil
}

// Config returns a configuration whose clients belong to the incarnation. Each call
// returns a new copy.
func (i *Incarnation) Config() *rest.Config { return rest.CopyConfig(i.config) }

// Killed returns a channel that Kill closes.
func (i *Incarnation) Killed() <-chan struct{} { return i.life.Done() }

// Kill ends the incarnation: its later requests do not reach the server, and it
// receives no response. The server may still execute running requests, as it does when
// a process dies.
func (i *Incarnation) Kill() {
	i.kill()
	i.Reset()
	i.base.CloseIdleConnections()
}

// Reset resets all open connections. Running requests end with the error of a
// connection that the server has reset.
func (i *Incarnation) Reset() {
	i.mu.Lock()
	conns := i.conns
	i.conns = map[*conn]bool{}
	i.mu.Unlock()
	for c := range conns {
		c.reset()
	}
}

// A conn is a connection that can be reset.
type conn struct {
	net.Conn
	i        *Incarnation
	wasReset atomic.Bool
}

func (c *conn) reset() {
	c.wasReset.Store(true)
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Conn.Close()
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && c.wasReset.Load() {
		err = reset()
	}
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil && c.wasReset.Load() {
		err = reset()
	}
	return n, err
}

func (c *conn) Close() error {
	c.i.mu.Lock()
	delete(c.i.conns, c)
	c.i.mu.Unlock()
	return c.Conn.Close()
}

// Hold delays all events of the watches of a resource, or of all resources if it is "",
// until release is called. Held watches can be established and cut.
func (i *Incarnation) Hold(resource string) (release func()) {
	i.change(func() { i.held[resource]++ })
	return sync.OnceFunc(func() { i.change(func() { i.held[resource]-- }) })
}

// Freeze delays all requests, responses and events until thaw is called. Only Kill and
// the end of a request's context take effect before.
func (i *Incarnation) Freeze() (thaw func()) {
	i.change(func() { i.frozen++ })
	return sync.OnceFunc(func() { i.change(func() { i.frozen-- }) })
}

// Cut ends the watches of a resource, or of all resources if it is "". If gone is true,
// a watch ends with the 410 event of a resource version that is too old. Events that
// the incarnation has not received are not delivered. A watch that has delivered a part
// of an event ends there, without a 410.
func (i *Incarnation) Cut(resource string, gone bool) {
	i.change(func() {
		for s := range i.streams {
			if resource == "" || s.resource == resource {
				s.cutLocked(gone)
			}
		}
	})
}

// Watches returns how many watches are established, by resource.
func (i *Incarnation) Watches() map[string]int {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := map[string]int{}
	for s := range i.streams {
		if s.over == open {
			n[s.resource]++
		}
	}
	return n
}

func (i *Incarnation) change(f func()) {
	i.mu.Lock()
	f()
	close(i.changed)
	i.changed = make(chan struct{})
	i.mu.Unlock()
}

// passable waits while the incarnation is frozen or, for an open stream, its resource is
// held. It returns early if ctx is done or the incarnation is killed.
func (i *Incarnation) passable(ctx context.Context, s *stream) error {
	for {
		i.mu.Lock()
		blocked := i.frozen > 0 || s != nil && s.over == open && (i.held[s.resource] > 0 || i.held[""] > 0)
		changed := i.changed
		i.mu.Unlock()
		switch {
		case i.life.Err() != nil:
			return ErrKilled
		case ctx.Err() != nil:
			return ctx.Err()
		case !blocked:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
		case <-i.life.Done():
		}
	}
}

func (i *Incarnation) sleep(ctx context.Context, d time.Duration) error {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-i.life.Done():
		}
	}
	return i.passable(ctx, nil)
}

func (i *Incarnation) track(c net.Conn) (net.Conn, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.life.Err() != nil {
		_ = c.Close()
		return nil, ErrKilled
	}
	own := &conn{Conn: c, i: i}
	i.conns[own] = true
	return own, nil
}

// RoundTrip implements http.RoundTripper. The effects of a fault come in this order: Before,
// Delay, Drop, Rewrite, a Response without Commit, the request itself, After, Hold, Lose, a Response
// with Commit, Truncate or SlowBody, and at the end Finally.
func (i *Incarnation) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context()) // a transport must not change the caller's
	op, err := parse(r, i.prefix)
	if err != nil {
		return nil, err
	}
	acceptJSON(r.Header)
	if err := i.passable(r.Context(), nil); err != nil {
		return nil, err
	}
	var f Fault
	if i.on != nil {
		f = i.on(op)
	}
	if f.Finally != nil {
		defer f.Finally()
	}
	if f.Before != nil {
		f.Before()
	}
	if err := i.sleep(r.Context(), f.Delay); err != nil {
		return nil, err
	}
	if f.Drop {
		return nil, reset()
	}
	if f.Rewrite != nil {
		f.Rewrite(r)
	}
	if f.Response != nil && !f.Commit {
		return f.Response.response(r), nil
	}
	a, err := i.send(r, op)
	if err != nil {
		return nil, err
	}
	if f.After != nil {
		f.After()
	}
	return i.deliver(r, op, f, a)
}

// An answer is a response of the API server. It has the body, unless it is a watch.
type answer struct {
	*http.Response
	watch bool
	body  []byte
	end   func() // ends a watch
}

// send sends a request. It ends with the incarnation.
func (i *Incarnation) send(r *http.Request, op *Op) (a answer, err error) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(i.life, cancel)
	a.end = func() { stop(); cancel() }
	if a.Response, err = i.base.RoundTrip(r.WithContext(ctx)); err != nil { //nolint:bodyclose // closed below, or by deliver
		a.end()
		return a, i.failed(r.Context(), err)
	}
	if a.watch = op.Verb == "watch" && a.StatusCode == http.StatusOK; !a.watch {
		a.body, err = io.ReadAll(a.Body)
		_ = a.Body.Close()
		a.end()
		if err != nil {
			return a, i.failed(r.Context(), err)
		}
	}
	if i.done != nil {
		i.done(op, a.StatusCode, a.body)
	}
	return a, nil
}

// deliver returns the answer to the client, or what the fault makes of it.
func (i *Incarnation) deliver(r *http.Request, op *Op, f Fault, a answer) (*http.Response, error) {
	refuse := func() {
		if a.watch {
			a.end()
			_ = a.Body.Close()
		}
	}
	if err := i.sleep(r.Context(), f.Hold); err != nil {
		refuse()
		return nil, err
	}
	switch {
	case f.Lose:
		refuse()
		return nil, reset()
	case f.Response != nil:
		refuse()
		return f.Response.response(r), nil
	case a.watch:
		a.Body = newStream(i, op.Resource, r.Context(), a.end, a.Response, f.NoBookmark)
		return a.Response, nil
	}
	var reader io.Reader = bytes.NewReader(a.body)
	switch {
	case f.Truncate:
		reader = io.MultiReader(bytes.NewReader(a.body[:len(a.body)/2]), broken{})
	case f.SlowBody > 0:
		reader = &slowBody{i: i, ctx: r.Context(), body: a.body, pause: f.SlowBody / drops, size: (len(a.body) + drops - 1) / drops}
	}
	a.Body = io.NopCloser(reader)
	return a.Response, nil
}

// failed returns the error that the caller sees of a request that failed without a fault.
func (i *Incarnation) failed(ctx context.Context, err error) error {
	if gone := i.passable(ctx, nil); gone != nil {
		return gone
	}
	return err
}

func (a *Response) response(r *http.Request) *http.Response {
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(a.Code), Reason: a.Reason, Message: a.Message,
	}
	header := http.Header{"Content-Type": {runtime.ContentTypeJSON}}
	if a.RetryAfter > 0 {
		header.Set("Retry-After", strconv.Itoa(a.RetryAfter))
		status.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(a.RetryAfter)}
	}
	body, err := json.Marshal(status)
	if err != nil {
		panic(err) // it is a struct of strings and numbers
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", a.Code, http.StatusText(a.Code)), StatusCode: a.Code,
		Proto: "HTTP/2.0", ProtoMajor: 2, Header: header, Request: r,
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}
}

// reset returns the error of a connection that the server has reset.
func reset() error {
	return &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
}

// broken is the end of a truncated body.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// slowBody is a body that arrives in small pieces.
type slowBody struct {
	i     *Incarnation
	ctx   context.Context
	body  []byte
	pause time.Duration // before each piece
	size  int           // of a piece
	drop  []byte        // the rest of the present one
}

const drops = 8

func (d *slowBody) Read(p []byte) (int, error) {
	if len(d.drop) == 0 {
		if len(d.body) == 0 {
			return 0, io.EOF
		}
		if err := d.i.sleep(d.ctx, d.pause); err != nil {
			return 0, err
		}
		n := min(d.size, len(d.body))
		d.drop, d.body = d.body[:n], d.body[n:]
	}
	n := copy(p, d.drop)
	d.drop = d.drop[n:]
	return n, nil
}

// SetQuery returns a Rewrite that sets parameters of the request, given as pairs of name
// and value.
func SetQuery(pairs ...string) func(*http.Request) {
	return func(r *http.Request) {
		u := *r.URL
		query := u.Query()
		for n := 0; n+1 < len(pairs); n += 2 {
			query.Set(pairs[n], pairs[n+1])
		}
		u.RawQuery = query.Encode()
		r.URL = &u
	}
}

// Call makes a call that is not a request to the API server, and applies the fields
// Before, Delay, Drop, After, Hold, Lose and Finally of f to it.
func (f Fault) Call(ctx context.Context, i *Incarnation, call func(context.Context) error) error {
	if f.Finally != nil {
		defer f.Finally()
	}
	if err := i.passable(ctx, nil); err != nil {
		return err
	}
	if f.Before != nil {
		f.Before()
	}
	if err := i.sleep(ctx, f.Delay); err != nil {
		return err
	}
	if f.Drop {
		return reset()
	}
	err := call(ctx)
	if f.After != nil {
		f.After()
	}
	if err := i.sleep(ctx, f.Hold); err != nil {
		return err
	}
	if f.Lose {
		return reset()
	}
	return err
}
