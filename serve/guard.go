package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/serve/internal/decisions"
)

const (
	maxToken  = 16 << 10 // bytes; tokens of ServiceAccounts have about 1 KiB
	maxPath   = 1 << 10
	maxMethod = 16
	maxText   = 1 << 10 // of errors and names in a log line
)

// Creator is the method of the typed clients of TokenReviews and SubjectAccessReviews.
type Creator[T any] interface {
	Create(ctx context.Context, review T, opts metav1.CreateOptions) (T, error)
}

// Guard lets requests pass whose bearer token belongs to a user who may use the method, in
// lower case, on the path: the same rules with nonResourceURLs as for the API server's own
// paths. One review serves equal requests for a minute, or for 10s after a rejection, and
// while reviews fail, a review that allowed a request serves equal ones for an hour. A Guard must not be copied. Its
// fields must not change after the first request.
type Guard struct {
	// Tokens and Access are clients of the API server, such as
	// kube.AuthenticationV1().TokenReviews() and
	// kube.AuthorizationV1().SubjectAccessReviews(). Required. A client-side rate limit
	// delays requests, so use clients without one.
	Tokens Creator[*authenticationv1.TokenReview]
	Access Creator[*authorizationv1.SubjectAccessReview]

	// Audiences are the audiences of accepted tokens: a token is for at least one of them.
	// nil means the audience of the API server.
	Audiences []string

	// Timeout bounds both reviews of a request together. Make it shorter than the timeout of
	// the scraper, whose default is 10s: in an outage, an allowed request waits for it once a
	// minute. 0 means 5s.
	Timeout time.Duration

	// PlainHTTP accepts tokens from other hosts without TLS, e.g. from a proxy that ends
	// TLS. false means that such a request gets 403, because others could read the token.
	PlainHTTP bool

	once      sync.Once
	err       error // of the fields
	decisions *decisions.Cache
	lines     flowcontrol.PassiveRateLimiter // of log lines about failures
	missing   flowcontrol.PassiveRateLimiter // of log lines about missing rights
	invalid   flowcontrol.PassiveRateLimiter // of log lines about rejected tokens
	bare      flowcontrol.PassiveRateLimiter // of log lines about requests without a token
}

// Handler returns a handler that calls next for allowed requests only. Other requests get a
// response without a reason: 400 if the path is not canonical; 401 without a token, with
// several Authorization headers, or if the token is not valid for the audience; 403 if its
// user may not use the method on the path, or another host sends the token without TLS; 429
// in a flood; 503 if the API server fails or does not respond within Timeout, unless it
// allowed an equal request in the last hour. next gets the
// request without its Authorization headers. If a field of the Guard is not valid, each
// response is 503, and one log line names the field.
func (g *Guard) Handler(next http.Handler) http.Handler {
	if kube.IsNil(next) {
		next = http.NotFoundHandler()
	}
	var once sync.Once
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := g.init(); err != nil {
			once.Do(func() { klog.FromContext(r.Context()).Error(err, "Rejecting all requests") })
			refuse(w, http.StatusServiceUnavailable)
			return
		}
		if code := g.decide(r); code != http.StatusOK {
			refuse(w, code)
			return
		}
		next.ServeHTTP(w, withoutToken(r))
	})
}

// init validates the fields, once.
func (g *Guard) init() error {
	if g == nil {
		return errors.New("serve: the Guard is nil: set its Tokens and Access")
	}
	g.once.Do(func() {
		g.decisions, g.lines = decisions.New(), flowcontrol.NewTokenBucketPassiveRateLimiter(0.1, 1)
		for _, limiter := range []*flowcontrol.PassiveRateLimiter{&g.missing, &g.invalid, &g.bare} {
			*limiter = flowcontrol.NewTokenBucketPassiveRateLimiter(1./600, 1)
		}
		switch {
		case kube.IsNil(g.Tokens):
			g.err = errors.New("serve: Guard.Tokens is nil: set it to the client of TokenReviews")
		case kube.IsNil(g.Access):
			g.err = errors.New("serve: Guard.Access is nil: set it to the client of SubjectAccessReviews")
		case g.Timeout < 0:
			g.err = fmt.Errorf("serve: Guard.Timeout is %v: set it to more than 0, or 0 for 5s", g.Timeout)
		case slices.Contains(g.Audiences, ""):
			g.err = errors.New("serve: Guard.Audiences has an empty audience: remove it")
		}
	})
	return g.err
}

// decide returns the status code of the response, or 200.
func (g *Guard) decide(r *http.Request) int {
	if !canonical(r) {
		return http.StatusBadRequest
	}
	source, err := netip.ParseAddrPort(r.RemoteAddr)
	if r.TLS == nil && !g.PlainHTTP && (err != nil || !source.Addr().Unmap().IsLoopback()) {
		klog.FromContext(r.Context()).V(2).Info("Rejected a request without TLS: serve over TLS, or set Guard.PlainHTTP", "remoteAddr", kube.Printable(r.RemoteAddr, maxText))
		return http.StatusForbidden
	}
	token, ok := bearer(r)
	if !ok {
		if g.bare.TryAccept() {
			klog.FromContext(r.Context()).Info("Rejected a request, because it has no bearer token, or more than one", "code", http.StatusUnauthorized, "path", kube.Printable(r.URL.Path, maxText))
		}
		return http.StatusUnauthorized
	}
	verb := strings.ToLower(r.Method)
	return g.decisions.Decide(r.Context(), source.Addr(), func() int {
		return g.review(r.Context(), verb, token, r.URL.Path)
	}, verb, token, r.URL.Path)
}

// review asks the API server. It returns 200, 401, 403 or, after a failure, 503.
func (g *Guard) review(ctx context.Context, verb, token, url string) int {
	logger := klog.FromContext(ctx)
	// Other requests wait for the result, so it does not end with the client of this one.
	// client-go logs bodies at level 8, so it gets a logger that drops all lines.
	ctx, cancel := context.WithTimeout(klog.NewContext(context.WithoutCancel(ctx), klog.Logger{}), cmp.Or(g.Timeout, 5*time.Second))
	defer cancel()
	code, user, reason, err := g.ask(ctx, verb, token, url)
	repeats := func(text string) bool { return strings.Contains(text, token[:min(len(token), 16)]) } // the rest may be cut
	if repeats(reason) {
		reason = "omitted, because it repeats the token"
	}
	line := []any{"code", code, "reason", kube.Printable(reason, maxText), "user", kube.Printable(user, maxText), "verb", verb, "path", kube.Printable(url, maxText)}
	switch {
	case err != nil && g.lines.TryAccept():
		if repeats(err.Error()) {
			err = errors.New("serve: the text of the error is omitted, because it repeats the token")
		}
		logger.Error(kube.PrintableError(err, maxText), "Cannot review a request")
	case err == nil && code == http.StatusForbidden && g.missing.TryAccept():
		logger.Info("Rejected a request, because its user lacks the right: bind a ClusterRole with this nonResourceURL", line...)
	case err == nil && code == http.StatusUnauthorized && g.invalid.TryAccept():
		logger.Info("Rejected a request, because its token is not valid: see the reason, and the token and audience of the client", line...)
	case err == nil && code != http.StatusOK:
		logger.V(2).Info("Rejected a request", line...)
	}
	return code
}

// ask returns what the API server decides. reason is that of a rejection.
func (g *Guard) ask(ctx context.Context, verb, token, url string) (code int, user, reason string, err error) {
	who, err := g.Tokens.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: g.Audiences},
	}, metav1.CreateOptions{})
	if err != nil || who == nil {
		return http.StatusServiceUnavailable, "", "", failed("TokenReview", err)
	}
	info := who.Status.User
	if !who.Status.Authenticated || info.Username == "" {
		return http.StatusUnauthorized, "", cmp.Or(who.Status.Error, "the API server does not know the token"), nil
	}
	// A server that does not know audiences returns none.
	if len(g.Audiences) > 0 && !slices.ContainsFunc(who.Status.Audiences, func(a string) bool { return slices.Contains(g.Audiences, a) }) {
		return http.StatusUnauthorized, "", fmt.Sprintf("the token is for the audiences %q, and Guard.Audiences are %q", who.Status.Audiences, g.Audiences), nil
	}
	extra := make(map[string]authorizationv1.ExtraValue, len(info.Extra))
	for k, v := range info.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	access, err := g.Access.Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: info.Username, UID: info.UID, Groups: info.Groups, Extra: extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: verb, Path: url},
		},
	}, metav1.CreateOptions{})
	if err != nil || access == nil {
		return http.StatusServiceUnavailable, info.Username, "", failed("SubjectAccessReview", err)
	}
	if !access.Status.Allowed || access.Status.Denied {
		return http.StatusForbidden, info.Username, cmp.Or(access.Status.EvaluationError, access.Status.Reason), nil
	}
	return http.StatusOK, info.Username, "", nil
}

func failed(review string, err error) error {
	switch {
	case err == nil:
		return fmt.Errorf("serve: %s: the client returned nothing", review)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("serve: %s: %w: bind the ClusterRole system:auth-delegator to this user", review, err)
	}
	return fmt.Errorf("serve: %s: %w", review, err)
}

// bearer returns the token of a request that has exactly one, in the form of RFC 6750.
func bearer(r *http.Request) (token string, ok bool) {
	headers := r.Header.Values("Authorization")
	if len(headers) != 1 {
		return "", false
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	bad := func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-._~+/=", c)
	}
	return token, strings.EqualFold(scheme, "bearer") && token != "" && len(token) <= maxToken && !strings.ContainsFunc(token, bad)
}

// canonical reports whether no router interprets the path as another one.
func canonical(r *http.Request) bool {
	p := r.URL.Path
	clean := path.Clean(p)
	return strings.HasPrefix(p, "/") && len(p) <= maxPath && len(r.Method) <= maxMethod && r.URL.RawPath == "" &&
		(p == clean || clean != "/" && p == clean+"/")
}

// withoutToken returns a copy of r for the handler.
func withoutToken(r *http.Request) *http.Request {
	r = r.WithContext(r.Context())
	r.Header = r.Header.Clone()
	r.Header.Del("Authorization")
	return r
}

func refuse(w http.ResponseWriter, code int) {
	switch code {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "1")
	}
	http.Error(w, http.StatusText(code), code)
}
