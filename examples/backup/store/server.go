package store

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
)

// Server is the service, in memory. The zero Server is ready to use. It serves these requests:
//
//	POST   /snapshots               creates the snapshot in the body, and returns it with its id
//	GET    /snapshots?owner=OWNER   the snapshots of an owner, or of all without it
//	DELETE /snapshots/{id}          404 if there is none
type Server struct {
	mu        sync.Mutex // guards the fields below
	snapshots map[string]Snapshot
	made      int
	status    int
}

// Snapshots returns the snapshots of an owner, or of all if owner is empty, in the order of their
// times.
func (s *Server) Snapshots(owner string) []Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Collect(maps.Values(s.snapshots))
	all = slices.DeleteFunc(all, func(snapshot Snapshot) bool { return owner != "" && snapshot.Owner != owner })
	slices.SortFunc(all, func(a, b Snapshot) int { return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.ID, b.ID)) })
	return all
}

// Fail makes the server respond to all requests with a status, such as 503, without effect. 0 ends
// that.
func (s *Server) Fail(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	status := s.status
	s.mu.Unlock()
	if status != 0 {
		w.WriteHeader(status)
		return
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /snapshots", s.create)
	mux.HandleFunc("GET /snapshots", func(w http.ResponseWriter, r *http.Request) {
		respond(w, http.StatusOK, s.Snapshots(r.URL.Query().Get("owner")))
	})
	mux.HandleFunc("DELETE /snapshots/{id}", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if _, ok := s.snapshots[r.PathValue("id")]; !ok {
			http.Error(w, "no such snapshot", http.StatusNotFound)
			return
		}
		delete(s.snapshots, r.PathValue("id"))
		w.WriteHeader(http.StatusNoContent)
	})
	mux.ServeHTTP(w, r)
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var snapshot Snapshot
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&snapshot)
	if err != nil || snapshot.Owner == "" || snapshot.Token == "" {
		http.Error(w, "the body must be a snapshot with an owner and a token", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	if s.snapshots == nil {
		s.snapshots = map[string]Snapshot{}
	}
	s.made++
	snapshot.ID = fmt.Sprintf("snap-%d", s.made)
	s.snapshots[snapshot.ID] = snapshot
	s.mu.Unlock()
	respond(w, http.StatusCreated, snapshot)
}

func respond(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // an error means that the client is gone
}
