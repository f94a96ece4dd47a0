package serve_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/serve"
)

// TestRequests sends requests as bytes, because clients of net/http would clean them. It
// proves SV1 and SV5. The handler interprets paths as a careless router does.
func TestRequests(t *testing.T) {
	const auth = "Authorization: Bearer good-1\r\n"
	for _, tc := range []struct {
		name, line, headers string
		want                int
	}{
		{"allowed", "GET /metrics", auth, 200},
		{"lower case", "GET /metrics", "authorization: bearer good-1\r\n", 200},
		{"query", "GET /metrics?debug=1", auth, 200},
		{"folded header", "GET /metrics", "Authorization: Bearer\r\n good-1\r\n", 200},
		{"absolute form", "GET http://controller/metrics", auth, 200},

		{"no token", "GET /metrics", "", 401},
		{"token in the query", "GET /metrics?access_token=good-1", "", 401},
		{"rejected token", "GET /metrics", "Authorization: Bearer bad\r\n", 401},
		{"empty token", "GET /metrics", "Authorization: Bearer \r\n", 401},
		{"basic", "GET /metrics", "Authorization: Basic Z29vZC0xOg==\r\n", 401},
		{"no scheme", "GET /metrics", "Authorization: good-1\r\n", 401},
		{"two tokens, the good one first", "GET /metrics", auth + "Authorization: Bearer bad\r\n", 401},
		{"two tokens, the good one last", "GET /metrics", "Authorization: Bearer bad\r\n" + auth, 401},
		{"the same token twice", "GET /metrics", auth + auth, 401},
		{"a list", "GET /metrics", "Authorization: Bearer good-1, Bearer good-1\r\n", 401},
		{"two spaces", "GET /metrics", "Authorization: Bearer  good-1\r\n", 401},
		{"line feed in the key of the cache", "GET /metrics", "Authorization: Bearer good-1\n/metrics\r\n", 400},
		{"space before the colon", "GET /metrics", "Authorization : Bearer good-1\r\n", 400},
		{"long token", "GET /metrics", "Authorization: Bearer " + strings.Repeat("a", 17<<10) + "\r\n", 401},
		{"other headers of identity", "GET /metrics", "Impersonate-User: good\r\nX-Remote-User: good\r\n", 401},

		{"other path", "GET /debug", auth, 403},
		{"other method", "POST /metrics", auth, 403},
		{"unknown method", "GETGET /metrics", auth, 403},
		{"user without rights", "GET /metrics", "Authorization: Bearer other-1\r\n", 403},
		{"trailing slash", "GET /metrics/", auth, 403},

		{"dots", "GET /metrics/../debug", auth, 400},
		{"dots at the end", "GET /debug/..", auth, 400},
		{"one dot", "GET /./metrics", auth, 400},
		{"two slashes", "GET //debug", auth, 400},
		{"two slashes at the end", "GET /metrics//", auth, 400},
		{"two slashes alone", "GET //", auth, 400},
		{"the root", "GET /", auth, 403},
		{"encoded dots", "GET /metrics/%2e%2e/debug", auth, 400},
		{"encoded slash", "GET /metrics%2f..%2fdebug", auth, 400},
		{"encoded letter", "GET /%6detrics", auth, 400},
		{"encoded twice", "GET /%252e%252e/debug", auth, 403},
		{"long path", "GET /" + strings.Repeat("a", 2000), auth, 400},
		{"long method", strings.Repeat("A", 2000) + " /metrics", auth, 400},
		{"no path", "CONNECT controller:443", auth, 400},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &reviewer{allow: []string{"/metrics"}}
				called := ""
				server, err := serve.New(serve.Config{Guard: api.guard(), Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					called = path.Clean("/" + r.URL.Path)
				})})
				if err != nil {
					t.Fatal(err)
				}
				conn := inMemory(t, server).Dial(t)
				defer conn.Close()
				go func() {
					_, _ = io.WriteString(conn, tc.line+" HTTP/1.1\r\nHost: controller\r\n"+tc.headers+"Connection: close\r\n\r\n")
				}()
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if resp.StatusCode != tc.want {
					t.Errorf("the code is %d, want %d", resp.StatusCode, tc.want)
				}
				if want := map[bool]string{true: "/metrics"}[tc.want == 200]; called != want {
					t.Errorf("the handler served %q, want %q", called, want)
				}
				if got := resp.Header.Get("WWW-Authenticate"); (got == "Bearer") != (tc.want == 401) {
					t.Errorf("WWW-Authenticate is %q after %d", got, tc.want)
				}
				if (tc.want == 400 || tc.want == 401 && tc.name != "rejected token") && api.tokens.Load() > 0 {
					t.Error("the API server was asked about a request that is not valid")
				}
			})
		})
	}
}

// TestReviews gives unusual answers of the API server. It proves SV1.
func TestReviews(t *testing.T) {
	for _, tc := range []struct {
		name      string
		audiences []string
		status    func(*authenticationv1.TokenReviewStatus)
		err       error
		access    *authorizationv1.SubjectAccessReviewStatus
		want      int
	}{
		{name: "good", want: 200},
		{name: "audience", audiences: []string{"metrics", "x"}, status: func(s *authenticationv1.TokenReviewStatus) { s.Audiences = []string{"metrics"} }, want: 200},
		{name: "another audience", audiences: []string{"metrics"}, status: func(s *authenticationv1.TokenReviewStatus) { s.Audiences = []string{"x"} }, want: 401},
		{name: "a server without audiences", audiences: []string{"metrics"}, status: func(s *authenticationv1.TokenReviewStatus) { s.Audiences = nil }, want: 401},
		{name: "no name", status: func(s *authenticationv1.TokenReviewStatus) { s.User.Username = "" }, want: 401},
		{name: "not authenticated", status: func(s *authenticationv1.TokenReviewStatus) { s.Authenticated = false }, want: 401},
		{name: "failure", err: errors.New("no route to host"), want: 503},
		{name: "denied", access: &authorizationv1.SubjectAccessReviewStatus{Allowed: true, Denied: true}, want: 403},
		{name: "no opinion", access: &authorizationv1.SubjectAccessReviewStatus{EvaluationError: "webhook failed"}, want: 403},
	} {
		t.Run(tc.name, func(t *testing.T) {
			api := &reviewer{allow: []string{"/metrics"}, status: tc.status, before: func(context.Context) error { return tc.err }}
			guard := api.guard()
			guard.Audiences = tc.audiences
			if tc.access != nil {
				guard.Access = create[*authorizationv1.SubjectAccessReview](func(_ context.Context, r *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error) {
					r.Status = *tc.access
					return r, nil
				})
			}
			if got := get(t, guard.Handler(http.HandlerFunc(served)), "good-1", "/metrics", anAddr); got != tc.want {
				t.Errorf("the code is %d, want %d", got, tc.want)
			}
		})
	}
	t.Run("nothing", func(t *testing.T) {
		api := &reviewer{allow: []string{"/metrics"}}
		guard := api.guard()
		guard.Tokens = create[*authenticationv1.TokenReview](func(context.Context, *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
			return nil, nil
		})
		if got := get(t, guard.Handler(http.HandlerFunc(served)), "good-1", "/metrics", anAddr); got != 503 {
			t.Errorf("the code is %d after a client that returned nil, want 503", got)
		}
		guard = api.guard()
		guard.Access = create[*authorizationv1.SubjectAccessReview](func(context.Context, *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error) {
			return nil, nil
		})
		if got := get(t, guard.Handler(http.HandlerFunc(served)), "good-1", "/metrics", anAddr); got != 503 {
			t.Errorf("the code is %d after a client that returned nil, want 503", got)
		}
	})
}

// A token that crosses the network in clear is not accepted, and neither is a Guard with a
// mistake.
func TestPlainHTTPAndMistakes(t *testing.T) {
	api := &reviewer{allow: []string{"/metrics"}}
	request := func(guard *serve.Guard, addr string) int {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.RemoteAddr = addr
		r.Header.Set("Authorization", "Bearer good-1")
		w := httptest.NewRecorder()
		guard.Handler(http.HandlerFunc(served)).ServeHTTP(w, r)
		return w.Code
	}
	plain := api.guard()
	plain.PlainHTTP = true
	noTokens, noAccess, negative, empty, typedNil := api.guard(), api.guard(), api.guard(), api.guard(), api.guard()
	noTokens.Tokens, noAccess.Access, negative.Timeout, empty.Audiences = nil, nil, -1, []string{"a", ""}
	typedNil.Tokens = create[*authenticationv1.TokenReview](nil)
	for _, tc := range []struct {
		name, addr string
		guard      *serve.Guard
		want       int
	}{
		{"other host", anAddr, api.guard(), 403},
		{"no address", "", api.guard(), 403},
		{"this host", "127.0.0.1:1", api.guard(), 200},
		{"this host, IPv6", "[::1]:1", api.guard(), 200},
		{"this host, mapped", "[::ffff:127.0.0.1]:1", api.guard(), 200},
		{"behind a proxy", anAddr, plain, 200},
		{"nil", "127.0.0.1:1", nil, 503},
		{"zero", "127.0.0.1:1", &serve.Guard{}, 503},
		{"no Tokens", "127.0.0.1:1", noTokens, 503},
		{"a nil client", "127.0.0.1:1", typedNil, 503},
		{"no Access", "127.0.0.1:1", noAccess, 503},
		{"negative Timeout", "127.0.0.1:1", negative, 503},
		{"empty audience", "127.0.0.1:1", empty, 503},
	} {
		if got := request(tc.guard, tc.addr); got != tc.want {
			t.Errorf("%s: the code is %d, want %d", tc.name, got, tc.want)
		}
	}
	logs := testlog.New()
	broken := (&serve.Guard{}).Handler(http.HandlerFunc(served))
	for range 3 {
		send(logs.Context(t.Context()), broken, "good-1", "/metrics", anAddr)
	}
	if lines := logs.All(); len(lines) != 1 || !strings.Contains(lines[0].Err.Error(), "Guard.Tokens is nil") {
		t.Errorf("three requests log %v, want one line that names the field", lines)
	}
	logs = testlog.New()
	inClear := httptest.NewRequestWithContext(logs.Context(t.Context()), http.MethodGet, "/metrics", nil)
	inClear.RemoteAddr = anAddr
	api.guard().Handler(http.HandlerFunc(served)).ServeHTTP(httptest.NewRecorder(), inClear)
	if lines := logs.All(); len(lines) != 1 || lines[0].Level != 2 || !strings.Contains(lines[0].Message, "Guard.PlainHTTP") {
		t.Errorf("a request without TLS logs %v, want one line of level 2 that names the field", lines)
	}
	star := httptest.NewRequest(http.MethodOptions, "https://controller.invalid/", nil)
	star.URL.Path = "*" // a server with DisableGeneralOptionsHandler passes it
	w := httptest.NewRecorder()
	if api.guard().Handler(http.HandlerFunc(served)).ServeHTTP(w, star); w.Code != 400 {
		t.Errorf("the path * gives %d, want 400", w.Code)
	}
	if got := get(t, api.guard().Handler(nil), "good-1", "/metrics", anAddr); got != 404 {
		t.Errorf("a nil handler gives %d, want 404", got)
	}
}

// An API server that accepts connections and never responds. It proves SV1.
func TestNoResponse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	clients, err := kubernetes.NewForConfig(&rest.Config{Host: "http://" + l.Addr().String(), QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	guard := &serve.Guard{Tokens: clients.AuthenticationV1().TokenReviews(), Access: clients.AuthorizationV1().SubjectAccessReviews(), Timeout: 300 * time.Millisecond}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := send(ctx, guard.Handler(http.HandlerFunc(served)), "good-1", "/metrics", anAddr)
	if w.Code != 503 || ctx.Err() != nil || w.Header().Get("Retry-After") == "" {
		t.Errorf("the code is %d, the headers are %v, the request ended with %v; want 503 with Retry-After within the Timeout", w.Code, w.Header(), ctx.Err())
	}
}

// TestOutage: while the API server does not respond, a request that it allowed stays allowed
// for an hour, with a review a minute that takes half of a scraper's timeout, and no other request is. After that, and when the
// API server is back, only its word counts. It proves SV1.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := false
		api := &reviewer{allow: []string{"/metrics"}, before: func(ctx context.Context) error {
			if !hangs {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		h := api.guard().Handler(http.HandlerFunc(served))
		if got := get(t, h, "good-1", "/metrics", anAddr); got != 200 {
			t.Fatalf("the code is %d, want 200", got)
		}
		hangs = true
		allowed := time.Now()
		slow := 0
		for time.Since(allowed) < 59*time.Minute+50*time.Second {
			start := time.Now()
			if got := get(t, h, "good-1", "/metrics", anAddr); got != 200 {
				t.Fatalf("the code is %d after %v, want 200", got, time.Since(allowed))
			}
			if time.Since(start) > 0 {
				slow++
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Fatalf("a response took %v, so that the scraper, whose timeout is 10s, may have left", took)
			}
			time.Sleep(5 * time.Second)
		}
		if slow < 50 || slow > 60 {
			t.Errorf("%d requests waited for a review, want one each minute and the 5s that it takes", slow)
		}
		for _, path := range []string{"/debug", "/metrics/other"} {
			if got := get(t, h, "good-1", path, anAddr); got != 503 {
				t.Errorf("the code of %s is %d, want 503: nobody has allowed it", path, got)
			}
		}
		time.Sleep(time.Until(allowed.Add(time.Hour)))
		if got := get(t, h, "good-1", "/metrics", anAddr); got != 503 {
			t.Errorf("the code is %d after an hour, want 503", got)
		}
		hangs = false
		time.Sleep(time.Second)
		if got := get(t, h, "good-1", "/metrics", anAddr); got != 200 {
			t.Errorf("the code is %d after the outage, want 200", got)
		}

		hangs = true
		time.Sleep(90 * time.Second)
		if got := get(t, h, "good-1", "/metrics", anAddr); got != 200 {
			t.Errorf("the code is %d in the second outage, want 200", got)
		}
		hangs, api.allow = false, nil
		time.Sleep(time.Minute)
		if got := get(t, h, "good-1", "/metrics", anAddr); got != 403 {
			t.Errorf("the code is %d without the right, want 403", got)
		}
		hangs = true
		time.Sleep(10 * time.Second)
		if got := get(t, h, "good-1", "/metrics", anAddr); got != 503 {
			t.Errorf("the code is %d, want 503: the last review rejected it", got)
		}
	})
}

// TestAges tests that if equal requests arrive within a minute, or within 10s after a
// rejection, one review serves them.
func TestAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &reviewer{allow: []string{"/metrics"}}
		h := api.guard().Handler(http.HandlerFunc(served))
		for _, step := range []struct {
			name    string
			wait    time.Duration
			token   string
			want    int
			reviews int64 // of tokens, in all
		}{
			{"first", 0, "good-1", 200, 1},
			{"known", 59 * time.Second, "good-1", 200, 1},
			{"a minute old", time.Second, "good-1", 200, 2},
			{"rejected", 0, "bad", 401, 3},
			{"known", 9 * time.Second, "bad", 401, 3},
			{"10s old", time.Second, "bad", 401, 4},
			{"no right", 0, "other-1", 403, 5},
			{"known", 9 * time.Second, "other-1", 403, 5},
			{"10s old", time.Second, "other-1", 403, 6},
		} {
			time.Sleep(step.wait)
			if got := get(t, h, step.token, "/metrics", anAddr); got != step.want || api.tokens.Load() != step.reviews {
				t.Errorf("%s, %s: the code is %d after %d reviews, want %d after %d", step.token, step.name, got, api.tokens.Load(), step.want, step.reviews)
			}
		}
		// A right that is taken away ends at the next review.
		api.allow = nil
		time.Sleep(time.Minute)
		for range 2 {
			if got := get(t, h, "good-1", "/metrics", anAddr); got != 403 {
				t.Errorf("the code is %d without the right, want 403", got)
			}
		}
		// And it has the place of a new one after that.
		time.Sleep(10 * time.Second)
		for i := range 10 {
			get(t, h, fmt.Sprintf("bad-%d", i), "/metrics", anAddr)
		}
		if got := get(t, h, "good-1", "/metrics", anAddr); got != 429 {
			t.Errorf("the code is %d after ten new tokens, want 429", got)
		}
	})
}

// TestOneReview sends equal requests at once. The first one's client leaves, which does not
// end the review of the others.
func TestOneReview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &reviewer{allow: []string{"/metrics"}, before: func(ctx context.Context) error {
			select {
			case <-time.After(time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
		h := api.guard().Handler(http.HandlerFunc(served))
		first, leave := context.WithCancel(t.Context())
		second, leaveToo := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { send(first, h, "good-1", "/metrics", anAddr) })
		synctest.Wait()
		start := time.Now()
		wg.Go(func() {
			if got := send(second, h, "good-1", "/metrics", anAddr).Code; got != 503 || time.Since(start) > 0 {
				t.Errorf("the code is %d after %v for a client that has left, want 503 at once", got, time.Since(start))
			}
		})
		for range 500 {
			wg.Go(func() {
				if got := get(t, h, "good-1", "/metrics", anAddr); got != 200 {
					t.Errorf("the code is %d, want 200", got)
				}
			})
		}
		synctest.Wait()
		leave()
		leaveToo()
		wg.Wait()
		if n, m := api.tokens.Load(), api.accesses.Load(); n != 1 || m != 1 {
			t.Errorf("%d reviews of the token and %d of the access, want one each", n, m)
		}
	})
}

// A client that panics leaves no request waiting.
func TestPanic(t *testing.T) {
	api := &reviewer{before: func(context.Context) error { panic("boom") }}
	h := api.guard().Handler(http.HandlerFunc(served))
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is lost")
			}
		}()
		get(t, h, "good-1", "/metrics", anAddr)
	}()
	if got := get(t, h, "good-1", "/metrics", anAddr); got != 503 {
		t.Errorf("the code is %d after the panic, want 503", got)
	}
}

// TestSecrecy proves SV4: with all levels of the log, a server that sends the request back
// in an error, and a look at all that a Guard keeps.
func TestSecrecy(t *testing.T) {
	const secret = "a-secret-token"
	broken := true
	denied := "" // the kind of the review that is rejected with the token as the reason
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		switch {
		case denied == "TokenReview":
			_, _ = io.WriteString(w, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{"error":"`+secret+`"}}`)
		case denied != "" && !strings.HasSuffix(r.URL.Path, "/tokenreviews"):
			_, _ = io.WriteString(w, `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"reason":"`+secret+`"}}`)
		case broken:
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":%q,"code":400}`, body)
		case strings.HasSuffix(r.URL.Path, "/tokenreviews"):
			_, _ = io.WriteString(w, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":"`+secret+`"},"status":{"authenticated":true,"user":{"username":"x"}}}`)
		default:
			_, _ = io.WriteString(w, `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":true}}`)
		}
	}))
	defer api.Close()
	clients, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	guard := &serve.Guard{Tokens: clients.AuthenticationV1().TokenReviews(), Access: clients.AuthorizationV1().SubjectAccessReviews()}
	logs := testlog.New()
	for _, broken = range []bool{true, false} {
		var seen http.Header
		h := guard.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r.Header }))
		path := fmt.Sprintf("/broken-%v", broken)
		r := httptest.NewRequestWithContext(logs.Context(t.Context()), http.MethodGet, "https://controller.invalid"+path, nil)
		r.Header.Set("Authorization", "Bearer "+secret)
		r.Header.Set("Accept", "text/plain")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if (w.Code == 200) == broken {
			t.Fatalf("the code is %d, broken %v", w.Code, broken)
		}
		if !broken && (seen.Get("Accept") == "" || len(seen.Values("Authorization")) > 0) {
			t.Errorf("the handler got the headers %v, want all but Authorization", seen)
		}
		if r.Header.Get("Authorization") == "" {
			t.Error("the request of the caller was changed")
		}
		if strings.Contains(w.Body.String(), secret) {
			t.Errorf("the response has the token: %s", w.Body)
		}
	}
	for _, denied = range []string{"TokenReview", "SubjectAccessReview"} {
		if got := send(logs.Context(t.Context()), guard.Handler(nil), secret, "/"+denied, anAddr).Code; got != 401 && got != 403 {
			t.Fatalf("the code is %d after a rejected %s", got, denied)
		}
	}
	for _, line := range logs.All() {
		if strings.HasPrefix(line.Message, "Rejected a request") && !strings.Contains(fmt.Sprint(line.Values["reason"]), "repeats the token") {
			t.Errorf("the reason of a rejection is logged as %v", line.Values)
		}
	}
	lines := logs.Find("Cannot review a request")
	if len(lines) != 1 || !strings.Contains(lines[0].Err.Error(), "repeats the token") {
		t.Errorf("the failure is logged as %v, want one line without the text of the error", lines)
	}
	for _, line := range logs.All() {
		if text := fmt.Sprintf("%+v", line); strings.Contains(text, secret) {
			t.Errorf("the log has the token: %s", text)
		}
	}
	found, looked := false, 0
	texts(reflect.ValueOf(guard).Elem(), map[uintptr]bool{}, func(text string) {
		looked++
		found = found || strings.Contains(text, secret)
	}, "Tokens", "Access")
	if found {
		t.Error("the Guard keeps the token")
	}
	if looked == 0 {
		t.Error("the test looks at nothing")
	}
}

// texts calls f with all strings and byte slices that v has, except in the fields.
func texts(v reflect.Value, seen map[uintptr]bool, f func(string), except ...string) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() && !seen[v.Pointer()] {
			seen[v.Pointer()] = true
			texts(v.Elem(), seen, f)
		}
	case reflect.Interface:
		if !v.IsNil() {
			texts(v.Elem(), seen, f)
		}
	case reflect.Struct:
	fields:
		for i := range v.NumField() {
			for _, name := range except {
				if v.Type().Field(i).Name == name {
					continue fields
				}
			}
			texts(v.Field(i), seen, f)
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			texts(it.Key(), seen, f)
			texts(it.Value(), seen, f)
		}
	case reflect.String:
		f(v.String())
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			b := make([]byte, v.Len())
			for i := range b {
				b[i] = byte(v.Index(i).Uint())
			}
			f(string(b))
			return
		}
		for i := range v.Len() {
			texts(v.Index(i), seen, f)
		}
	}
}

// TestReasons: the first rejection of a token, and the first of a user, are one line of log each with the API server's
// reason, because the scraper sees only the code. Bad tokens do not use up the line about rights. Later ones are
// lines of level 2, also with the reason.
func TestReasons(t *testing.T) {
	for _, tc := range []struct {
		name      string
		audiences []string
		status    func(*authenticationv1.TokenReviewStatus)
		access    authorizationv1.SubjectAccessReviewStatus
		want      int
		message   string
		reason    string
	}{
		{
			name: "another audience", audiences: []string{"metrics"}, want: 401, message: "its token is not valid",
			status: func(s *authenticationv1.TokenReviewStatus) {
				*s = authenticationv1.TokenReviewStatus{Error: `[invalid bearer token, token audiences ["https://kubernetes.default.svc"] is invalid for the target audiences ["metrics"]]`}
			},
			reason: `invalid for the target audiences ["metrics"]`,
		},
		{
			name: "a server without audiences", audiences: []string{"metrics"}, want: 401, message: "its token is not valid",
			status: func(s *authenticationv1.TokenReviewStatus) { s.Audiences = nil },
			reason: `the token is for the audiences [], and Guard.Audiences are ["metrics"]`,
		},
		{
			name: "a role that does not exist", want: 403, message: "its user lacks the right",
			access: authorizationv1.SubjectAccessReviewStatus{Reason: `RBAC: clusterrole.rbac.authorization.k8s.io "scraper" not found`},
			reason: `"scraper" not found`,
		},
		{
			name: "a failure of the authorizer", want: 403, message: "its user lacks the right",
			access: authorizationv1.SubjectAccessReviewStatus{Reason: "no opinion", EvaluationError: "webhook failed\n" + strings.Repeat("x", 9000)},
			reason: "webhook failed",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			api := &reviewer{}
			logs := testlog.New()
			guard := api.guard()
			guard.Audiences = tc.audiences
			guard.Access = create[*authorizationv1.SubjectAccessReview](func(_ context.Context, r *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error) {
				r.Status = tc.access
				return r, nil
			})
			h := guard.Handler(nil)
			if tc.want == 403 {
				send(logs.Context(t.Context()), h, "bad", "/metrics", anAddr)
			}
			api.status = tc.status
			for _, path := range []string{"/metrics", "/other"} {
				if got := send(logs.Context(t.Context()), h, "good-1", path, anAddr).Code; got != tc.want {
					t.Fatalf("the code is %d, want %d", got, tc.want)
				}
			}
			var first []testlog.Line
			for _, line := range logs.All() {
				if strings.Contains(line.Message, tc.message) {
					first = append(first, line)
				}
			}
			if len(first) != 1 || first[0].Level != 0 || first[0].Values["path"] != "/metrics" {
				t.Errorf("%d lines have %q, want one of level 0: %+v", len(first), tc.message, first)
			}
			lines := logs.All()
			last := lines[len(lines)-1]
			if last.Level != 2 || last.Values["path"] != "/other" {
				t.Errorf("the second rejection is logged as %+v, want a line of level 2", last)
			}
			for _, line := range append(first, last) {
				if reason := fmt.Sprint(line.Values["reason"]); !strings.Contains(reason, tc.reason) || len(reason) > 2000 || strings.Contains(reason, "\n") {
					t.Errorf("the line %q has the reason %q, want %q", line.Message, reason, tc.reason)
				}
			}
		})
	}
}

// TestMissingToken: the first request without a token is a line of log, because the scraper sees only the code.
func TestMissingToken(t *testing.T) {
	api := &reviewer{}
	logs := testlog.New()
	h := api.guard().Handler(nil)
	for _, path := range []string{"/metrics", "/other"} {
		if got := send(logs.Context(t.Context()), h, "", path, anAddr).Code; got != http.StatusUnauthorized {
			t.Fatalf("the code is %d, want 401", got)
		}
	}
	if lines := logs.All(); len(lines) != 1 || lines[0].Level != 0 || lines[0].Values["path"] != "/metrics" || !strings.Contains(lines[0].Message, "no bearer token") {
		t.Errorf("lines: %+v", lines)
	}
}

// TestMissingRight: the first request of a user without the right is one line of log with the cure, because a
// scraper without its role is otherwise seen only at the scraper. Later ones are lines of level 2.
func TestMissingRight(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/tokenreviews") {
			_, _ = io.WriteString(w, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{"authenticated":true,"user":{"username":"scraper"}}}`)
			return
		}
		_, _ = io.WriteString(w, `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":false}}`)
	}))
	defer api.Close()
	clients, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	guard := &serve.Guard{Tokens: clients.AuthenticationV1().TokenReviews(), Access: clients.AuthorizationV1().SubjectAccessReviews()}
	logs := testlog.New()
	h := guard.Handler(nil)
	for _, path := range []string{"/metrics", "/metrics", "/other"} {
		r := httptest.NewRequestWithContext(logs.Context(t.Context()), http.MethodGet, "https://controller.invalid"+path, nil)
		r.Header.Set("Authorization", "Bearer abc")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusForbidden {
			t.Fatalf("the code is %d, want 403", w.Code)
		}
	}
	var first []testlog.Line
	for _, line := range logs.All() {
		switch {
		case line.Level == 0 && strings.Contains(line.Message, "nonResourceURL"):
			first = append(first, line)
		case line.Level != 2: // lines of each request are decisions
			t.Errorf("the line %q has the level %d, want 2", line.Message, line.Level)
		}
	}
	if len(first) != 1 || first[0].Values["user"] != "scraper" || first[0].Values["path"] != "/metrics" {
		t.Errorf("lines: %+v", logs.All())
	}
}
