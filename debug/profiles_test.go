package debug_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime/pprof"
	"strings"
	"testing"

	"github.com/controllerkit/controllerkit/debug"
)

// TestProfiles holds the answers of Profiles: profiles for go tool pprof and as text, bad
// parameters, and other requests than reads.
func TestProfiles(t *testing.T) {
	h := debug.Profiles()
	ask := func(method, url string) *http.Response {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, url, http.NoBody))
		return w.Result()
	}
	for _, tt := range []struct {
		method, url string
		status      int
		want        string // in the body
	}{
		{"GET", "/debug/pprof/", 200, "goroutine\n"},
		{"GET", "/debug/pprof/goroutine?debug=2", 200, "debug_test.TestProfiles"},
		{"GET", "/debug/pprof/heap?debug=1&gc=1", 200, "heap profile: "},
		{"HEAD", "/debug/pprof/profile", 200, ""},
		{"GET", "/debug/pprof/hip", 404, "use one of allocs, block, goroutine, heap, mutex, profile, threadcreate"},
		{"GET", "/debug/pprof/heap/x", 404, "use one of"},
		{"GET", "/debug/pprof/heap?debug=3", 400, "the parameter debug is not valid: use 0 to 2"},
		{"GET", "/debug/pprof/profile?seconds=51", 400, "the parameter seconds is not valid: use 1 to 50"},
		{"GET", "/debug/pprof/profile?seconds=1e9", 400, "the parameter seconds is not valid"},
		{"POST", "/debug/pprof/heap", 405, "use GET"},
	} {
		resp := ask(tt.method, tt.url)
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != tt.status || !strings.Contains(string(body), tt.want) {
			t.Errorf("%s %s: %v, %d, %.300q, want %d, %q", tt.method, tt.url, err, resp.StatusCode, body, tt.status, tt.want)
		}
		if resp.Header.Get("Cache-Control") != "no-store" || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s: header %v", tt.method, tt.url, resp.Header)
		}
	}
	for _, url := range []string{"/debug/pprof/heap", "/debug/pprof/profile?seconds=1"} {
		resp := ask("GET", url)
		zipped, err := gzip.NewReader(resp.Body)
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		if data, err := io.ReadAll(zipped); err != nil || len(data) < 100 || resp.Header.Get("Content-Type") != "application/octet-stream" {
			t.Errorf("%s: %v, %d bytes of %s", url, err, len(data), resp.Header.Get("Content-Type"))
		}
	}
	if req := httptest.NewRequest("GET", "/debug/pprof/heap", http.NoBody); true {
		if _, pattern := http.DefaultServeMux.Handler(req); pattern != "" {
			t.Errorf("http.DefaultServeMux serves %s to everybody", pattern)
		}
	}
}

// TestOneProfile: a second profile is refused while one is written, a client that goes ends
// the CPU profile, and one that another part of the process makes is an error.
func TestOneProfile(t *testing.T) {
	h := debug.Profiles()
	ctx, cancel := context.WithCancel(t.Context())
	answers, waits := make(chan int), make(chan struct{})
	w := httptest.NewRecorder()
	go func() {
		h.ServeHTTP(w, httptest.NewRequest("GET", "/debug/pprof/profile", http.NoBody).WithContext(asked{ctx, waits}))
		answers <- w.Code
	}()
	<-waits
	second := httptest.NewRecorder()
	h.ServeHTTP(second, httptest.NewRequest("GET", "/debug/pprof/heap", http.NoBody))
	if second.Code != http.StatusTooManyRequests {
		t.Errorf("the second profile: %d %s", second.Code, second.Body)
	}
	cancel()
	if code := <-answers; code != 200 {
		t.Errorf("the first profile: %d %s", code, w.Body)
	}

	var buf bytes.Buffer
	if err := pprof.StartCPUProfile(&buf); err != nil {
		t.Skip(err) // go test -cpuprofile
	}
	defer pprof.StopCPUProfile()
	third := httptest.NewRecorder()
	h.ServeHTTP(third, httptest.NewRequest("GET", "/debug/pprof/profile", http.NoBody))
	if third.Code != http.StatusServiceUnavailable || !strings.Contains(third.Body.String(), "the CPU profile cannot start") {
		t.Errorf("the third profile: %d %s", third.Code, third.Body)
	}
}

// asked is a context that closes waits once somebody waits for its end.
type asked struct {
	context.Context
	waits chan struct{}
}

func (a asked) Done() <-chan struct{} {
	close(a.waits)
	return a.Context.Done()
}
