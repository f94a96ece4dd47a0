package shutdown

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// check is a named check of readiness or liveness.
type check struct {
	name string
	fn   func() error
}

// AddReady adds a check to the readiness handler: while fn returns an error, the process
// is not ready. fn is called for every request, concurrently, and must return quickly. The
// response contains name, but not the error. Run returns an error for misuse, as for
// [Group.Add].
func (g *Group) AddReady(name string, fn func() error) { g.addCheck("AddReady", &g.ready, name, fn) }

// AddLive adds a check to the liveness handler, in the same way as [Group.AddReady]. If it
// fails, the kubelet restarts the container, so fn should fail only for a problem that a
// restart solves.
func (g *Group) AddLive(name string, fn func() error) { g.addCheck("AddLive", &g.live, name, fn) }

func (g *Group) addCheck(method string, list *[]check, name string, fn func() error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var err error
	switch {
	case g.phase != idle:
		err = fmt.Errorf("shutdown: %s(%q) was called after Run: add all checks before Run", method, name)
	case name == "":
		err = fmt.Errorf("shutdown: %s got an empty name: the response of the probe shows it", method)
	case fn == nil:
		err = fmt.Errorf("shutdown: %s(%q) got a nil function: pass one", method, name)
	default:
		for _, c := range *list {
			if c.name == name {
				err = fmt.Errorf("shutdown: %s(%q) was called twice: give every check its own name", method, name)
			}
		}
	}
	if err != nil {
		g.misusedLocked(err)
		return
	}
	*list = append(*list, check{name, fn})
}

// Ready returns the handler of the readiness probe. It responds 200 and "ok", or 503 and
// one line for each reason: "starting" until Run has started all parts, "stopping" from
// the beginning of the stop, before Delay, and "failing: <name>" for each check of
// [Group.AddReady] that returns an error.
func (g *Group) Ready() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		g.mu.Lock()
		checks := g.ready
		g.mu.Unlock()
		reasons := failing(checks)
		g.mu.Lock() // after the checks: stopping may have begun while they ran
		phase := g.phase
		g.mu.Unlock()
		switch phase {
		case idle, starting:
			reasons = "starting\n" + reasons
		case stopping:
			reasons = "stopping\n" + reasons
		}
		respond(w, reasons)
	})
}

// Live returns the handler of the liveness probe. It responds 200 and "ok", or 503 and
// "failing: <name>" for each failing check of [Group.AddLive]. It does not depend on start
// and stop, so that the kubelet does not kill a process that drains.
func (g *Group) Live() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		g.mu.Lock()
		checks := g.live
		g.mu.Unlock()
		respond(w, failing(checks))
	})
}

// failing runs the checks without a lock, because they may be slow or call the group's
// methods. It returns a line for each check that fails.
func failing(checks []check) string {
	var lines strings.Builder
	for _, c := range checks {
		if c.fn() != nil {
			lines.WriteString("failing: " + c.name + "\n")
		}
	}
	return lines.String()
}

func respond(w http.ResponseWriter, reasons string) {
	code, body := http.StatusServiceUnavailable, reasons
	if reasons == "" {
		code, body = http.StatusOK, "ok\n"
	}
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, body)
}

// misusedLocked stores a mistake for Run to return, and ends a running Run: a part or
// check that is missing without notice would be worse.
func (g *Group) misusedLocked(err error) {
	g.misuse = errors.Join(g.misuse, err)
	if g.misused != nil {
		select {
		case g.misused <- struct{}{}:
		default: // Run is already awake
		}
	}
}
