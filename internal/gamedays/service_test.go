package gamedays

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/examples/website/dns"
)

// A service is the DNS service, with a log of its own, and with the faults of such services.
type service struct {
	dns.Server
	url  string
	http *httptest.Server

	mu      sync.Mutex
	calls   []call
	running map[string]int // calls of an owner
	before  func(*http.Request) *answer
	faults  []string
}

// A call is a request that the service has answered or dropped.
type call struct {
	begin, end    time.Time
	method, owner string
	status        int // 0: no answer
}

// An answer takes the place of the service's.
type answer struct {
	status int           // 0: the service's own
	delay  time.Duration // before it
	lost   bool          // the service acts, and the connection breaks
	twice  bool          // the service acts twice, as behind a proxy that repeats
}

func newService(t testing.TB) *service {
	t.Helper()
	s := &service{running: map[string]int{}}
	s.http = httptest.NewServer(s)
	s.url = s.http.URL
	t.Cleanup(func() {
		s.http.CloseClientConnections()
		s.http.Close()
	})
	return s
}

// ServeHTTP implements http.Handler.
func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	owner, found := strings.CutPrefix(r.URL.Path, "/records/")
	if !found {
		s.Server.ServeHTTP(w, r)
		return
	}
	// A server notices that its client has gone once it has read the body.
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	c := call{begin: time.Now(), method: r.Method, owner: owner}
	s.mu.Lock()
	before := s.before
	if s.running[owner]++; s.running[owner] > 1 {
		s.faults = append(s.faults, fmt.Sprintf("two calls for %s at once, at %s", owner, c.begin.Format(time.TimeOnly)))
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.running[owner]--
		c.end = time.Now()
		s.calls = append(s.calls, c)
	}()
	var a answer
	if before != nil {
		if given := before(r); given != nil {
			a = *given
		}
	}
	if a.delay > 0 {
		select {
		case <-time.After(a.delay):
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
	if a.status != 0 {
		c.status = a.status
		w.WriteHeader(a.status)
		return
	}
	rec := httptest.NewRecorder()
	s.Server.ServeHTTP(rec, r)
	if a.twice {
		r.Body = io.NopCloser(bytes.NewReader(body))
		s.Server.ServeHTTP(httptest.NewRecorder(), r)
	}
	if a.lost {
		panic(http.ErrAbortHandler)
	}
	c.status = rec.Code
	w.WriteHeader(rec.Code)
}

// answerBy makes before see each call first. nil ends that.
func (s *service) answerBy(before func(*http.Request) *answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = before
}

// since returns the calls that began since a time.
func (s *service) since(begin time.Time) (all []call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if !c.begin.Before(begin) {
			all = append(all, c)
		}
	}
	return all
}

// wrong returns what the log of the service shows that must never be: two calls for an object at once, or a
// record that is made after the last one was deleted.
func (s *service) wrong() (faults []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	faults = append(faults, s.faults...)
	deleted := map[string]bool{}
	for _, c := range s.calls {
		switch {
		case c.method == http.MethodDelete && c.status == http.StatusNoContent:
			deleted[c.owner] = true
		case c.method == http.MethodPut && deleted[c.owner] && c.status < 300:
			faults = append(faults, fmt.Sprintf("the record of %s was made again after its deletion", c.owner))
		}
	}
	return faults
}
