package consistency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/internal/calls"
)

var (
	widgets     = schema.GroupResource{Group: "example.com", Resource: "widgets"}
	deployments = schema.GroupResource{Group: "apps", Resource: "deployments"}
	namespaces  = schema.GroupResource{Resource: "namespaces"}
)

// unsent is the error of a transport that knows whether it sent the request.
type unsent bool

func (u unsent) NotSent() bool { return bool(u) }
func (unsent) Error() string   { return "refused" }

// TestWrapRecords proves C3, C4.
func TestWrapRecords(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	reset := &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	pb := protobufOf(t, &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: "42", Labels: map[string]string{"resourceVersion": "7"}},
		Spec:       corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "c"}}},
	})
	pbDeployment := protobufOf(t, &appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: metav1.ObjectMeta{ResourceVersion: "43"}})
	statusObject := &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, ListMeta: metav1.ListMeta{ResourceVersion: "42"}, Status: "Success"}
	for _, tc := range []struct {
		name      string
		method    string
		path      string
		answer    roundTripper
		recorded  string
		ambiguous []schema.GroupResource
	}{
		{name: "create", method: "POST", path: "/api/v1/namespaces/ns/pods", answer: respond(201, jsonType, object("42")), recorded: "pods@42"},
		{name: "update", method: "PUT", path: "/api/v1/namespaces/ns/pods/n", answer: respond(200, jsonType, object("42")), recorded: "pods@42"},
		{name: "patch, group, no namespace", method: "PATCH", path: "/apis/example.com/v1/widgets/n", answer: respond(200, "application/json;charset=utf-8", object("42")), recorded: "widgets.example.com@42"},
		{name: "status", method: "PUT", path: "/apis/example.com/v1/namespaces/ns/widgets/n/status", answer: respond(200, jsonType, object("42")), recorded: "widgets.example.com@42"},
		{name: "behind a prefix", method: "PUT", path: "/k8s/clusters/c-1/apis/apps/v1/namespaces/ns/deployments/n/scale", answer: respond(200, jsonType, object("42")), recorded: "deployments.apps@42"},
		{name: "a namespace", method: "POST", path: "/api/v1/namespaces", answer: respond(201, jsonType, object("42")), recorded: "namespaces@42"},
		{name: "a namespace's finalize", method: "PUT", path: "/api/v1/namespaces/n/finalize", answer: respond(200, jsonType, object("42")), recorded: "namespaces@42"},
		{name: "protobuf", method: "POST", path: "/api/v1/namespaces/ns/pods", answer: respond(201, pbType, pb), recorded: "pods@42"},
		{name: "CBOR", method: "POST", path: "/api/v1/namespaces/ns/pods", answer: respond(201, cborType, cborOf(t, examplePod("42"))), recorded: "pods@42"},
		{name: "CBOR of text strings", method: "POST", path: "/api/v1/namespaces/ns/pods", answer: respond(201, cborType, []byte("\xa1\x68metadata\xa1\x6fresourceVersion\x6242")), recorded: "pods@42"},
		{name: "CBOR of unknown lengths", method: "POST", path: "/api/v1/namespaces/ns/pods", answer: respond(201, cborType, []byte("\xbf\x41a\x9f\x01\xff\x68metadata\xbf\x4fresourceVersion\x4242\xff\xff")), recorded: "pods@42"},
		{name: "JSON that is escaped", method: "POST", path: "/api/v1/namespaces/ns/pods", answer: respond(201, jsonType, []byte(`{"a":"\\\"}{[","metad\u0061ta" : {"labels":{"resourceVersion":"7"}, "resourceVersion" : "\u00342"}}`)), recorded: "pods@42"},
		{name: "the case of a name matters", method: "POST", path: "/api/v1/namespaces/ns/pods", answer: respond(201, jsonType, []byte(`{"metadata":{"resourceVersion":"42","resourceversion":"7"},"Metadata":{"resourceVersion":"8"}}`)), recorded: "pods@42"},
		{name: "protobuf of a group", method: "PATCH", path: "/apis/apps/v1/namespaces/ns/deployments/n", answer: respond(200, pbType, pbDeployment), recorded: "deployments.apps@43"},
		{name: "delete that answers with the object", method: "DELETE", path: "/api/v1/namespaces/ns/pods/n", answer: respond(200, jsonType, object("42")), recorded: "pods@42"},
		{name: "delete that answers with a status", method: "DELETE", path: "/api/v1/namespaces/ns/pods/n", answer: respond(200, jsonType, []byte(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}`)), ambiguous: []schema.GroupResource{pods}},
		{name: "the same in protobuf", method: "DELETE", path: "/api/v1/namespaces/ns/pods/n", answer: respond(200, pbType, protobufOf(t, statusObject)), ambiguous: []schema.GroupResource{pods}},
		{name: "eviction", method: "POST", path: "/api/v1/namespaces/ns/pods/n/eviction", answer: respond(201, jsonType, []byte(`{"kind":"Status","metadata":{}}`)), ambiguous: []schema.GroupResource{pods}},
		{name: "binding", method: "POST", path: "/api/v1/namespaces/ns/pods/n/binding", answer: respond(201, jsonType, []byte(`{"kind":"Status","metadata":{}}`)), ambiguous: []schema.GroupResource{pods}},
		{name: "binding of the old form", method: "POST", path: "/api/v1/namespaces/ns/bindings", answer: respond(201, jsonType, []byte(`{"kind":"Status","metadata":{}}`)), ambiguous: []schema.GroupResource{pods}},
		{name: "a subresource that answers with its own kind", method: "POST", path: "/apis/example.com/v1/namespaces/ns/widgets/n/restart", answer: respond(201, jsonType, []byte(`{"kind":"Restart","metadata":{"name":"n"}}`)), ambiguous: []schema.GroupResource{widgets}},
		{name: "an object without a version", method: "PUT", path: "/apis/example.com/v1/namespaces/ns/widgets/n", answer: respond(200, jsonType, []byte(`{"kind":"Widget","metadata":{"name":"n","uid":"a"}}`)), ambiguous: []schema.GroupResource{widgets}},
		{name: "a namespace's last finalize", method: "PUT", path: "/api/v1/namespaces/n/finalize", answer: respond(200, jsonType, []byte(`{"kind":"Namespace","metadata":{"name":"n","uid":"a","resourceVersion":"1","deletionTimestamp":"2026-01-01T00:00:00Z"}}`)), ambiguous: []schema.GroupResource{namespaces}},
		{name: "a token", method: "POST", path: "/api/v1/namespaces/ns/pods/n/token", answer: respond(201, jsonType, []byte(`{"kind":"TokenRequest","metadata":{}}`))},

		{name: "read", method: "GET", path: "/api/v1/namespaces/ns/pods/n", answer: respond(200, jsonType, object("42"))},
		{name: "dry run", method: "PUT", path: "/api/v1/namespaces/ns/pods/n?dryRun=All", answer: respond(200, jsonType, object("42"))},
		{name: "resource without a store", method: "POST", path: "/api/v1/namespaces/ns/events", answer: respond(201, jsonType, object("42"))},
		{name: "same name, other group", method: "POST", path: "/apis/metrics.k8s.io/v1/namespaces/ns/pods", answer: respond(201, jsonType, object("42"))},
		{name: "not the API", method: "POST", path: "/openapi/v3/pods", answer: respond(200, jsonType, object("42"))},
		{name: "conflict", method: "PUT", path: "/api/v1/namespaces/ns/pods/n", answer: respond(409, jsonType, object("42"))},
		{name: "throttled", method: "PUT", path: "/api/v1/namespaces/ns/pods/n", answer: respond(429, jsonType, object("42"))},
		{name: "never connected", method: "POST", path: "/api/v1/namespaces/ns/pods", answer: func(*http.Request) (*http.Response, error) { return nil, fmt.Errorf("post: %w", refused) }},

		{name: "refused by a transport", method: "POST", path: "/api/v1/namespaces/ns/pods", answer: func(*http.Request) (*http.Response, error) { return nil, fmt.Errorf("post: %w", unsent(true)) }},

		{name: "an error that may be of a request", method: "POST", path: "/api/v1/namespaces/ns/pods", answer: func(*http.Request) (*http.Response, error) { return nil, unsent(false) }, ambiguous: []schema.GroupResource{pods}},
		{name: "connection reset", method: "POST", path: "/api/v1/namespaces/ns/pods", answer: func(*http.Request) (*http.Response, error) { return nil, reset }, ambiguous: []schema.GroupResource{pods}},
		{name: "ctx done", method: "POST", path: "/api/v1/namespaces/ns/pods", answer: func(*http.Request) (*http.Response, error) { return nil, context.Canceled }, ambiguous: []schema.GroupResource{pods}},
		{name: "503", method: "POST", path: "/api/v1/namespaces/ns/pods", answer: respond(503, jsonType, nil), ambiguous: []schema.GroupResource{pods}},
		{name: "answer cut off", method: "POST", path: "/api/v1/namespaces/ns/pods", answer: respond(201, jsonType, object("42")[:40]), ambiguous: []schema.GroupResource{pods}},
		{name: "more after the object", method: "POST", path: "/api/v1/namespaces/ns/pods", answer: respond(201, jsonType, []byte(`{"metadata":{"resourceVersion":"42"}}{`)), ambiguous: []schema.GroupResource{pods}},
		{name: "protobuf cut off", method: "POST", path: "/api/v1/namespaces/ns/pods", answer: respond(201, pbType, pb[:20]), ambiguous: []schema.GroupResource{pods}},
		{name: "no protobuf", method: "POST", path: "/api/v1/namespaces/ns/pods", answer: respond(201, pbType, object("42")), ambiguous: []schema.GroupResource{pods}},
		{name: "CBOR cut off", method: "POST", path: "/api/v1/namespaces/ns/pods", answer: respond(201, cborType, []byte{0xd9, 0xd9, 0xf7}), ambiguous: []schema.GroupResource{pods}},
		{name: "no CBOR", method: "POST", path: "/api/v1/namespaces/ns/pods", answer: respond(201, cborType, object("42")), ambiguous: []schema.GroupResource{pods}},
		{name: "another type", method: "POST", path: "/api/v1/namespaces/ns/pods", answer: respond(201, "application/yaml", object("42")), ambiguous: []schema.GroupResource{pods}},
		{name: "longer than is held", method: "POST", path: "/api/v1/namespaces/ns/pods", answer: respond(201, jsonType, append(object("42"), bytes.Repeat([]byte(" "), 9<<20)...)), ambiguous: []schema.GroupResource{pods}},
		{name: "deletion of a collection", method: "DELETE", path: "/api/v1/namespaces/ns/pods", answer: respond(200, jsonType, object("42")), ambiguous: []schema.GroupResource{pods}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := tracked()
			do := func(ctx context.Context, rt http.RoundTripper) (string, error) {
				req, err := http.NewRequestWithContext(ctx, tc.method, "https://server"+tc.path, nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := rt.RoundTrip(req)
				if err != nil {
					return "", err
				}
				body, err := io.ReadAll(resp.Body)
				return string(body), errors.Join(err, resp.Body.Close())
			}
			want, wantErr := do(t.Context(), tc.answer)
			got, gotErr := do(s.Begin(t.Context(), owner), s.Wrap(tc.answer))
			if got != want || fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
				t.Errorf("the caller got %.100q, %v, want %.100q, %v as without Wrap", got, gotErr, want, wantErr)
			}
			if got := missing(s, owner); got != tc.recorded {
				t.Errorf("recorded %q, want %q", got, tc.recorded)
			}
			if diff := cmp.Diff(tc.ambiguous, s.Ambiguous(owner)); diff != "" {
				t.Errorf("Ambiguous (-want +got):\n%s", diff)
			}

			// Without Begin, or with another store's, nothing is recorded.
			plain := tracked()
			_, _ = do(s.Begin(t.Context(), owner), plain.Wrap(tc.answer))
			_, _ = do(t.Context(), plain.Wrap(tc.answer))
			if got := missing(plain, owner); got != "" || len(plain.Ambiguous(owner)) > 0 {
				t.Errorf("recorded %q and %v without Begin", got, plain.Ambiguous(owner))
			}
		})
	}
}

// A stream must be neither read nor held.
func TestWrapLeavesStreamsAlone(t *testing.T) {
	s := tracked()
	for _, sub := range []string{"exec", "attach", "portforward", "proxy", "proxy/some/path", "log"} {
		body := &unreadable{}
		rt := s.Wrap(roundTripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}, nil
		}))
		req, _ := http.NewRequestWithContext(s.Begin(t.Context(), owner), "POST", "https://server/api/v1/namespaces/ns/pods/n/"+sub, nil)
		resp, err := rt.RoundTrip(req)
		if err != nil || resp.Body != io.ReadCloser(body) || body.read {
			t.Errorf("%s: the body was touched, or %v", sub, err)
		}
	}
}

type unreadable struct{ read bool }

func (u *unreadable) Read([]byte) (int, error) { u.read = true; return 0, io.EOF }
func (u *unreadable) Close() error             { return nil }

// The caller gets the bytes before an error, the error itself, and closes the body.
//
// Proves C3.
func TestWrapKeepsBodyErrors(t *testing.T) {
	s := tracked()
	broken := errors.New("broken")
	closed := false
	rt := s.Wrap(roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: struct {
			io.Reader
			io.Closer
		}{io.MultiReader(strings.NewReader("half"), &failing{broken}), closer(func() { closed = true })}}, nil
	}))
	req, _ := http.NewRequestWithContext(s.Begin(t.Context(), owner), "POST", "https://server/api/v1/namespaces/ns/pods", nil)
	resp, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if string(body) != "half" || err != broken {
		t.Errorf("body = %q, %v, want half, broken", body, err)
	}
	if _ = resp.Body.Close(); !closed {
		t.Error("Close did not reach the body")
	}
	if got := s.Ambiguous(owner); !slices.Equal(got, []schema.GroupResource{pods}) {
		t.Errorf("Ambiguous = %v, want pods", got)
	}
}

// An answer without end is not held without end.
//
// Proves C3.
func TestWrapHoldsLittle(t *testing.T) {
	s := tracked()
	body := &endless{}
	rt := s.Wrap(roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(body)}, nil
	}))
	req, _ := http.NewRequestWithContext(s.Begin(t.Context(), owner), "POST", "https://server/api/v1/namespaces/ns/pods", nil)
	if _, err := rt.RoundTrip(req); err != nil {
		t.Fatal(err)
	}
	if body.n > 8<<20+1 {
		t.Errorf("%d bytes were read ahead, want at most 8 MiB and one", body.n)
	}
}

type endless struct{ n int }

func (e *endless) Read(p []byte) (int, error) {
	e.n += len(p)
	if e.n > 64<<20 {
		return 0, io.ErrUnexpectedEOF
	}
	return copy(p, bytes.Repeat([]byte(" "), len(p))), nil
}

// failing fails once, and looks ended afterwards.
type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) {
	defer func() { f.err = io.EOF }()
	return 0, f.err
}

type closer func()

func (c closer) Close() error { c(); return nil }

func TestWrapIsFoundByClientGo(t *testing.T) {
	inner := &http.Transport{}
	wrapped, ok := tracked().Wrap(inner).(utilnet.RoundTripperWrapper)
	if !ok || wrapped.WrappedRoundTripper() != http.RoundTripper(inner) {
		t.Error("the inner transport is not found through WrappedRoundTripper")
	}
	for _, none := range []http.RoundTripper{nil, (*http.Transport)(nil)} {
		if wrapped := tracked().Wrap(none).(utilnet.RoundTripperWrapper).WrappedRoundTripper(); wrapped != http.DefaultTransport {
			t.Errorf("Wrap(%#v) wraps %v, want http.DefaultTransport", none, wrapped)
		}
	}
}

// What tells more about an ambiguous write, and what does not.
//
// Proves C4.
func TestAmbiguousIsSettled(t *testing.T) {
	send := func(t *testing.T, s *consistency.Store, answer roundTripper) {
		t.Helper()
		req, _ := http.NewRequestWithContext(s.Begin(t.Context(), owner), "POST", "https://server/api/v1/namespaces/ns/pods", nil)
		if resp, err := s.Wrap(answer).RoundTrip(req); err == nil {
			resp.Body.Close()
		}
	}
	lost := respond(500, "application/json", nil)
	for _, tc := range []struct {
		name    string
		do      func(t *testing.T, s *consistency.Store)
		settled bool
	}{
		{"nothing", func(*testing.T, *consistency.Store) {}, false},
		{"a live read", func(_ *testing.T, s *consistency.Store) { s.WroteAt(owner, "u", pods, "50") }, true},
		{"a read without a version", func(_ *testing.T, s *consistency.Store) { s.WroteAt(owner, "u", pods, "") }, false},
		{"another resource", func(_ *testing.T, s *consistency.Store) { s.WroteAt(owner, "u", secrets, "50") }, false},
		{"a later write", func(t *testing.T, s *consistency.Store) { send(t, s, respond(201, "application/json", object("50"))) }, true},
		{"clear", func(_ *testing.T, s *consistency.Store) { s.Clear(owner, "") }, true},
		{"being asked", func(_ *testing.T, s *consistency.Store) { _ = s.EnsureReady(owner); s.End(owner) }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := tracked()
			send(t, s, lost)
			tc.do(t, s)
			if settled := len(s.Ambiguous(owner)) == 0; settled != tc.settled {
				t.Errorf("settled = %v, want %v", settled, tc.settled)
			}
		})
	}

	t.Run("a write that was under way already", func(t *testing.T) {
		s := tracked()
		send(t, s, func(req *http.Request) (*http.Response, error) {
			send(t, s, lost)
			return respond(201, "application/json", object("50"))(req)
		})
		if len(s.Ambiguous(owner)) != 1 {
			t.Error("settled by a version from before")
		}
	})

	t.Run("time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := tracked()
			send(t, s, lost)
			fill := func(from string) {
				for i := range 500 {
					s.WroteAt(types.NamespacedName{Namespace: from, Name: fmt.Sprint(i)}, "u", pods, "1")
				}
			}
			time.Sleep(10 * time.Minute)
			fill("a")
			if len(s.Ambiguous(owner)) != 1 {
				t.Error("forgotten after ten minutes or less")
			}
			time.Sleep(time.Minute)
			fill("b")
			if len(s.Ambiguous(owner)) != 0 {
				t.Error("remembered for ever")
			}
		})
	})
}

// A write that may have been carried out is not offered to client-go for a repetition.
func TestWrapTakesRetryAfter(t *testing.T) {
	for _, tc := range []struct {
		name   string
		method string
		path   string
		code   int
		owned  bool
		want   string
	}{
		{name: "create", method: "POST", path: "/api/v1/namespaces/ns/pods", code: 503, owned: true, want: ""},
		{name: "patch", method: "PATCH", path: "/api/v1/namespaces/ns/pods/n", code: 500, owned: true, want: ""},
		{name: "not carried out", method: "POST", path: "/api/v1/namespaces/ns/pods", code: 429, owned: true, want: "7"},
		{name: "read", method: "GET", path: "/api/v1/namespaces/ns/pods", code: 503, owned: true, want: "7"},
		{name: "no store", method: "POST", path: "/api/v1/namespaces/ns/events", code: 503, owned: true, want: "7"},
		{name: "no owner", method: "POST", path: "/api/v1/namespaces/ns/pods", code: 503, want: "7"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := tracked()
			ctx := t.Context()
			if tc.owned {
				ctx = s.Begin(ctx, owner)
			}
			req, err := http.NewRequestWithContext(ctx, tc.method, "https://server"+tc.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := s.Wrap(roundTripper(func(req *http.Request) (*http.Response, error) {
				resp, err := respond(tc.code, jsonType, []byte("{}"))(req)
				resp.Header.Set("Retry-After", "7")
				return resp, err
			})).RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if got := resp.Header.Get("Retry-After"); got != tc.want {
				t.Errorf("Retry-After = %q, want %q", got, tc.want)
			}
		})
	}
}

// A deletion and an eviction say in their bodies that they are dry runs: they change
// nothing.
//
// Proves C4 and C1.
func TestWrapDryRunOfADeletion(t *testing.T) {
	options := &metav1.DeleteOptions{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}, DryRun: []string{metav1.DryRunAll}}
	evicted := &policyv1.Eviction{TypeMeta: metav1.TypeMeta{APIVersion: "policy/v1", Kind: "Eviction"}, ObjectMeta: metav1.ObjectMeta{Name: "one"}, DeleteOptions: options}
	for _, tc := range []struct {
		method, path string
		body         k8sruntime.Object
	}{
		{http.MethodDelete, "/api/v1/namespaces/ns/pods/one", options},
		{http.MethodDelete, "/api/v1/namespaces/ns/pods", options},
		{http.MethodPost, "/api/v1/namespaces/ns/pods/one/eviction", evicted},
	} {
		for _, e := range encodings {
			store := consistency.New(consistency.Config{Stores: stores{pods: at("5")}})
			answer := respond(200, jsonType, []byte(`{"kind":"Status","apiVersion":"v1","status":"Success","details":{"name":"one","kind":"pods","uid":"a"}}`))
			req, err := http.NewRequestWithContext(store.Begin(t.Context(), owner), tc.method, "https://127.0.0.1"+tc.path, bytes.NewReader(e.encode(t, tc.body)))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", e.contentType)
			if _, err := store.Wrap(answer).RoundTrip(req); err != nil {
				t.Fatal(err)
			}
			if err := store.EnsureReady(owner); err != nil || len(store.Ambiguous(owner)) > 0 {
				t.Errorf("after a dry run of %s %s in %s: %v, ambiguous %v; want nothing recorded", tc.method, tc.path, e.name, err, store.Ambiguous(owner))
			}
		}
	}
}

// What one store knows of its owner says nothing of another store's.
//
// Proves C5.
func TestLiveReadIsOfOneStore(t *testing.T) {
	a := consistency.New(consistency.Config{Stores: stores{pods: at("5")}})
	b := consistency.New(consistency.Config{Stores: stores{pods: at("5")}})
	a.WroteAt(owner, "", pods, "10")
	if ctx := b.Begin(a.Begin(t.Context(), owner), owner); consistency.LiveRead(ctx) {
		t.Error("LiveRead is true in a run of a store that knows nothing")
	}
	if ctx := a.Begin(b.Begin(t.Context(), owner), owner); !consistency.LiveRead(ctx) {
		t.Error("LiveRead is false in a run of a store that is behind")
	}
}

// A store is older than the writes of the last leader until it has reached the version that the
// context of the leader has.
//
// Proves C5, C9.
func TestLiveReadOfNewLeader(t *testing.T) {
	ctx := func(version string) context.Context {
		return calls.WithSince(t.Context(), version)
	}
	podVersion, secretVersion := at("5"), at("9")
	s := consistency.New(consistency.Config{Stores: stores{pods: podVersion, secrets: secretVersion}})
	check := func(when, since string, want bool) {
		t.Helper()
		if got := consistency.LiveRead(s.Begin(ctx(since), owner)); got != want {
			t.Errorf("%s: LiveRead = %t, want %t", when, got, want)
		}
	}
	check("a store is behind", "7", true)
	check("no store is behind", "5", false)
	check("a version that is none", "x", false)
	secretVersion.set("20")
	check("one of two has caught up", "10", true)
	podVersion.set("10")
	check("both have", "10", false)
	check("a later term", "11", true)
	podVersion.set("11")
	check("a later term, caught up", "11", false)
	podVersion.set("8")
	check("a restore of etcd, reached before", "11", false)
	podVersion.set("")
	check("a store that also has an older cache now", "11", true)
	podVersion.set("11")
	check("that cache has caught up", "11", false)

	unstarted := cache.NewSharedInformer(&cache.ListWatch{}, &corev1.ConfigMap{}, 0)
	if err := s.AddInformer(corev1.Resource("configmaps"), unstarted); err != nil {
		t.Fatal(err)
	}
	check("a store without a version was added", "11", true)
}
