package served_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/alive"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/operator/internal/served"
)

// answers is a transport that responds to its first request with a status, which 0 makes an error, and then with
// 200. It counts the open bodies.
type answers struct {
	first, sent, open int
}

type body struct {
	io.Reader
	of *answers
}

func (b body) Close() error { b.of.open--; return nil }

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	a.sent++
	status := http.StatusOK
	if a.sent == 1 {
		status = a.first
	}
	if status == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	a.open++
	return &http.Response{StatusCode: status, Body: body{strings.NewReader("{}"), a}, Request: r}, nil
}

// TestTransport: a request of an informer that fails before the kinds are found waits, and is sent again. All
// other requests pass.
func TestTransport(t *testing.T) {
	const found, never = 10 * time.Second, time.Minute
	for _, tc := range []struct {
		name    string
		method  string // "" means GET
		status  int    // of the first response
		other   bool   // the request is not an informer's
		missing bool   // the kinds are never found
		took    time.Duration
		sent    int
	}{
		{name: "served", status: 200, sent: 1},
		{name: "not served", status: 404, took: found, sent: 2},
		{name: "no server", status: 0, took: found, sent: 2},
		{name: "never served", status: 404, missing: true, took: never, sent: 1},
		{name: "not an informer", status: 404, other: true, sent: 1},
		{name: "a write", method: http.MethodPatch, status: 404, sent: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(testlog.New().Context(t.Context()), never)
				defer cancel()
				server := &discovery{begin: time.Now(), from: map[string]time.Duration{"/api/v1": found}}
				needed := []served.Resource{{GroupResource: corev1.Resource("pods")}}
				if tc.missing {
					needed[0].GroupResource = corev1.Resource("absent")
				}
				d := served.NewDiscovery()
				ran := make(chan error, 1)
				go func() {
					ran <- d.Run(ctx, &rest.Config{Host: "http://server", Transport: server, QPS: -1}, 2*found, needed, []served.Phases{{}})
				}()
				api := &answers{first: tc.status}
				requested := ctx
				if !tc.other {
					requested = alive.New(alive.Metrics{}).Context(ctx)
				}
				req, err := http.NewRequestWithContext(requested, tc.method, "http://server/api/v1/pods", http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				transport := d.Transport(api)
				begin := time.Now()
				resp, err := transport.RoundTrip(req)
				if took := time.Since(begin); took != tc.took {
					t.Errorf("took %v, want %v", took, tc.took)
				}
				if tc.missing != (err != nil) {
					t.Errorf("RoundTrip() = %v", err)
				}
				if err == nil {
					_ = resp.Body.Close()
				}
				if api.sent != tc.sent || api.open != 0 {
					t.Errorf("%d requests and %d open bodies, want %d and 0", api.sent, api.open, tc.sent)
				}
				if err := <-ran; tc.missing != (err != nil) {
					t.Errorf("Run() = %v", err)
				}
				if kinds := d.Kinds(); tc.missing != (kinds == nil) {
					t.Errorf("Kinds() = %v", kinds)
				}
				if tc.missing {
					return
				}
				<-d.Done()
				*api = answers{first: 404} // an informer sees it, because its resource was served
				if resp, err = transport.RoundTrip(req); err != nil || resp.StatusCode != 404 || api.sent != 1 {
					t.Errorf("RoundTrip() = %v, %v after %d requests, want 404 of one", resp, err, api.sent)
				}
				if err == nil {
					_ = resp.Body.Close()
				}
			})
		})
	}
}
