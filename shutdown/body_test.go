package shutdown_test

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A request has 30 seconds to arrive, whether the handler reads its body or not.
func TestBodyThatDoesNotArrive(t *testing.T) {
	for _, reads := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			var handled error
			p, _ := inMemory(t, false, func(_ http.ResponseWriter, r *http.Request) {
				if reads {
					_, handled = io.ReadAll(r.Body)
				}
			})
			conn := p.Dial(t)
			defer conn.Close()
			if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab"); err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, conn) // until the server closes it
			if took := time.Since(start); took < 30*time.Second || took > 31*time.Second {
				t.Errorf("the connection was closed after %v, want 30s", took)
			}
			if reads && !errors.Is(handled, os.ErrDeadlineExceeded) {
				t.Errorf("the handler read %v, want a timeout", handled)
			}
		})
	}
	t.Run("HTTP/2", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var handled error
			_, client := inMemory(t, true, func(_ http.ResponseWriter, r *http.Request) {
				start := time.Now()
				_, handled = io.ReadAll(r.Body)
				if took := time.Since(start); took != 30*time.Second {
					t.Errorf("the handler read for %v, want 30s", took)
				}
			})
			body, writer := io.Pipe()
			time.AfterFunc(time.Minute, func() { writer.Close() })
			resp, err := client.Post("http://server.invalid", "text/plain", body)
			if err == nil {
				resp.Body.Close()
			}
			if !errors.Is(handled, os.ErrDeadlineExceeded) {
				t.Errorf("the handler read %v, want a timeout", handled)
			}
			time.Sleep(time.Minute)
		})
	})
}

// A handler may take its time, with or without a request body, and the connection can
// be used again.
func TestBodiesDoNotEndHandlers(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		for _, body := range []string{"", "a body"} {
			synctest.Test(t, func(t *testing.T) {
				_, client := inMemory(t, h2, func(w http.ResponseWriter, r *http.Request) {
					got, err := io.ReadAll(r.Body)
					if err != nil || string(got) != body {
						t.Errorf("body = %q, %v; want %q", got, err, body)
					}
					control := http.NewResponseController(w)
					for range 6 {
						select {
						case <-time.After(10 * time.Minute):
						case <-r.Context().Done():
							t.Error("the request was ended")
						}
						_, _ = io.WriteString(w, "line\n")
						_ = control.Flush()
					}
				})
				for range 2 {
					resp, err := client.Post("http://server.invalid", "text/plain", strings.NewReader(body))
					if err != nil {
						t.Fatal(err)
					}
					lines := 0
					for s := bufio.NewScanner(resp.Body); s.Scan(); {
						lines++
					}
					resp.Body.Close()
					if lines != 6 {
						t.Errorf("%d lines, want 6", lines)
					}
				}
			})
		}
	}
}

// A connection has ten seconds for the headers, and two minutes for the next request.
func TestIdleConnections(t *testing.T) {
	for _, tc := range []struct {
		name, sent string
		want       time.Duration
	}{
		{"part of the headers", "GET / HTTP/1.1\r\nHost:", 10 * time.Second},
		{"a request", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 2 * time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, _ := inMemory(t, false, func(http.ResponseWriter, *http.Request) {})
				start := time.Now()
				conn := p.Dial(t)
				defer conn.Close()
				if _, err := io.WriteString(conn, tc.sent); err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, conn) // until the server closes it
				if took := time.Since(start); took < tc.want || took > tc.want+time.Second {
					t.Errorf("the connection was closed after %v, want %v", took, tc.want)
				}
			})
		})
	}
}
