package leader

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/controllerkit/controllerkit/internal/tenure"
)

// Guard is a transport that sends writes for the leader alone. Set it in the
// configuration of the clients that lead uses:
//
//	config.Wrap(leader.Guard)
//
// Guard sends a write only if its context is lead's or derived from it, and only while
// this process is the leader in that term. A write is a request with any method but
// GET, HEAD and OPTIONS, and also exec, attach and port-forward by WebSocket, which are
// GET requests. Leadership is checked by the clock as in [Term.Check], also if the context
// was made with context.WithoutCancel. The check is the last step before the request is
// sent, after client-side throttling, and is repeated before each retry of client-go.
//
// After the end of the term the error of a write is ErrLost: errors.Is finds it in the
// error of a client. If the context has no term, the error names the cure. The errors of
// Guard have a method NotSent() bool, which returns true, so that package consistency knows
// that there was no write. Reads always pass, so informers may use a guarded client.
//
// The Elector needs a client without Guard. So do [Elector.Preflight], whose reviews
// are POST requests, a recorder of events, which has its own context, and client-go's
// port-forward, which has none. Guard does not end a connection that is open.
//
// A request that has passed may still be in flight when the term ends. It ends with its
// context, unless that is of context.WithoutCancel, and its outcome is unknown. Package fence
// makes the API server refuse it if it carries its term, as with [GuardAs].
//
// In a call of package preview, which has no term, all requests pass: the writes are dry runs.
//
// A check allocates no memory. The transport may be used concurrently if next may.
func Guard(next http.RoundTripper) http.RoundTripper {
	return &tenure.Guard{Next: next, Admit: (&guard{}).admit}
}

// GuardAs is Guard that also sends the term with every write, so that package fence can
// refuse writes that carry no stamp: deletions, writes of a subresource such as status, and
// connections such as exec.
//
//	config.Wrap(leader.GuardAs("system:serviceaccount:shop:shop-controller"))
//
// The term is an attribute of the user: each write impersonates user, which should be
// the client's own user, with the term as an additional attribute
// (request.userInfo.extra in admission, impersonatedUser in the audit log). RBAC must
// allow two things: the verb impersonate on the user itself (resource serviceaccounts,
// in its namespace), and on userextras/controllerkit.github.io/leader-term of
// authentication.k8s.io (in a ClusterRole). The impersonated user has no attributes of
// the token, such as the name of its Pod.
//
// An impersonated ServiceAccount has its groups. Any other user has only
// system:authenticated and the given groups, which RBAC must allow it to impersonate
// too (resource groups).
//
// Reads are sent unchanged, also a GET through the proxy of a Pod, Service or Node. If a write
// impersonates already, because the configuration has Impersonate, or if user is empty, the write
// returns an error.
func GuardAs(user string, groups ...string) func(next http.RoundTripper) http.RoundTripper {
	groups = slices.Clone(groups)
	return func(next http.RoundTripper) http.RoundTripper {
		return &tenure.Guard{Next: next, Admit: (&guard{impersonates: true, user: user, groups: groups}).admit}
	}
}

// The headers of impersonation. The last one carries the term: its key is TermAnnotation with
// an escaped slash, which a header's name must not have.
const (
	impersonate     = "Impersonate-"
	impersonateUser = impersonate + "User"
	impersonateTerm = impersonate + "Extra-controllerkit.github.io%2Fleader-term"

	impersonateGroup = impersonate + "Group"
)

type guard struct {
	impersonates bool
	user         string
	groups       []string
}

// admit returns the request to send. It checks the clock last.
func (g *guard) admit(req *http.Request) (*http.Request, error) {
	t, ok := req.Context().Value(termKey{}).(*term)
	if !ok {
		return nil, errNotLeads
	}
	if g.impersonates {
		var err error
		if req, err = g.impersonating(req, t.Term); err != nil {
			return nil, err
		}
	}
	if !t.Valid() {
		return nil, ErrLost
	}
	return req, nil
}

// impersonating returns a copy of the request that carries the term.
func (g *guard) impersonating(req *http.Request, t Term) (*http.Request, error) {
	if g.user == "" {
		return nil, errors.New("leader: the user of GuardAs is empty: set it to the client's user name")
	}
	for header := range req.Header {
		if len(header) >= len(impersonate) && strings.EqualFold(header[:len(impersonate)], impersonate) {
			return nil, fmt.Errorf("leader: the request has the header %s already: remove Impersonate from the configuration of GuardAs", header)
		}
	}
	req = req.Clone(req.Context()) // a RoundTripper must not change the caller's request
	req.Header.Set(impersonateUser, g.user)
	for _, group := range g.groups {
		req.Header.Add(impersonateGroup, group)
	}
	req.Header.Set(impersonateTerm, t.stamp())
	return req, nil
}

var errNotLeads = errors.New("leader: the context of a guarded write has no term: " +
	"use the context of lead, or a client without Guard for the Elector and for work outside of lead")
