package debug

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// maxSearch bounds the key in a request.
const maxSearch = 1024

// The page runs no script and uses no style but these two, whose hashes are in its header.
var (
	//go:embed page.css
	style string
	//go:embed page.js
	script string
)

// policy returns the Content-Security-Policy, which allows the page's own script and style.
func policy() string {
	return "default-src 'none'; style-src '" + hash(style) + "'; script-src '" + hash(script) +
		"'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
}

// hash returns the source expression of an inline text for a Content-Security-Policy.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// ServeHTTP serves the page as HTML or, with the parameter format=json, as JSON. The
// parameter key, such as default/web, adds the story of a key. A key without a slash has no
// namespace. The story is in order of time. HTML and JSON have the same content. A POST
// request sets Verbosity for a time. ServeHTTP does not authenticate. It holds no lock while it renders, so a slow reader delays no
// call.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy())
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-store")
	if r.Method == http.MethodPost && p.Verbosity != nil {
		p.setVerbosity(w, r)
		return
	}
	if !isRead(w, r) {
		return
	}
	query := r.URL.Query()
	var search *types.NamespacedName
	if key := strings.TrimSpace(query.Get("key")); len(key) > maxSearch {
		http.Error(w, "the parameter key is too long: use namespace/name of an object", http.StatusBadRequest)
		return
	} else if key != "" {
		search = searched(key)
	}
	var s *state
	switch format := query.Get("format"); format {
	case "json":
		s = p.collect(search)
		header.Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s) // the client has gone
	case "", "html":
		s = p.collect(search)
		header.Set("Content-Type", "text/html; charset=utf-8")
		(&writer{out: w}).page(s) // an error means that the client has gone
	default:
		http.Error(w, "the parameter format is unknown: use json, html or none", http.StatusBadRequest)
	}
}

// isRead reports whether the request reads, and answers it otherwise.
func isRead(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return true
	}
	w.Header().Set("Allow", "GET, HEAD")
	http.Error(w, "Method Not Allowed: use GET", http.StatusMethodNotAllowed)
	return false
}

// collect collects a state. Requests wait for each other here, so that any number of them
// takes the locks of the queues no more often than one reader would.
func (p *Page) collect(search *types.NamespacedName) *state {
	p.read.Lock()
	defer p.read.Unlock()
	return p.state(search)
}

// searched returns the key that a reader looks for.
func searched(key string) *types.NamespacedName {
	namespace, name, found := strings.Cut(key, "/")
	if !found {
		namespace, name = "", key
	}
	return &types.NamespacedName{Namespace: namespace, Name: name}
}

// ago returns the time between two times, for a reader.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	d := now.Sub(t)
	unit := time.Second
	if max(d, -d) < time.Second {
		unit = time.Millisecond
	}
	if d = d.Round(unit); d < 0 {
		return "in " + (-d).String()
	}
	return d.String() + " ago"
}

// size returns a number of bytes, for a reader.
func size(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}
