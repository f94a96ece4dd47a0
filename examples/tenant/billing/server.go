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
	// ID is chosen by the service.
	ID string `json:"id"`
	// Key is the idempotency key that the account was opened with.
	Key string `json:"key"`
	// Tenant and Plan are what the client said when it opened the account.
	Tenant string `json:"tenant"`
	Plan   string `json:"plan"`
}

// Counts says how many requests have come in since the server started,
// whatever became of them.
type Counts struct {
	Open  int `json:"open"`
	Close int `json:"close"`
	List  int `json:"list"`
	// Refused are those among Open and Close that were answered with an
	// error or not at all.
	Refused int `json:"refused"`
}

// Mode is how the server treats the requests that open and close accounts.
// All others are always answered at once.
type Mode string

const (
	// OK answers at once.
	OK Mode = "ok"
	// Fail answers 503 and does nothing.
	Fail Mode = "fail"
	// Hang does nothing and does not answer until the mode changes, and then
	// acts by the new one, unless the client has gone away meanwhile.
	Hang Mode = "hang"
	// Slow waits for a delay and then acts, even when the client has gone
	// away meanwhile: a request that arrives late.
	Slow Mode = "slow"
)

// maxDelay bounds Slow, because a server that shuts down waits for it.
const maxDelay = time.Minute

// Server is the billing service. Its zero value is ready to use, holds no
// account and has mode OK. It is safe for concurrent use.
type Server struct {
	mu       sync.Mutex // guards what follows
	accounts map[string]Account
	closed   map[string]bool
	counts   Counts
	mode     Mode // "" means OK
	delay    time.Duration
	changed  chan struct{} // closed when mode changes; nil means nobody waits
}

// SetMode changes how the server treats requests. delay is for Slow alone.
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

// Counts returns how often the server was asked.
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
		answer(w, http.StatusOK, s.Accounts())
	case "GET /counts":
		answer(w, http.StatusOK, s.Counts())
	case "PUT /mode":
		s.putMode(w, r)
	default:
		refuse(w, http.StatusNotFound, "there is "+
			"POST, GET and DELETE /accounts, GET /counts and PUT /mode")
	}
}

func (s *Server) count(add func(*Counts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	add(&s.counts)
}

// treat does to a request what the mode says, and at last act, which reports
// whether it did what it was asked.
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
			refuse(w, http.StatusServiceUnavailable, "out of service")
			return
		case Slow:
			// Deliberately deaf to the client's departure.
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
		refuse(w, http.StatusBadRequest, "the header Idempotency-Key is missing")
		return false
	}
	var asked struct{ Tenant, Plan string }
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&asked); err != nil {
		refuse(w, http.StatusBadRequest, `the body is not {"tenant":"...","plan":"..."}: `+err.Error())
		return false
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed[key] {
		refuse(w, http.StatusGone, "the account with this key was closed for good")
		return false
	}
	if a, ok := s.accounts[key]; ok {
		if a.Tenant != asked.Tenant || a.Plan != asked.Plan {
			refuse(w, http.StatusConflict, fmt.Sprintf("the key belongs to account %s of tenant %q with plan %q", a.ID, a.Tenant, a.Plan))
			return false
		}
		answer(w, http.StatusOK, a)
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
	answer(w, http.StatusCreated, a)
	return true
}

func (s *Server) close(w http.ResponseWriter, r *http.Request) bool {
	key := r.URL.Query().Get("key")
	if key == "" {
		refuse(w, http.StatusBadRequest, "the query parameter key is missing")
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
			refuse(w, http.StatusBadRequest, `say ?mode=fail or {"mode":"fail"}: `+err.Error())
			return
		}
	}
	delay, err := time.ParseDuration(cmp.Or(asked.Delay, "0s"))
	if err == nil {
		err = s.SetMode(Mode(asked.Mode), delay)
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// An error here is a client that has gone away.
	_ = json.NewEncoder(w).Encode(body)
}

// refuse writes an error the way the client reads it.
func refuse(w http.ResponseWriter, status int, message string) {
	answer(w, status, map[string]string{"error": message})
}
