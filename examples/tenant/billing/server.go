package billing

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Account is an open account.
type Account struct {
	// ID is the account's name. The service chooses it.
	ID string `json:"id"`
	// Key is the idempotency key that the account was opened with.
	Key string `json:"key"`
	// Tenant and Plan are the values of the request that opened the account.
	Tenant string `json:"tenant"`
	Plan   string `json:"plan"`
}

// Counts holds the number of requests since the start of the server, including
// failed ones.
type Counts struct {
	Open  int `json:"open"`
	Close int `json:"close"`
	List  int `json:"list"`
	// Refused is the number of requests among Open and Close that got an error or
	// no response.
	Refused int `json:"refused"`
}

// Mode is the behaviour for requests that open or close accounts. Other requests
// always get an immediate response.
type Mode string

const (
	// OK executes the request at once.
	OK Mode = "ok"
	// Fail returns 503 without executing the request.
	Fail Mode = "fail"
	// Hang waits until the mode changes and then applies the new mode. If the
	// client disconnects first, the request is not executed.
	Hang Mode = "hang"
	// Slow executes the request after a delay, even if the client disconnects
	// first. It simulates a request that arrives late.
	Slow Mode = "slow"
)

// maxDelay bounds the delay of Slow, because the shutdown of a server waits for it.
const maxDelay = time.Minute

// Server is the billing service. The zero value is ready to use, with no accounts
// and mode OK. It is safe for concurrent use.
type Server struct {
	mu       sync.Mutex // guards the fields below
	accounts map[string]Account
	closed   map[string]bool
	counts   Counts
	mode     Mode // "" means OK
	delay    time.Duration
	changed  chan struct{} // closed when mode changes; nil if no request waits
}

// SetMode sets the mode. Only Slow uses delay.
func (s *Server) SetMode(mode Mode, delay time.Duration) error {
	switch mode {
	case OK, Fail, Hang, Slow:
	default:
		return fmt.Errorf("billing: unknown mode %q: use ok, fail, hang or slow", mode)
	}
	if delay < 0 || delay > maxDelay {
		return fmt.Errorf("billing: delay %v: use 0 to %v", delay, maxDelay)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode, s.delay = mode, delay
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
	return nil
}

// Accounts returns the open accounts, ordered by tenant and key.
func (s *Server) Accounts() []Account {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Account, 0, len(s.accounts))
	for _, a := range s.accounts {
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b Account) int {
		return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Key, b.Key))
	})
	return list
}

// Counts returns the number of requests of each kind.
func (s *Server) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + r.URL.Path {
	case "POST /accounts":
		s.count(func(c *Counts) { c.Open++ })
		s.treat(w, r, s.open)
	case "DELETE /accounts":
		s.count(func(c *Counts) { c.Close++ })
		s.treat(w, r, s.close)
	case "GET /accounts":
		s.count(func(c *Counts) { c.List++ })
		respond(w, http.StatusOK, s.Accounts())
	case "GET /counts":
		respond(w, http.StatusOK, s.Counts())
	case "PUT /mode":
		s.putMode(w, r)
	default:
		respondError(w, http.StatusNotFound, "unknown path: use POST, GET or DELETE /accounts, GET /counts or PUT /mode")
	}
}

func (s *Server) count(add func(*Counts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	add(&s.counts)
}

// treat handles a request as the mode requires. If the mode lets the request
// through, treat calls act, which reports whether it succeeded.
func (s *Server) treat(w http.ResponseWriter, r *http.Request, act func(http.ResponseWriter, *http.Request) bool) {
	for {
		s.mu.Lock()
		mode, delay := s.mode, s.delay
		if mode == Hang && s.changed == nil {
			s.changed = make(chan struct{})
		}
		changed := s.changed
		s.mu.Unlock()

		switch mode {
		case Hang:
			select {
			case <-changed:
				continue
			case <-r.Context().Done():
				s.count(func(c *Counts) { c.Refused++ })
				return
			}
		case Fail:
			s.count(func(c *Counts) { c.Refused++ })
			respondError(w, http.StatusServiceUnavailable, "out of service")
			return
		case Slow:
			// Not interrupted by the client: see Slow.
			time.Sleep(delay)
		}
		if !act(w, r) {
			s.count(func(c *Counts) { c.Refused++ })
		}
		return
	}
}

func (s *Server) open(w http.ResponseWriter, r *http.Request) bool {
	key := r.Header.Get("Idempotency-Key")
	if key == "" {
		respondError(w, http.StatusBadRequest, "the header Idempotency-Key is missing")
		return false
	}
	var asked struct{ Tenant, Plan string }
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&asked); err != nil {
		respondError(w, http.StatusBadRequest, `the body is not valid: write {"tenant":"...","plan":"..."}: `+err.Error())
		return false
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed[key] {
		respondError(w, http.StatusGone, "the account with this key is permanently closed")
		return false
	}
	if a, ok := s.accounts[key]; ok {
		if a.Tenant != asked.Tenant || a.Plan != asked.Plan {
			respondError(w, http.StatusConflict, fmt.Sprintf("the key belongs to account %s of tenant %q with plan %q", a.ID, a.Tenant, a.Plan))
			return false
		}
		respond(w, http.StatusOK, a)
		return true
	}
	a := Account{
		ID:     "acct-" + strings.ToLower(rand.Text()[:12]),
		Key:    key,
		Tenant: asked.Tenant,
		Plan:   asked.Plan,
	}
	if s.accounts == nil {
		s.accounts = map[string]Account{}
	}
	s.accounts[key] = a
	respond(w, http.StatusCreated, a)
	return true
}

func (s *Server) close(w http.ResponseWriter, r *http.Request) bool {
	key := r.URL.Query().Get("key")
	if key == "" {
		respondError(w, http.StatusBadRequest, "the query parameter key is missing")
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.accounts, key)
	if s.closed == nil {
		s.closed = map[string]bool{}
	}
	s.closed[key] = true
	w.WriteHeader(http.StatusNoContent)
	return true
}

func (s *Server) putMode(w http.ResponseWriter, r *http.Request) {
	asked := struct{ Mode, Delay string }{r.URL.Query().Get("mode"), r.URL.Query().Get("delay")}
	if asked.Mode == "" {
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&asked); err != nil {
			respondError(w, http.StatusBadRequest, `the mode is missing: write ?mode=fail or {"mode":"fail"}: `+err.Error())
			return
		}
	}
	delay, err := time.ParseDuration(cmp.Or(asked.Delay, "0s"))
	if err == nil {
		err = s.SetMode(Mode(asked.Mode), delay)
	}
	if err != nil {
		respondError(w, http.StatusBadRequest, err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func respond(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// An error here means that the client has disconnected.
	_ = json.NewEncoder(w).Encode(body)
}

// respondError writes an error in the form that the client reads.
func respondError(w http.ResponseWriter, status int, message string) {
	respond(w, status, map[string]string{"error": message})
}
