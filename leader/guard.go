package leader

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Guard is a transport that sends writes for the leader alone. Give it to the
// configuration of the clients that the leader's work uses:
//
//	config.Wrap(leader.Guard)
//
// A request that writes, which is one with any method but GET, HEAD and OPTIONS,
// is sent only if its context is the one given to lead or derived from it, and
// only while this process is the leader in that term: by the clock, as
// [Term.Check] has it, even if the context has not ended yet or was made with
// context.WithoutCancel. The test is the last thing before the request is sent,
// after client-side throttling, and again before each time client-go repeats it.
//
// Once the term is over the error of a write is ErrLost: errors.Is finds it in
// what a client returns. A write whose context is not that of a leader is refused
// with an error that says so. Reads always pass, so informers may use a guarded
// client.
//
// What writes without leading needs a client without Guard: the Elector first of
// all, [Elector.Preflight], whose questions are POST requests, and a recorder of
// events, which has a context of its own. Exec, attach and
// port-forward by WebSocket are GET requests, and pass.
//
// Guard does not stop what it has let pass, which may still be on its way when the
// term ends. A request with lead's context, or one derived from it, ends with it;
// whether it was carried out is then not known. A [Fence] refuses it in the API
// server.
//
// A pass allocates nothing. The transport may be used concurrently if next may.
func Guard(next http.RoundTripper) http.RoundTripper { return &guard{next: next} }

// GuardAs is Guard that also tells the API server the term of every write, so
// that a [Fence] can refuse those that carry no stamp: deletions, and writes of a
// subresource such as status.
//
//	config.Wrap(leader.GuardAs("system:serviceaccount:shop:shop-controller"))
//
// The term travels in the name of the user: each write impersonates user, which
// should be the user the client is anyway, with the term as an additional
// attribute (request.userInfo.extra in admission, impersonatedUser in the audit
// log). The user must be allowed to impersonate, which takes two rules: verb
// impersonate on itself (resource serviceaccounts, in its namespace), and on
// userextras/controllerkit.github.io/leader-term of authentication.k8s.io (in a
// ClusterRole). Attributes that its token has, such as the name of its Pod, are
// not in the impersonated user.
//
// A ServiceAccount has its groups when it is impersonated. Any other user has only
// system:authenticated and the given groups, which it must be allowed to
// impersonate too (resource groups).
//
// Reads are sent as they are. A write that impersonates already, as those of a
// configuration with Impersonate do, is refused with an error, and so is every
// write if user is "".
func GuardAs(user string, groups ...string) func(next http.RoundTripper) http.RoundTripper {
	groups = slices.Clone(groups)
	return func(next http.RoundTripper) http.RoundTripper {
		return &guard{next: next, impersonates: true, user: user, groups: groups}
	}
}

// The headers by which a request impersonates. The last is the one that carries
// the term: the key is stampKey, whose slash a header's name must not have.
const (
	impersonate     = "Impersonate-"
	impersonateUser = impersonate + "User"
	impersonateTerm = impersonate + "Extra-controllerkit.github.io%2Fleader-term"

	impersonateGroup = impersonate + "Group"
)

type guard struct {
	next         http.RoundTripper
	impersonates bool
	user         string
	groups       []string
}

// RoundTrip is http.RoundTripper.
func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions: // "" is GET
		return g.next.RoundTrip(req)
	}
	admitted, err := g.admit(req)
	if err != nil {
		if req.Body != nil {
			req.Body.Close() // as a RoundTripper must, also on errors
		}
		return nil, err
	}
	return g.next.RoundTrip(admitted)
}

// WrappedRoundTripper is how client-go finds the transport below, to close its
// idle connections for example.
func (g *guard) WrappedRoundTripper() http.RoundTripper { return g.next }

// admit returns the request to send. The clock is looked at last.
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
	if !t.valid() {
		return nil, ErrLost
	}
	return req, nil
}

// impersonating is a copy of the request that tells the term.
func (g *guard) impersonating(req *http.Request, t Term) (*http.Request, error) {
	if g.user == "" {
		return nil, errors.New("leader: GuardAs was given no user: give it the name of the user that the client is")
	}
	for header := range req.Header {
		if len(header) >= len(impersonate) && strings.EqualFold(header[:len(impersonate)], impersonate) {
			return nil, fmt.Errorf("leader: the request has the header %s already: GuardAs impersonates by itself, take Impersonate out of the configuration", header)
		}
	}
	req = req.Clone(req.Context()) // a RoundTripper must not change the caller's
	req.Header.Set(impersonateUser, g.user)
	for _, group := range g.groups {
		req.Header.Add(impersonateGroup, group)
	}
	req.Header.Set(impersonateTerm, t.stamp())
	return req, nil
}

var errNotLeads = errors.New("leader: a guarded client writes for the leader alone and the context is not that of one: " +
	"use the one given to lead, and a client without Guard for the Elector and for all that writes without leading")
