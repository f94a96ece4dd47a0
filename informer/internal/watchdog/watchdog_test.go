package watchdog_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/informer/internal/watchdog"
	"github.com/controllerkit/controllerkit/internal/alive"
	"github.com/controllerkit/controllerkit/internal/testlog"
)

const (
	silence = time.Minute
	pods    = "/api/v1/pods"
	watch   = pods + "?watch=true"
	initial = watch + "&sendInitialEvents=true"
)

// server is the inner transport: a response for each request.
type server func(*http.Request) (*http.Response, error)

func (s server) RoundTrip(req *http.Request) (*http.Response, error) { return s(req) }

// stream is the body of a response: a byte after each of its pauses. After the last one, it
// ends with end, or if end is nil it is silent until the request's context ends.
type stream struct {
	ctx    context.Context
	pauses []time.Duration
	end    error
	closed *bool
}

func (s *stream) Read(p []byte) (int, error) {
	var next <-chan time.Time
	switch {
	case len(s.pauses) > 0:
		next = time.After(s.pauses[0])
		s.pauses = s.pauses[1:]
	case s.end != nil:
		return 0, s.end
	}
	select {
	case <-next:
		return copy(p, "x"), nil
	case <-s.ctx.Done():
		return 0, s.ctx.Err()
	}
}

func (s *stream) Close() error {
	if s.closed != nil {
		*s.closed = true
	}
	return nil
}

// streaming responds with a stream that has these pauses.
func streaming(pauses ...time.Duration) server {
	return func(req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: &stream{ctx: req.Context(), pauses: pauses}}, nil
	}
}

func request(ctx context.Context, path string) *http.Request {
	return httptest.NewRequestWithContext(klog.NewContext(ctx, klog.Logger{}), http.MethodGet, path, http.NoBody)
}

// readAll reads one byte after the other, with a pause of the consumer before each Read.
func readAll(r io.Reader, slow time.Duration) (bytes int, err error) {
	p := make([]byte, 1)
	for {
		time.Sleep(slow)
		n, err := r.Read(p)
		if bytes += n; err != nil {
			return bytes, err
		}
	}
}

// TestSilence: a watch ends as if the server had ended it, once a Read has brought no byte for
// the silence. Other requests have no limit.
func TestSilence(t *testing.T) {
	for _, tt := range []struct {
		name   string
		path   string
		pauses []time.Duration // of the server
		slow   time.Duration   // the consumer's pause before each Read
		bytes  int
		end    error
		after  time.Duration // from the request to the end
	}{
		{name: "silent", path: watch, end: io.EOF, after: silence},
		{name: "with a list", path: initial, end: io.EOF, after: silence},
		{name: "each byte begins it again", path: watch, pauses: []time.Duration{silence - 1, silence - 1}, bytes: 2, end: io.EOF, after: 3*silence - 2},
		{name: "a byte too late", path: watch, pauses: []time.Duration{silence + 1}, end: io.EOF, after: silence},
		{name: "a slow consumer", path: watch, pauses: []time.Duration{1}, slow: 5 * silence, bytes: 1, end: io.EOF, after: 11*silence + 1},
		{name: "a list", path: pods, pauses: []time.Duration{5 * silence}, bytes: 1, end: context.DeadlineExceeded, after: time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				start := time.Now()
				resp, err := watchdog.New(silence)(streaming(tt.pauses...)).RoundTrip(request(ctx, tt.path))
				if err != nil {
					t.Fatal(err)
				}
				n, err := readAll(resp.Body, tt.slow)
				if after := time.Since(start); n != tt.bytes || !errors.Is(err, tt.end) || after != tt.after {
					t.Errorf("read %d bytes and %v after %v, want %d and %v after %v", n, err, after, tt.bytes, tt.end, tt.after)
				}
				if err := resp.Body.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestErrorsOfAWatch: only a silence becomes io.EOF. The error of the connection and the end of
// the caller's context stay what they are.
func TestErrorsOfAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := server(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: &stream{ctx: req.Context(), end: syscall.ECONNRESET}}, nil
		})
		resp, err := watchdog.New(silence)(broken).RoundTrip(request(t.Context(), watch))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := readAll(resp.Body, 0); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a broken connection reads %v", err)
		}
		_ = resp.Body.Close()

		ctx, cancel := context.WithTimeout(t.Context(), silence/2)
		defer cancel()
		if resp, err = watchdog.New(silence)(streaming()).RoundTrip(request(ctx, watch)); err != nil {
			t.Fatal(err)
		}
		if _, err := readAll(resp.Body, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the end of the caller's context reads %v", err)
		}
		_ = resp.Body.Close()
	})
}

// TestClose: Close ends the request and closes the inner body, also during a Read.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ctx context.Context
		closed := false
		resp, err := watchdog.New(silence)(server(func(req *http.Request) (*http.Response, error) {
			ctx = req.Context()
			return &http.Response{StatusCode: http.StatusOK, Body: &stream{ctx: ctx, closed: &closed}}, nil
		})).RoundTrip(request(t.Context(), watch))
		if err != nil {
			t.Fatal(err)
		}
		read := make(chan error, 1)
		go func() {
			_, err := readAll(resp.Body, 0)
			read <- err
		}()
		synctest.Wait()
		if err := resp.Body.Close(); err != nil || !closed || ctx.Err() == nil {
			t.Errorf("Close: %v; the inner body is closed: %t; the request's context: %v", err, closed, ctx.Err())
		}
		if err := <-read; !errors.Is(err, context.Canceled) {
			t.Errorf("Read during Close: %v", err)
		}
	})
}

// TestNoResponse: a watch without a response ends after the silence with a timeout, which
// client-go takes for the end of a watch and not for a reason to list.
func TestNoResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mute := server(func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			return nil, req.Context().Err()
		})
		for _, tt := range []struct {
			path           string
			silence, after time.Duration
		}{
			{watch, silence, silence},
			{watch, 3 * time.Second, 3 * time.Second},
			{initial, silence, silence},
			{initial, 3 * time.Second, 10 * time.Second}, // after 3s the API server says that its watch cache is behind
		} {
			start := time.Now()
			_, err := watchdog.New(tt.silence)(mute).RoundTrip(request(t.Context(), tt.path))
			var timeout net.Error
			if after := time.Since(start); !errors.As(err, &timeout) || !timeout.Timeout() || after != tt.after {
				t.Errorf("%s: error %v after %v, want a timeout after %v", tt.path, err, after, tt.after)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*silence)
		defer cancel()
		if _, err := watchdog.New(silence)(mute).RoundTrip(request(ctx, pods)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a list: %v, want the end of its context", err)
		}
	})
}

// TestRefused: a watch that begins with a list and is refused is sent again after pauses. The
// informer is told, and the body of the response is closed.
func TestRefused(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for _, tt := range []struct {
		name     string
		path     string
		err      error
		code     int // of the response without err
		after    string
		sent     int           // requests, of which the third one succeeds
		told     int           // refusals
		min, max time.Duration // of both pauses
	}{
		{name: "connection", path: initial, err: refused, sent: 3, told: 2, min: 2400 * time.Millisecond, max: 4800 * time.Millisecond},
		{name: "429", path: initial, code: 429, sent: 3, told: 2, min: 2400 * time.Millisecond, max: 4800 * time.Millisecond},
		{name: "429 with a time", path: initial, code: 429, after: "7", sent: 3, told: 2, min: 14 * time.Second, max: 14 * time.Second},
		{name: "429 with a long time", path: initial, code: 429, after: "3600", sent: 3, told: 2, min: 2 * time.Minute, max: 2 * time.Minute},
		{name: "429 with a date", path: initial, code: 429, after: "Wed, 21 Oct 2026 07:28:00 GMT", sent: 3, told: 2, min: 2400 * time.Millisecond, max: 4800 * time.Millisecond},
		{name: "a list with 429", path: pods, code: 429, sent: 1, told: 1},
		{name: "403", path: initial, code: 403, sent: 1},
		{name: "another error", path: initial, err: io.ErrUnexpectedEOF, sent: 1},
		{name: "a watch without a list", path: watch, err: refused, sent: 3, told: 2, min: 2400 * time.Millisecond, max: 4800 * time.Millisecond},
		{name: "a watch without a list, 429", path: watch, code: 429, sent: 3, told: 2, min: 2400 * time.Millisecond, max: 4800 * time.Millisecond},
		{name: "no route", path: watch, err: &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EHOSTUNREACH)}, sent: 3, told: 2, min: 2400 * time.Millisecond, max: 4800 * time.Millisecond},
		{name: "no name", path: watch, err: &net.OpError{Op: "dial", Err: &net.DNSError{}}, sent: 3, told: 2, min: 2400 * time.Millisecond, max: 4800 * time.Millisecond},
		{name: "another certificate", path: watch, err: fmt.Errorf("tls: %w", &tls.CertificateVerificationError{Err: errors.New("x509")}), sent: 3, told: 2, min: 2400 * time.Millisecond, max: 4800 * time.Millisecond},
		{name: "a broken connection", path: watch, err: &net.OpError{Op: "read", Err: syscall.ECONNRESET}, sent: 1},
		{name: "a list", path: pods + "?sendInitialEvents=true", err: refused, sent: 1, told: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sent, closed := 0, 0
				next := server(func(req *http.Request) (*http.Response, error) {
					if sent == 3 { // the check for a restore of etcd
						return &http.Response{StatusCode: http.StatusForbidden, Body: http.NoBody}, nil
					}
					if sent++; sent == 3 {
						return streaming()(req)
					}
					if tt.err != nil {
						return nil, tt.err
					}
					return &http.Response{StatusCode: tt.code, Header: http.Header{"Retry-After": {tt.after}}, Body: &counted{&closed}}, nil
				})
				var told []error
				informer := alive.New(alive.Metrics{Refused: func(err error) { told = append(told, err) }})
				start := time.Now()
				resp, err := watchdog.New(silence)(next).RoundTrip(request(informer.Context(t.Context()), tt.path))
				if took := time.Since(start); sent != tt.sent || took < tt.min || took > tt.max || len(told) != tt.told {
					t.Errorf("%d requests in %v, %d refused; want %d in %v to %v, and %d", sent, took, len(told), tt.sent, tt.min, tt.max, tt.told)
				}
				if tt.sent == 3 && (err != nil || resp.StatusCode != http.StatusOK) || tt.sent == 1 && !errors.Is(err, tt.err) {
					t.Errorf("the last response is %v, %v", resp, err)
				}
				if want := tt.sent - 1; tt.err == nil && closed != want {
					t.Errorf("%d bodies of refused watches are closed, want %d", closed, want)
				}
				for _, err := range told {
					if list := !strings.Contains(tt.path, "watch="); list != strings.HasPrefix(err.Error(), "failed to list: ") {
						t.Errorf("the informer is told %v", err)
					}
					if tt.err != nil && !errors.Is(err, tt.err) || tt.err == nil && !apierrors.IsTooManyRequests(err) {
						t.Errorf("the informer is told %v", err)
					}
				}
				if resp != nil {
					_ = resp.Body.Close()
				}
			})
		})
	}
}

// TestReason: the reason of a response 429 is told, whatever its encoding, and the caller can still
// read the response. A refusal that lasts is logged after 3s and then each minute, until another
// response.
func TestReason(t *testing.T) {
	status := metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Message: "storage is (re)initializing: conversion webhook failed", Code: 429}
	asJSON, err := json.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := status.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Status"}, Raw: raw}
	asProtobuf, err := unknown.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 1<<20)
	for _, tt := range []struct{ name, body, want string }{
		{"JSON", string(asJSON), "the API server responded 429: " + status.Message},
		{"protobuf", "k8s\x00" + string(asProtobuf), "the API server responded 429: " + status.Message},
		{"broken protobuf", "k8s\x00" + string(asProtobuf[:10]), "the API server responded 429"},
		{"text", "try later", "the API server responded 429"},
		{"a Status without a message", `{"kind":"Status"}`, "the API server responded 429"},
		{"nothing", "", "the API server responded 429"},
		{"more than is read", `{"message":"` + long + `"}`, "the API server responded 429"},
	} {
		synctest.Test(t, func(t *testing.T) {
			body := tt.body
			next := server(func(req *http.Request) (*http.Response, error) {
				if body == "" && tt.body != "" {
					return streaming()(req)
				}
				return &http.Response{StatusCode: 429, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}, nil
			})
			var told error
			informer := alive.New(alive.Metrics{Refused: func(err error) { told = err }})
			logs := testlog.New()
			transport := watchdog.New(silence)(next)
			send := func() string {
				resp, err := transport.RoundTrip(request(t.Context(), pods).WithContext(informer.Context(logs.Context(t.Context()))))
				if err != nil {
					t.Fatal(err)
				}
				if resp.StatusCode == http.StatusOK {
					_ = resp.Body.Close()
					return ""
				}
				got, err := io.ReadAll(resp.Body)
				if err != nil || resp.Body.Close() != nil {
					t.Errorf("%s: %v", tt.name, err)
				}
				return string(got)
			}
			for range 12 { // of 10s
				if got := send(); got != tt.body {
					t.Fatalf("%s: the caller reads %.100q", tt.name, got)
				}
				time.Sleep(10 * time.Second)
			}
			if told == nil || told.Error() != "failed to list: "+tt.want {
				t.Errorf("%s: the informer is told %v, want %s", tt.name, told, tt.want)
			}
			lines := func() (n int) {
				for _, line := range logs.Find("The API server refuses the requests of an informer, which are sent again") {
					if line.Level == 0 {
						n++
					}
				}
				return n
			}
			if got := lines(); got != 2 {
				t.Errorf("%s: %d lines in 2 minutes, want 2", tt.name, got)
			}
			if tt.body != "" {
				body = "" // an answer
				send()
				body = tt.body
				send()
				time.Sleep(2 * time.Second)
				send()
				if got := lines(); got != 2 {
					t.Errorf("%s: %d lines 2s after an answer, want no more than 2", tt.name, got)
				}
			}
		})
	}
}

// TestToldWithin10s: whatever the pauses, the first line about a watch that does not reach the server
// comes within 10s.
func TestToldWithin10s(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			logs := testlog.New()
			ctx, cancel := context.WithTimeout(alive.New(alive.Metrics{}).Context(logs.Context(t.Context())), 10*time.Second)
			defer cancel()
			down := server(func(*http.Request) (*http.Response, error) {
				return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			})
			resp, err := watchdog.New(silence)(down).RoundTrip(request(t.Context(), watch).WithContext(ctx))
			if resp != nil || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("response %v, error %v", resp, err)
			}
			told := 0
			for _, line := range logs.Find("The API server cannot be reached by an informer, which tries again") {
				if line.Level == 0 {
					told++
				}
			}
			if told != 1 {
				t.Errorf("%d lines in 10s, want 1", told)
			}
		})
	}
}

// TestOutage: a response to any client of the config ends the pauses of the watches that did not
// reach the server, within two seconds and once, and not the pauses of those that got a 429. A
// response of a proxy, with 503, ends none.
func TestOutage(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for _, tt := range []struct {
		name string
		err  error         // of the watches; nil means 429
		code int           // of the other request
		max  time.Duration // until the last watch is back; each that is back wakes the others
	}{
		{name: "unreachable", err: dial, code: 200, max: 2 * time.Second},
		{name: "forbidden is a response", err: dial, code: 403, max: 2 * time.Second},
		{name: "a proxy", err: dial, code: 503, max: time.Minute},
		{name: "overloaded", code: 200, max: time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wrap := watchdog.New(silence)
				var over atomic.Bool
				var sent atomic.Int64
				down := wrap(server(func(req *http.Request) (*http.Response, error) {
					switch sent.Add(1); {
					case !strings.HasSuffix(req.URL.String(), watch): // the check for a restore of etcd
						return &http.Response{StatusCode: http.StatusForbidden, Body: http.NoBody}, nil
					case over.Load():
						return streaming()(req)
					case tt.err != nil:
						return nil, tt.err
					}
					return &http.Response{StatusCode: 429, Header: http.Header{}, Body: http.NoBody}, nil
				}))
				other := wrap(server(func(*http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: tt.code, Body: http.NoBody}, nil
				}))
				informer := alive.New(alive.Metrics{})
				back := make(chan time.Time, 10)
				for range cap(back) {
					go func() {
						resp, err := down.RoundTrip(request(informer.Context(t.Context()), watch))
						if err != nil {
							t.Error(err)
							return
						}
						_ = resp.Body.Close()
						back <- time.Now()
					}()
				}
				// The API server is back when all have just begun a long pause.
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				before := sent.Load()
				ping := func() {
					resp, err := other.RoundTrip(request(t.Context(), "/apis/leases"))
					if err != nil {
						t.Fatal(err)
					}
					_ = resp.Body.Close()
				}
				ping() // while the others are still refused
				time.Sleep(4 * time.Second)
				if n := sent.Load() - before; (n == int64(cap(back))) != (tt.max < time.Minute) {
					t.Errorf("%d attempts after a response", n)
				}
				over.Store(true)
				start := time.Now()
				ping()
				var last time.Duration
				for range cap(back) {
					last = max(last, (<-back).Sub(start))
				}
				if last > tt.max {
					t.Errorf("the last watch is back after %v, want at most %v", last, tt.max)
				}
			})
		})
	}
}

// counted is an empty body that counts its Close.
type counted struct{ closed *int }

func (counted) Read([]byte) (int, error) { return 0, io.EOF }

func (c counted) Close() error { *c.closed++; return nil }

// TestStopWhileRefused: the end of the request's context ends the pauses at once.
func TestStopWhileRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		busy := server(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"60"}}, Body: http.NoBody}, nil
		})
		start := time.Now()
		resp, err := watchdog.New(silence)(busy).RoundTrip(request(ctx, initial))
		if resp != nil || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("response %v, error %v after %v, want the end of the context after 1s", resp, err, time.Since(start))
		}
	})
}

// TestRelist: a Relist ends the watch and lets the next one expire without a request, once. A
// watch that begins with a list is sent.
func TestRelist(t *testing.T) {
	for _, tt := range []struct {
		path    string // of the watch after the Relist
		expired bool
	}{{watch, true}, {initial, false}} {
		synctest.Test(t, func(t *testing.T) {
			sent := 0
			rt := watchdog.New(silence)(server(func(req *http.Request) (*http.Response, error) {
				sent++
				return streaming()(req)
			}))
			informer := alive.New(alive.Metrics{})
			ctx := informer.Context(t.Context())
			first, err := rt.RoundTrip(request(ctx, watch))
			if err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(silence/2, informer.Relist)
			start := time.Now()
			if _, err := readAll(first.Body, 0); err != io.EOF || time.Since(start) != silence/2 {
				t.Errorf("the watch reads %v after %v, want EOF after %v", err, time.Since(start), silence/2)
			}
			_ = first.Body.Close()

			second, err := rt.RoundTrip(request(ctx, tt.path))
			if err != nil {
				t.Fatal(err)
			}
			if expired := second.StatusCode == http.StatusGone; expired != tt.expired || sent != map[bool]int{true: 1, false: 2}[tt.expired] {
				t.Errorf("%s after a Relist: status %d, %d requests, want expired: %t", tt.path, second.StatusCode, sent, tt.expired)
			}
			if tt.expired {
				var status metav1.Status
				if err := json.NewDecoder(second.Body).Decode(&status); err != nil || !apierrors.IsResourceExpired(apierrors.FromObject(&status)) || status.Kind != "Status" {
					t.Errorf("the body is %+v, %v", status, err)
				}
			}
			_ = second.Body.Close()
			third, err := rt.RoundTrip(request(ctx, watch))
			if err != nil || third.StatusCode != http.StatusOK {
				t.Fatalf("the watch after it: %v, %v", third, err)
			}
			_ = third.Body.Close()
		})
	}
}

// TestMute: after two watches in a row that brought no byte before their silence, the next one
// expires without a request, once. A byte, or a watch without a response, is no such watch.
//
// Proves I4.
func TestMute(t *testing.T) {
	const mute, byteOnce, noResponse = 'm', 'b', 'n'
	for _, tt := range []struct {
		watches string
		expired int // the number of the last watch that expires; 0 for none
		lists   int // that the log shows
	}{
		{"mmm", 3, 1}, {"mmmmm", 3, 2}, {"mmmmmm", 6, 2}, {"mbmm", 0, 1}, {"mbmmm", 5, 1}, {"mnmm", 4, 1}, {"bbbb", 0, 0}, {"nnnn", 0, 0},
	} {
		t.Run(tt.watches, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				logs := testlog.New()
				ctx := alive.New(alive.Metrics{}).Context(logs.Context(t.Context()))
				sent := 0
				var kind rune
				rt := watchdog.New(silence)(server(func(req *http.Request) (*http.Response, error) {
					sent++
					switch kind {
					case byteOnce:
						return streaming(time.Second)(req)
					case noResponse:
						<-req.Context().Done()
						return nil, req.Context().Err()
					}
					return streaming()(req)
				}))
				expired := 0
				for n, k := range tt.watches {
					kind = k
					resp, err := rt.RoundTrip(httptest.NewRequestWithContext(ctx, http.MethodGet, watch, http.NoBody))
					if err != nil {
						continue
					}
					if resp.StatusCode == http.StatusGone {
						expired = n + 1
						sent++
					} else if _, err := readAll(resp.Body, 0); err != io.EOF {
						t.Errorf("watch %d reads %v, want EOF", n+1, err)
					} else if _, err := resp.Body.Read(make([]byte, 1)); err != io.EOF {
						t.Errorf("watch %d reads %v again, want EOF", n+1, err)
					}
					_ = resp.Body.Close()
				}
				if expired != tt.expired || sent != len(tt.watches) {
					t.Errorf("watch %d has expired, %d of %d were sent; want %d", expired, sent, len(tt.watches), tt.expired)
				}
				if lines := logs.Find("The server was silent in two watches, and the informer lists again"); len(lines) != tt.lists {
					t.Errorf("the lines are %v, want %d", lines, tt.lists)
				}
			})
		})
	}
}

// TestWentBack: a watch that did not reach the API server, and is then accepted by one at an
// earlier version, expires. Without an outage, no other request is sent.
//
// Proves I4.
func TestWentBack(t *testing.T) {
	const path = "/api/v1/namespaces/shop/pods?allowWatchBookmarks=true&fieldSelector=metadata.name%3Da&labelSelector=b&resourceVersion=5000&timeoutSeconds=300&watch=true"
	dial := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for _, tt := range []struct {
		name    string
		refused func() (*http.Response, error)
		path    string
		list    string // its body
		code    int    // of the list
		lists   int
		expired bool
	}{
		{name: "restored", list: `{"kind":"PartialObjectMetadataList","metadata":{"resourceVersion":"4999"},"items":[]}`, lists: 1, expired: true},
		{name: "the same version", list: `{"metadata":{"resourceVersion":"5000"}}`, lists: 1},
		{name: "a later version", list: `{"metadata":{"resourceVersion":"10000"}}`, lists: 1},
		{name: "no version", list: `{"metadata":{}}`, lists: 1},
		{name: "no JSON", list: "k8s", lists: 1},
		{name: "forbidden", list: `{"metadata":{"resourceVersion":"4999"}}`, code: 403, lists: 1},
		{name: "too large", list: strings.Repeat(" ", 5<<20) + `{"metadata":{"resourceVersion":"4999"}}`, lists: 1},
		{name: "no outage", refused: func() (*http.Response, error) { return nil, nil }},
		{name: "overloaded", refused: func() (*http.Response, error) {
			return &http.Response{StatusCode: 429, Header: http.Header{}, Body: http.NoBody}, nil
		}},
		{name: "a watch that begins with a list", path: initial + "&resourceVersion=5000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sent, closed, lists := 0, false, 0
				rt := watchdog.New(silence)(server(func(req *http.Request) (*http.Response, error) {
					if req.URL.Query().Get("watch") == "" {
						lists++
						if got, want := req.URL.String(), "/api/v1/namespaces/shop/pods?fieldSelector=metadata.name%3Da&limit=1"; got != want {
							t.Errorf("the list is %s, want %s", got, want)
						}
						return &http.Response{StatusCode: max(tt.code, 200), Body: io.NopCloser(strings.NewReader(tt.list))}, nil
					}
					if sent++; sent == 1 {
						if tt.refused == nil {
							return nil, dial
						}
						if resp, err := tt.refused(); resp != nil || err != nil {
							return resp, err
						}
					}
					return &http.Response{StatusCode: http.StatusOK, Body: &stream{ctx: req.Context(), closed: &closed}}, nil
				}))
				req := request(alive.New(alive.Metrics{}).Context(t.Context()), path)
				if tt.path != "" {
					req = request(req.Context(), tt.path)
				}
				resp, err := rt.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				if expired := resp.StatusCode == http.StatusGone; expired != tt.expired || closed != tt.expired || lists != tt.lists {
					t.Errorf("status %d after %d lists, the watch is closed: %t; want expired: %t, %d lists", resp.StatusCode, lists, closed, tt.expired, tt.lists)
				}
				_ = resp.Body.Close()
			})
		})
	}
}

// TestRelistWithoutResponse: a Relist also ends a watch that has no response yet, with the
// error of a silence.
func TestRelistWithoutResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		informer := alive.New(alive.Metrics{})
		time.AfterFunc(time.Second, informer.Relist)
		_, err := watchdog.New(silence)(server(func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			return nil, req.Context().Err()
		})).RoundTrip(request(informer.Context(t.Context()), watch))
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("error %v, want a timeout", err)
		}
	})
}

// TestObserved: the informer sees the begin and the end of each request, and its data.
func TestObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []string
		informer := alive.New(alive.Metrics{
			Ended: func(watch bool, d time.Duration) {
				seen = append(seen, fmt.Sprintf("ended watch=%t after %v", watch, d))
			},
		})
		ctx := informer.Context(t.Context())
		resp, err := watchdog.New(silence)(streaming(time.Second)).RoundTrip(request(ctx, watch))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = readAll(resp.Body, 0)
		_ = resp.Body.Close()
		last := informer.LastReceived()
		if ago := time.Since(last); ago != silence {
			t.Errorf("the last data is %v old, want %v", ago, silence)
		}
		rejecting := server(func(*http.Request) (*http.Response, error) {
			time.Sleep(2 * time.Second)
			return &http.Response{StatusCode: http.StatusForbidden, Body: io.NopCloser(strings.NewReader("no"))}, nil
		})
		if resp, err = watchdog.New(silence)(rejecting).RoundTrip(request(ctx, pods)); err != nil {
			t.Fatal(err)
		}
		if body, _ := io.ReadAll(resp.Body); string(body) != "no" {
			t.Errorf("the body of the error is %q", body)
		}
		_ = resp.Body.Close()
		if !informer.LastReceived().Equal(last) {
			t.Error("the body of an error is data")
		}
		if want := []string{"ended watch=true after 1m1s", "ended watch=false after 2s"}; !slices.Equal(seen, want) {
			t.Errorf("the informer sees %q, want %q", seen, want)
		}
	})
}

// TestUnwrap: client-go finds the inner transport.
func TestUnwrap(t *testing.T) {
	rt, ok := watchdog.New(silence)(http.DefaultTransport).(interface{ WrappedRoundTripper() http.RoundTripper })
	if !ok || rt.WrappedRoundTripper() != http.DefaultTransport {
		t.Error("WrappedRoundTripper does not return the inner transport")
	}
}
