package dns

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"
)

// Server is the service, in memory. The zero Server is ready to use. It serves these
// requests:
//
//	GET    /records          the records, as JSON
//	PUT    /records/{owner}  with the host as the body
//	DELETE /records/{owner}  404 if there is none
type Server struct {
	mu      sync.Mutex // guards the fields below
	records map[string]string
	status  int
	delay   time.Duration
}

// Records returns a copy of the records: hosts by owner.
func (s *Server) Records() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.records)
}

// Fail makes the server respond to writes with a status, such as 503, without effect. 0
// ends that.
func (s *Server) Fail(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

// Slow delays the responses to writes, until the client ends the request.
func (s *Server) Slow(delay time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay = delay
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /records", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.Records()) // an error means that the client is gone
	})
	mux.HandleFunc("PUT /records/{owner}", func(w http.ResponseWriter, r *http.Request) {
		host, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 253))
		if err != nil || len(host) == 0 {
			http.Error(w, "the body must be a host of at most 253 bytes", http.StatusBadRequest)
			return
		}
		s.write(w, r, func() int {
			if s.records == nil {
				s.records = map[string]string{}
			}
			s.records[r.PathValue("owner")] = string(host)
			return http.StatusNoContent
		})
	})
	mux.HandleFunc("DELETE /records/{owner}", func(w http.ResponseWriter, r *http.Request) {
		s.write(w, r, func() int {
			if _, ok := s.records[r.PathValue("owner")]; !ok {
				return http.StatusNotFound
			}
			delete(s.records, r.PathValue("owner"))
			return http.StatusNoContent
		})
	})
	mux.ServeHTTP(w, r)
}

// write calls do with the lock, after the delay, and responds with its status.
func (s *Server) write(w http.ResponseWriter, r *http.Request, do func() int) {
	s.mu.Lock()
	delay, status := s.delay, s.status
	s.mu.Unlock()
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Context().Done():
		return
	}
	if status == 0 {
		s.mu.Lock()
		status = do()
		s.mu.Unlock()
	}
	w.WriteHeader(status)
}
