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
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// ErrKilled is the error of every request of an incarnation that was killed.
var ErrKilled = errors.New("fault: this incarnation was killed")

// A Fault is what happens to one request. The zero value is nothing. The fields
// take effect in the order in which they stand here.
type Fault struct {
	Before  func()              // called before the request is sent
	Delay   time.Duration       // how long it waits after Before
	Drop    bool                // it is not sent; the caller sees a reset connection
	Rewrite func(*http.Request) // changes what is sent

	Answer *Answer // the caller sees this answer
	Commit bool    // but the request is sent all the same

	// A watch-list does not bring the bookmark that ends the initial list, and the
	// stream is cut this long after its beginning. 0 means that nothing is held back.
	NoBookmark time.Duration

	After func()        // called with the answer there, before the caller sees it
	Hold  time.Duration // how long it waits after After
	Lose  bool          // the caller sees a reset connection instead
	Drip  time.Duration // about how long reading the answer's body takes
	Trunc bool          // the answer's body breaks off in the middle
}

// An Answer is a Status that an API server, or what stands before it, sends.
type Answer struct {
	Code       int
	Reason     metav1.StatusReason
	Message    string
	RetryAfter int // seconds; 0 means no such header
}

// An Incarnation is one life of a process, as the network sees it: clients made
// from [Incarnation.Config] have connections of their own, whose requests can be
// answered wrongly, whose streams can be held, and all of which end at
// [Incarnation.Kill]. Make one with [New]. Its methods may be called concurrently.
type Incarnation struct {
	config *rest.Config
	prefix string
	base   *http.Transport
	on     func(*Op) Fault
	done   func(*Op, int, []byte)

	life context.Context
	kill context.CancelFunc

	mu      sync.Mutex
	conns   map[net.Conn]bool
	streams map[*stream]bool
	held    map[string]int // by resource, "" for all
	frozen  int
	changed chan struct{} // closed and replaced when held or frozen change
}

// New returns an incarnation that talks to the server of cfg. on is asked about
// each request, from the goroutine that makes it, and may block it. done, if it is
// not nil, is told the status and the body of the answer to each request, whether
// or not the caller gets to see it; it must not modify the body, which is nil for a
// watch.
func New(cfg *rest.Config, on func(*Op) Fault, done func(op *Op, status int, body []byte)) (*Incarnation, error) {
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
		conns: map[net.Conn]bool{}, streams: map[*stream]bool{}, held: map[string]int{}, changed: make(chan struct{}),
	}
	i.life, i.kill = context.WithCancel(context.Background())
	dial := cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	}
	i.base = &http.Transport{
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 25,
		DisableCompression:  true, // what is cut or filtered must be readable
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return i.track(c)
		},
	}
	// As the transport itself, and not as a wrapper of one, so that it is below
	// whatever the program puts around it, and that client-go does not share its
	// connections with other clients of the same server.
	own := rest.CopyConfig(cfg)
	own.TLSClientConfig = rest.TLSClientConfig{}
	own.Host = host.String()
	own.Dial, own.Proxy, own.WrapTransport = nil, nil, nil
	own.Transport = i
	own.DisableCompression = true
	// Watch events have to be told apart.
	own.ContentType, own.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	i.config = own
	return i, nil
}

// Config returns a configuration whose clients belong to the incarnation. Each
// call returns a copy of its own.
func (i *Incarnation) Config() *rest.Config { return rest.CopyConfig(i.config) }

// Killed is closed by Kill.
func (i *Incarnation) Killed() <-chan struct{} { return i.life.Done() }

// Kill ends the incarnation: nothing that it sends reaches the server any more,
// and it receives nothing. Requests under way may still be carried out by the
// server, as at the death of any process.
func (i *Incarnation) Kill() {
	i.kill()
	i.Reset()
	i.base.CloseIdleConnections()
}

// Reset resets all connections that are open.
func (i *Incarnation) Reset() {
	i.mu.Lock()
	conns := i.conns
	i.conns = map[net.Conn]bool{}
	i.mu.Unlock()
	for c := range conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
}

// Hold keeps the watches of a resource, or of all if it is "", from delivering
// anything until release is called. What the server sends meanwhile is late,
// not lost.
func (i *Incarnation) Hold(resource string) (release func()) {
	i.change(func() { i.held[resource]++ })
	return sync.OnceFunc(func() { i.change(func() { i.held[resource]-- }) })
}

// Freeze stops everything: nothing is sent, and nothing is received, until thaw is
// called.
func (i *Incarnation) Freeze() (thaw func()) {
	i.change(func() { i.frozen++ })
	return sync.OnceFunc(func() { i.change(func() { i.frozen-- }) })
}

// Cut ends the watches of a resource, or of all if it is "": without a word, or,
// if gone is true, with the event that tells that the resource version is too
// old (410). Events that the incarnation has not received yet are not delivered.
func (i *Incarnation) Cut(resource string, gone bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for s := range i.streams {
		if resource == "" || s.resource == resource {
			s.cut(gone)
		}
	}
}

// Streams returns how many watches of a resource are established.
func (i *Incarnation) Streams(resource string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := 0
	for s := range i.streams {
		if s.resource == resource {
			n++
		}
	}
	return n
}

// Watches returns how many watches are established, by resource.
func (i *Incarnation) Watches() map[string]int {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := map[string]int{}
	for s := range i.streams {
		n[s.resource]++
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

// passable waits while the incarnation is frozen or, for a stream, the resource is
// held. It returns early when ctx is done, or the incarnation killed.
func (i *Incarnation) passable(ctx context.Context, stream bool, resource string) error {
	for {
		i.mu.Lock()
		blocked := i.frozen > 0 || stream && (i.held[resource] > 0 || i.held[""] > 0)
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
	return i.passable(ctx, false, "")
}

func (i *Incarnation) track(c net.Conn) (net.Conn, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.life.Err() != nil {
		_ = c.Close()
		return nil, ErrKilled
	}
	i.conns[c] = true
	return c, nil
}

// RoundTrip implements http.RoundTripper.
func (i *Incarnation) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context()) // a transport must not change the caller's
	op, err := parse(r, i.prefix)
	if err != nil {
		return nil, err
	}
	if err := i.passable(r.Context(), false, ""); err != nil {
		return nil, err
	}
	f := i.on(op)
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
	if f.Answer != nil && !f.Commit {
		return f.Answer.response(r), nil
	}

	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(i.life, cancel)
	response, err := i.base.RoundTrip(r.WithContext(ctx))
	if err != nil {
		stop()
		cancel()
		if i.life.Err() != nil {
			err = ErrKilled
		}
		return nil, err
	}
	if op.Verb == "watch" && response.StatusCode == http.StatusOK {
		s := newStream(i, op.Resource, ctx, cancel, stop, response)
		if f.NoBookmark > 0 {
			s.withoutBookmark(f.NoBookmark)
		}
		response.Body = s
		if i.done != nil {
			i.done(op, response.StatusCode, nil)
		}
		return response, nil
	}
	defer cancel()
	defer stop()
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil {
		if i.life.Err() != nil {
			err = ErrKilled
		}
		return nil, err
	}
	if i.done != nil {
		i.done(op, response.StatusCode, body)
	}
	if f.After != nil {
		f.After()
	}
	if err := i.sleep(r.Context(), f.Hold); err != nil {
		return nil, err
	}
	switch {
	case f.Lose:
		return nil, reset()
	case f.Answer != nil:
		return f.Answer.response(r), nil
	}
	var reader io.Reader = bytes.NewReader(body)
	switch {
	case f.Trunc:
		reader = io.MultiReader(bytes.NewReader(body[:len(body)/2]), broken{})
	case f.Drip > 0:
		reader = &dripping{i: i, ctx: r.Context(), body: body, pause: f.Drip / 8, size: len(body)/8 + 1}
	}
	response.Body = io.NopCloser(reader)
	return response, nil
}

func (a *Answer) response(r *http.Request) *http.Response {
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

// reset is what a client sees of a connection that was reset.
func reset() error {
	return &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
}

// broken is where a body breaks off.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// dripping is a body that arrives in small pieces.
type dripping struct {
	i     *Incarnation
	ctx   context.Context
	body  []byte
	pause time.Duration
	size  int
}

func (d *dripping) Read(p []byte) (int, error) {
	if len(d.body) == 0 {
		return 0, io.EOF
	}
	if err := d.i.sleep(d.ctx, d.pause); err != nil {
		return 0, err
	}
	n := copy(p, d.body[:min(d.size, len(d.body))])
	d.body = d.body[n:]
	return n, nil
}

// SetQuery is a Rewrite that sets parameters of the request.
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

// Call makes a call that is no request to the API server, and what f says happens
// to it: Before, Delay, Drop, After, Hold and Lose.
func (f Fault) Call(ctx context.Context, i *Incarnation, call func(context.Context) error) error {
	if err := i.passable(ctx, false, ""); err != nil {
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
