package acme

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	maxBody   = 64 << 10
	maxNames  = 100    // of an order, as Let's Encrypt has it
	maxNonces = 10_000 // that were not used
	maxOrders = 100_000
)

type account struct {
	url, thumbprint string
	key             crypto.PublicKey
	contact         []string
	deactivated     bool
}

type order struct {
	id      int
	of      *account
	names   []string // sorted
	expires time.Time
	auths   []*authorization
	problem *problem
	cert    *x509.Certificate
}

// An authorization is of one order.
type authorization struct {
	name       string // without "*."
	wildcard   bool
	status     string
	challenges []*challenge
}

type challenge struct {
	Type   string   `json:"type"`
	URL    string   `json:"url"`
	Status string   `json:"status"`
	Token  string   `json:"token"`
	At     string   `json:"validated,omitempty"`
	Error  *problem `json:"error,omitempty"`
}

// The states of RFC 8555, section 7.1.6.
const (
	pending = "pending"
	ready   = "ready"
	valid   = "valid"
	invalid = "invalid"
)

// A problem is an error of RFC 8555, section 6.7.
type problem struct {
	Type   string `json:"type"`
	Detail string `json:"detail"`
	Status int    `json:"status"`
}

func (p *problem) Error() string { return p.Detail }

func problemf(status int, kind, format string, args ...any) *problem {
	return &problem{Type: "urn:ietf:params:acme:error:" + kind, Detail: fmt.Sprintf(format, args...), Status: status}
}

func malformed(format string, args ...any) *problem {
	return problemf(http.StatusBadRequest, "malformed", format, args...)
}

// A request is a message whose signature is right, and its response, which is sent without a lock.
type request struct {
	r          *http.Request
	by         *account // nil for a new account
	key        crypto.PublicKey
	thumbprint string
	payload    []byte

	header http.Header
	status int
	body   bytes.Buffer
}

// write sets the response.
func (req *request) write(status int, body any) {
	req.header.Set("Content-Type", "application/json")
	req.status = status
	_ = json.NewEncoder(&req.body).Encode(body) // of types that encode
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /directory", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{ // or the client has gone
			"newNonce": s.base + "/nonce", "newAccount": s.base + "/account", "newOrder": s.base + "/order",
			"meta": map[string]any{"externalAccountRequired": false},
		})
	})
	mux.HandleFunc("GET /nonce", func(w http.ResponseWriter, r *http.Request) { // HEAD too
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Replay-Nonce", s.newNonce())
		if r.Method == http.MethodGet {
			w.WriteHeader(http.StatusNoContent)
		}
	})
	for pattern, handle := range map[string]func(*request) error{
		"/account":                          s.newAccount,
		"/account/{account}":                s.updateAccount,
		"/order":                            s.newOrder,
		"/order/{order}":                    s.showOrder,
		"/order/{order}/finalize":           s.finalize,
		"/order/{order}/certificate":        s.certificate,
		"/order/{order}/{name}":             s.showAuthorization,
		"/order/{order}/{name}/{challenge}": s.answer,
	} {
		mux.HandleFunc("POST "+pattern, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Replay-Nonce", s.newNonce())
			w.Header().Set("Link", "<"+s.URL+`>;rel="index"`)
			req, err := s.authenticate(w, r, pattern == "/account")
			if err == nil {
				err = handle(req)
			}
			if err != nil {
				fail(w, err)
				return
			}
			w.WriteHeader(req.status)
			_, _ = req.body.WriteTo(w) // or the client has gone
		})
	}
	return mux
}

func fail(w http.ResponseWriter, err error) {
	var p *problem
	if !errors.As(err, &p) {
		p = problemf(http.StatusInternalServerError, "serverInternal", "%v", err)
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // or the client has gone
}

func (s *Server) newNonce() string {
	nonce := rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.oldest) == maxNonces {
		delete(s.nonces, s.oldest[0])
		s.oldest = s.oldest[1:]
	}
	s.nonces[nonce] = true
	s.oldest = append(s.oldest, nonce)
	return nonce
}

// authenticate reads a message and checks all that RFC 8555, section 6, asks for.
func (s *Server) authenticate(w http.ResponseWriter, r *http.Request, fresh bool) (*request, error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/jose+json" {
		return nil, problemf(http.StatusUnsupportedMediaType, "malformed", "the Content-Type is %.100q: send application/jose+json", r.Header.Get("Content-Type"))
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, malformed("the body cannot be read: %v", err)
	}
	var m message
	if err := json.Unmarshal(body, &m); err != nil {
		return nil, malformed("the body does not decode: %v", err)
	}
	protected, err := base64.RawURLEncoding.DecodeString(m.Protected)
	if err != nil {
		return nil, malformed(`"protected" is not base64url: %v`, err)
	}
	var h header
	if err := json.Unmarshal(protected, &h); err != nil {
		return nil, malformed(`"protected" does not decode: %v`, err)
	}
	payload, err := base64.RawURLEncoding.DecodeString(m.Payload)
	if err != nil {
		return nil, malformed(`"payload" is not base64url: %v`, err)
	}
	if want := s.base + r.URL.Path; h.URL != want {
		return nil, problemf(http.StatusUnauthorized, "unauthorized", `"url" is %.200q, and the request was sent to %q`, h.URL, want)
	}
	req := &request{r: r, payload: payload, header: w.Header()}
	switch {
	case (len(h.Key) > 0) == (h.Account != ""):
		return nil, malformed(`"protected" must have one of "jwk" and "kid"`)
	case fresh != (len(h.Key) > 0):
		return nil, malformed(`a new account sends its key as "jwk", and all others their account's URL as "kid"`)
	case fresh:
		if req.key, req.thumbprint, err = parseKey(h.Key); err != nil {
			return nil, problemf(http.StatusBadRequest, "badPublicKey", "%v", err)
		}
	default:
		if req.by = s.account(func(a *account) bool { return a.url == h.Account }); req.by == nil {
			return nil, problemf(http.StatusBadRequest, "accountDoesNotExist", "there is no account %.200q", h.Account)
		}
		req.key, req.thumbprint = req.by.key, req.by.thumbprint
	}
	if err := m.verify(h.Algorithm, req.key); err != nil {
		return nil, malformed("the message is not signed with the account's key: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.nonces[h.Nonce] {
		return nil, problemf(http.StatusBadRequest, "badNonce", "the nonce was used before, or is not of this server")
	}
	delete(s.nonces, h.Nonce)
	s.oldest = slices.DeleteFunc(s.oldest, func(n string) bool { return n == h.Nonce })
	if req.by != nil && req.by.deactivated {
		return nil, problemf(http.StatusUnauthorized, "unauthorized", "the account is deactivated")
	}
	return req, nil
}

func (s *Server) account(is func(*account) bool) *account {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := slices.IndexFunc(s.accounts, is); n >= 0 {
		return s.accounts[n]
	}
	return nil
}

// newAccount is RFC 8555, section 7.3.
func (s *Server) newAccount(req *request) error {
	var want struct {
		Contact            []string `json:"contact"`
		OnlyReturnExisting bool     `json:"onlyReturnExisting"`
	}
	if err := json.Unmarshal(req.payload, &want); err != nil {
		return malformed("the payload does not decode: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	status := http.StatusOK
	n := slices.IndexFunc(s.accounts, func(a *account) bool { return a.thumbprint == req.thumbprint })
	if n < 0 {
		if want.OnlyReturnExisting {
			return problemf(http.StatusBadRequest, "accountDoesNotExist", "there is no account of this key")
		}
		n, status = len(s.accounts), http.StatusCreated
		s.accounts = append(s.accounts, &account{url: s.base + "/account/" + strconv.Itoa(n+1), thumbprint: req.thumbprint, key: req.key, contact: want.Contact})
	}
	if s.accounts[n].deactivated {
		return problemf(http.StatusUnauthorized, "unauthorized", "the account is deactivated")
	}
	s.accounts[n].show(req, status)
	return nil
}

// updateAccount is RFC 8555, sections 7.3.2 and 7.3.6.
func (s *Server) updateAccount(req *request) error {
	var want struct {
		Contact []string `json:"contact"`
		Status  string   `json:"status"`
	}
	if err := json.Unmarshal(req.payload, &want); err != nil && len(req.payload) > 0 {
		return malformed("the payload does not decode: %v", err)
	}
	if req.by.url != s.base+req.r.URL.Path {
		return problemf(http.StatusUnauthorized, "unauthorized", "the account is that of another key")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if want.Contact != nil {
		req.by.contact = want.Contact
	}
	req.by.deactivated = want.Status == "deactivated"
	req.by.show(req, http.StatusOK)
	return nil
}

func (a *account) show(req *request, status int) {
	state := valid
	if a.deactivated {
		state = "deactivated"
	}
	req.header.Set("Location", a.url)
	req.write(status, map[string]any{"status": state, "contact": a.contact})
}

type identifier struct {
	Type  string `json:"type"`
	Value string `json:"value"`
}

// newOrder is RFC 8555, section 7.4.
func (s *Server) newOrder(req *request) error {
	var want struct {
		Identifiers []identifier `json:"identifiers"`
	}
	if err := json.Unmarshal(req.payload, &want); err != nil {
		return malformed("the payload does not decode: %v", err)
	}
	if n := len(want.Identifiers); n == 0 || n > maxNames {
		return malformed("the order has %d names: give it 1 to %d", n, maxNames)
	}
	o := &order{of: req.by, expires: time.Now().Add(7 * 24 * time.Hour).Truncate(time.Second)}
	for _, id := range want.Identifiers {
		name := strings.ToLower(id.Value)
		bare, wildcard := strings.CutPrefix(name, "*.")
		if id.Type != "dns" {
			return problemf(http.StatusBadRequest, "unsupportedIdentifier", "an identifier has the type %.100q: only dns is known", id.Type)
		}
		if wrong := validation.IsDNS1123Subdomain(bare); len(wrong) > 0 {
			return problemf(http.StatusBadRequest, "rejectedIdentifier", "the name %.300q is wrong: %s", id.Value, wrong[0])
		}
		if slices.Contains(o.names, name) {
			continue
		}
		o.names = append(o.names, name)
		a := &authorization{name: bare, wildcard: wildcard, status: pending}
		if s.Trusted {
			a.status = valid
		}
		o.auths = append(o.auths, a)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.orders) == maxOrders {
		return problemf(http.StatusTooManyRequests, "rateLimited", "the server has %d orders", maxOrders)
	}
	s.orders = append(s.orders, o)
	o.id = len(s.orders)
	for n, a := range o.auths {
		for _, kind := range []string{"http-01", "dns-01"} {
			if a.wildcard && kind == "http-01" {
				continue
			}
			a.challenges = append(a.challenges, &challenge{Type: kind, Token: rand.Text(), Status: a.status, URL: s.authorizationURL(o, n) + "/" + kind})
		}
	}
	slices.Sort(o.names)
	req.header.Set("Location", s.orderURL(o))
	s.writeOrderLocked(req, http.StatusCreated, o)
	return nil
}

func (s *Server) orderURL(o *order) string { return s.base + "/order/" + strconv.Itoa(o.id) }

func (s *Server) authorizationURL(o *order, n int) string {
	return s.orderURL(o) + "/" + strconv.Itoa(n+1)
}

// orderOf returns the order of a request, which must be the account's.
func (s *Server) orderOf(req *request) (*order, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, err := strconv.Atoi(req.r.PathValue("order"))
	if err != nil || id < 1 || id > len(s.orders) {
		return nil, problemf(http.StatusNotFound, "malformed", "there is no order %.100q", req.r.PathValue("order"))
	}
	if o := s.orders[id-1]; o.of == req.by {
		return o, nil
	}
	return nil, problemf(http.StatusUnauthorized, "unauthorized", "the order is that of another account")
}

func (s *Server) authorizationOf(req *request) (*order, int, error) {
	o, err := s.orderOf(req)
	if err != nil {
		return nil, 0, err
	}
	n, err := strconv.Atoi(req.r.PathValue("name"))
	if err != nil || n < 1 || n > len(o.auths) {
		return nil, 0, problemf(http.StatusNotFound, "malformed", "the order has no authorization %.100q", req.r.PathValue("name"))
	}
	return o, n - 1, nil
}

func (o *order) statusLocked() string {
	is := func(status string) func(*authorization) bool {
		return func(a *authorization) bool { return a.status == status }
	}
	switch {
	case o.cert != nil:
		return valid
	case o.problem != nil:
		return invalid
	case slices.ContainsFunc(o.auths, is(pending)):
		return pending
	}
	return ready
}

func (s *Server) writeOrderLocked(req *request, status int, o *order) {
	body := map[string]any{"status": o.statusLocked(), "expires": o.expires.Format(time.RFC3339), "finalize": s.orderURL(o) + "/finalize"}
	var names []identifier
	var auths []string
	for _, name := range o.names {
		names = append(names, identifier{"dns", name})
	}
	for n := range o.auths {
		auths = append(auths, s.authorizationURL(o, n))
	}
	body["identifiers"], body["authorizations"] = names, auths
	if o.problem != nil {
		body["error"] = o.problem
	}
	if o.cert != nil {
		body["certificate"] = s.orderURL(o) + "/certificate"
	}
	req.write(status, body)
}

func (s *Server) showOrder(req *request) error {
	o, err := s.orderOf(req)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeOrderLocked(req, http.StatusOK, o)
	return nil
}

func (s *Server) showAuthorization(req *request) error {
	o, n, err := s.authorizationOf(req)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a := o.auths[n]
	body := map[string]any{"identifier": identifier{"dns", a.name}, "status": a.status, "expires": o.expires.Format(time.RFC3339), "challenges": a.challenges}
	if a.wildcard {
		body["wildcard"] = true
	}
	req.write(http.StatusOK, body)
	return nil
}

// answer is RFC 8555, section 7.5.1. Without a payload it shows the challenge.
func (s *Server) answer(req *request) error {
	o, n, err := s.authorizationOf(req)
	if err != nil {
		return err
	}
	a := o.auths[n]
	k := slices.IndexFunc(a.challenges, func(c *challenge) bool { return c.Type == req.r.PathValue("challenge") })
	if k < 0 {
		return problemf(http.StatusNotFound, "malformed", "the authorization has no challenge %.100q", req.r.PathValue("challenge"))
	}
	c := a.challenges[k]
	s.mu.Lock()
	asked := c.Status == pending && a.status == pending && len(req.payload) > 0
	s.mu.Unlock()
	if asked {
		var rejected error
		if s.Validate != nil {
			rejected = s.Validate(s.ctx, Challenge{Name: a.name, Type: c.Type, Token: c.Token, KeyAuthorization: c.Token + "." + req.by.thumbprint})
		}
		s.mu.Lock()
		if c.Status == pending && a.status == pending { // no other request was faster
			s.decideLocked(o, a, c, rejected)
		}
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	req.header.Add("Link", "<"+s.authorizationURL(o, n)+`>;rel="up"`)
	req.write(http.StatusOK, c)
	return nil
}

func (s *Server) decideLocked(o *order, a *authorization, c *challenge, err error) {
	if err == nil {
		c.Status, c.At, a.status = valid, time.Now().UTC().Format(time.RFC3339), valid
		return
	}
	c.Error = problemf(http.StatusForbidden, "unauthorized", "%s of %s: %v", c.Type, a.name, err)
	c.Status, a.status, o.problem = invalid, invalid, c.Error
}

// finalize is RFC 8555, section 7.4.
func (s *Server) finalize(req *request) error {
	o, err := s.orderOf(req)
	if err != nil {
		return err
	}
	var want struct {
		CSR string `json:"csr"`
	}
	if err := json.Unmarshal(req.payload, &want); err != nil {
		return malformed("the payload does not decode: %v", err)
	}
	der, err := base64.RawURLEncoding.DecodeString(want.CSR)
	if err != nil {
		return problemf(http.StatusBadRequest, "badCSR", `"csr" is not base64url: %v`, err)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return problemf(http.StatusBadRequest, "badCSR", "the certificate request does not decode: %v", err)
	}
	names := []string{}
	for _, name := range append(slices.Clone(csr.DNSNames), csr.Subject.CommonName) {
		if name != "" {
			names = append(names, strings.ToLower(name))
		}
	}
	slices.Sort(names)
	if names = slices.Compact(names); !slices.Equal(names, o.names) || len(csr.IPAddresses)+len(csr.EmailAddresses)+len(csr.URIs) > 0 {
		return problemf(http.StatusBadRequest, "badCSR", "the certificate request has the names %.1000q, and the order %.1000q", names, o.names)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if status := o.statusLocked(); status != ready {
		return problemf(http.StatusForbidden, "orderNotReady", "the order is %s", status)
	}
	if o.cert, err = s.issue(csr, o.names); err != nil {
		return problemf(http.StatusBadRequest, "badCSR", "%v", err)
	}
	s.issued = append(s.issued, o.cert)
	req.header.Set("Location", s.orderURL(o))
	s.writeOrderLocked(req, http.StatusOK, o)
	return nil
}

// certificate is RFC 8555, section 7.4.2.
func (s *Server) certificate(req *request) error {
	o, err := s.orderOf(req)
	if err != nil {
		return err
	}
	s.mu.Lock()
	cert := o.cert
	s.mu.Unlock()
	if cert == nil {
		return problemf(http.StatusNotFound, "malformed", "the order has no certificate")
	}
	req.header.Set("Content-Type", "application/pem-certificate-chain")
	req.status = http.StatusOK
	req.body.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}))
	req.body.Write(s.Root)
	return nil
}
