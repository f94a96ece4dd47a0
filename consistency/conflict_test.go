package consistency_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// How long a refused write holds its owner back, and what the runs are told after it. The
// cache is at version 10, and has ns/one at version 9.
//
// Proves C6 and C5.
func TestRefused(t *testing.T) {
	one := types.NamespacedName{Namespace: "ns", Name: "one"}
	unknown := types.NamespacedName{Namespace: "ns", Name: "unknown"}
	refused := func(object types.NamespacedName, rv string) func(*consistency.Store) {
		return func(s *consistency.Store) { s.Refused(owner, "u", pods, object, rv) }
	}
	both := func(all ...func(*consistency.Store)) func(*consistency.Store) {
		return func(s *consistency.Store) {
			for _, f := range all {
				f(s)
			}
		}
	}
	update := func(item any) func(*consistency.Store, cache.Store) {
		return func(_ *consistency.Store, c cache.Store) { _ = c.Update(item) }
	}
	const second, bound = time.Second, 2 * time.Minute
	for _, tc := range []struct {
		name   string
		before func(s *consistency.Store)
		store  func(c cache.Store) interface{ LastStoreSyncResourceVersion() string } // nil means c itself
		steps  []func(s *consistency.Store, c cache.Store)                            // one each second
		took   time.Duration
		live   bool // in the first run
		always bool // in every run: the cache is still behind
	}{
		{name: "the cache becomes newer", before: refused(one, "9"), took: 2 * second, steps: []func(*consistency.Store, cache.Store){
			update(podWith("two", "c", "11")), update(podWith("one", "a", "12")),
		}},
		{name: "the cache was newer already", before: refused(one, "8")},
		{name: "the cache is older", before: refused(one, "20"), took: 3 * second, steps: []func(*consistency.Store, cache.Store){
			update(podWith("one", "a", "12")), update(podWith("one", "a", "20")), update(podWith("one", "a", "21")),
		}},
		{name: "a longer number is newer", before: refused(one, "9"), took: second, steps: []func(*consistency.Store, cache.Store){
			update(podWith("one", "a", "100")),
		}},
		{name: "the object goes", before: refused(one, "9"), took: second, steps: []func(*consistency.Store, cache.Store){
			func(_ *consistency.Store, c cache.Store) { _ = c.Delete(podWith("one", "a", "12")) },
		}},
		{name: "the object comes, and then newer", before: refused(unknown, "20"), took: 3 * second, steps: []func(*consistency.Store, cache.Store){
			update(podWith("two", "c", "11")), update(podWith("unknown", "x", "20")), update(podWith("unknown", "x", "22")),
		}},
		{name: "the object comes and goes", before: refused(unknown, "20"), took: 2 * second, steps: []func(*consistency.Store, cache.Store){
			update(podWith("unknown", "x", "20")),
			func(_ *consistency.Store, c cache.Store) { _ = c.Delete(podWith("unknown", "x", "21")) },
		}},
		{name: "the object goes, and comes again", before: refused(one, "20"), took: 3 * second, steps: []func(*consistency.Store, cache.Store){
			func(_ *consistency.Store, c cache.Store) { _ = c.Delete(podWith("one", "a", "12")) },
			update(podWith("one", "b", "20")), update(podWith("one", "b", "21")),
		}},
		{name: "the object is never shown", before: refused(unknown, "20"), took: second, live: true, steps: []func(*consistency.Store, cache.Store){
			func(_ *consistency.Store, c cache.Store) { c.Bookmark("20") },
		}},
		{name: "the object is not among those of the cache", before: refused(unknown, "10"), live: true},
		{name: "the cache stands still", before: refused(one, "9"), took: bound, always: true},
		{name: "a cache without the object stands still", before: refused(unknown, "20"), took: bound, always: true},
		{name: "no version", before: refused(one, ""), live: true},
		{name: "any version", before: refused(one, "0"), live: true},
		{name: "the version of no object", before: refused(one, kube.NoVersion), live: true},
		{name: "not a version", before: refused(one, "v9"), live: true},
		{name: "no store", before: func(s *consistency.Store) { s.Refused(owner, "u", secrets, one, "9") }, live: true},
		{name: "a store that cannot be asked", before: refused(one, "9"), live: true,
			store: func(cache.Store) interface{ LastStoreSyncResourceVersion() string } { return at("10") }},
		{name: "a store that is broken", before: refused(one, "9"), took: bound, always: true,
			store: func(c cache.Store) interface{ LastStoreSyncResourceVersion() string } { return broken{c} }},
		{name: "an item without metadata", before: refused(one, "9"), took: bound, always: true, store: func(cache.Store) interface{ LastStoreSyncResourceVersion() string } {
			c := cache.NewStore(func(any) (string, error) { return "ns/one", nil })
			_ = c.Add(&struct{ metav1.TypeMeta }{})
			return c
		}},
		{name: "two objects", before: both(refused(one, "9"), refused(types.NamespacedName{Namespace: "ns", Name: "two"}, "10")), took: 2 * second,
			steps: []func(*consistency.Store, cache.Store){update(podWith("one", "a", "11")), update(podWith("two", "c", "12"))}},
		{name: "a newer version refused after", before: both(refused(one, "9"), refused(one, "11")), took: 2 * second,
			steps: []func(*consistency.Store, cache.Store){update(podWith("one", "a", "11")), update(podWith("one", "a", "12"))}},
		{name: "an older version refused after", before: both(refused(one, "11"), refused(one, "9")), took: 2 * second,
			steps: []func(*consistency.Store, cache.Store){update(podWith("one", "a", "11")), update(podWith("one", "a", "12"))}},
		{name: "a write as well", before: both(refused(one, "9"), func(s *consistency.Store) { s.WroteAt(owner, "u", pods, "13") }), took: 2 * second,
			steps: []func(*consistency.Store, cache.Store){update(podWith("one", "a", "12")), update(podWith("two", "c", "13"))}},
		{name: "refused again meanwhile", before: refused(one, "9"), took: bound + second, always: true, steps: []func(*consistency.Store, cache.Store){
			func(s *consistency.Store, _ cache.Store) { s.Refused(owner, "u", pods, one, "9") },
		}},
		{name: "cleared", before: refused(one, "9"), took: second, steps: []func(*consistency.Store, cache.Store){
			func(s *consistency.Store, _ cache.Store) { s.Clear(owner, "u") },
		}},
		{name: "an owner that was replaced", before: both(refused(one, "9"), func(s *consistency.Store) { s.WroteAt(owner, "v", pods, "1") })},
		{name: "ten minutes later", before: both(refused(one, ""), func(*consistency.Store) { time.Sleep(10*time.Minute + 1) })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := cacheOf(t, podWith("one", "a", "9"), podWith("two", "c", "10"))
				var store interface{ LastStoreSyncResourceVersion() string } = c
				if tc.store != nil {
					store = tc.store(c)
				}
				var told waits
				s := consistency.New(consistency.Config{Stores: stores{pods: store}, Metrics: &told})
				tc.before(s)
				for n, step := range tc.steps {
					time.AfterFunc(time.Duration(n+1)*second, func() { step(s, c); s.Handler().OnUpdate(nil, nil) })
				}
				start := time.Now()
				if woken := make(chan struct{}); !s.Ready(owner, func() { close(woken) }) {
					if err := s.EnsureReady(owner); err == nil {
						t.Error("EnsureReady = nil although Ready = false")
					}
					<-woken
				}
				if took := time.Since(start); took != tc.took {
					t.Errorf("held back for %v, want %v", took, tc.took)
				}
				if want := fmt.Sprintf("%v timedOut=%v", tc.took, tc.took >= bound); tc.took > 0 && !slices.Equal(told, waits{want}) {
					t.Errorf("Metrics = %v, want %q", told, want)
				}
				for run := range 3 {
					if !s.Ready(owner, nil) {
						t.Errorf("run %d: Ready = false", run)
					}
					want := tc.always || tc.live && run == 0
					if got := consistency.LiveRead(s.Begin(t.Context(), owner)); got != want {
						t.Errorf("run %d: LiveRead = %v, want %v", run, got, want)
					}
					s.End(owner)
				}
				time.Sleep(bound) // for what is left of the steps
			})
		})
	}
}

// If no cache ever shows the reason of a conflict, as of one that a webhook invents, the key waits for it
// once, and reads live for ten more minutes. Each write of the key begins a wait for that write alone.
//
// Proves C5, C6.
func TestRefusedHoldsOnce(t *testing.T) {
	const bound = 2 * time.Minute
	synctest.Test(t, func(t *testing.T) {
		c := cacheOf(t, podWith("one", "a", "9"), podWith("two", "c", "10"))
		var told waits
		s := consistency.New(consistency.Config{Stores: stores{pods: c}, Metrics: &told})
		one := types.NamespacedName{Namespace: "ns", Name: "one"}
		// run makes a call after the wait that it must have, and a write in it.
		run := func(when string, wait time.Duration, live bool, writes string) {
			t.Helper()
			start := time.Now()
			if woken := make(chan struct{}); !s.Ready(owner, func() { close(woken) }) {
				<-woken
			}
			if took := time.Since(start); took != wait {
				t.Errorf("%s: held back for %v, want %v", when, took, wait)
			}
			if got := consistency.LiveRead(s.Begin(t.Context(), owner)); got != live {
				t.Errorf("%s: LiveRead = %t, want %t", when, got, live)
			}
			s.WroteAt(owner, "u", pods, writes)
			s.End(owner)
		}
		show := func(rv string) { _ = c.Update(podWith("two", "c", rv)) }
		s.Refused(owner, "u", pods, one, "5000")
		run("the conflict", bound, true, "11")
		show("11")
		run("after the write of that call", 0, true, "12")
		run("the cache does not show the next write", bound, true, "12")
		show("12")
		if err := s.EnsureReady(owner); err == nil || !strings.Contains(err.Error(), `a write at version "5000" was refused`) {
			t.Errorf("EnsureReady = %v: MaxWait does not apply to it", err)
		}
		s.Refused(owner, "u", pods, one, "9")
		time.AfterFunc(time.Second, func() { _ = c.Update(podWith("one", "a", "13")); s.Handler().OnUpdate(nil, nil) })
		run("another conflict, which the cache shows", time.Second, false, "13")

		s.Refused(owner, "u", pods, one, "5000")
		run("the conflict again", bound, true, "13")
		time.Sleep(10 * time.Minute)
		run("ten minutes later", 0, true, "13")
		time.Sleep(time.Second)
		run("it is dropped, and the next call reads live", 0, true, "13")
		run("the last call", 0, false, "13")
		if want := (waits{"2m0s timedOut=true", "2m0s timedOut=true", "1s timedOut=false", "2m0s timedOut=true"}); !slices.Equal(told, want) {
			t.Errorf("Metrics = %v, want %v", told, want)
		}
	})
}

// What a transport makes of answers that refuse, for every form of request and every
// encoding of the answer.
//
// Proves C6 and C5.
func TestWrapRefused(t *testing.T) {
	status := func(code int, reason metav1.StatusReason, kind, name string, causes ...metav1.CauseType) *metav1.Status {
		s := &metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason,
			Details: &metav1.StatusDetails{Kind: kind, Name: name},
		}
		for _, c := range causes {
			s.Details.Causes = append(s.Details.Causes, metav1.StatusCause{Type: c})
		}
		return s
	}
	conflict := status(409, metav1.StatusReasonConflict, "pods", "one")
	pod := podWith("one", "a", "9")
	merge, strategic, jsonPatch, apply := string(types.MergePatchType), string(types.StrategicMergePatchType), string(types.JSONPatchType), string(types.ApplyPatchType)
	uid, rv := types.UID("a"), "9"
	options := func(p *metav1.Preconditions) *metav1.DeleteOptions {
		return &metav1.DeleteOptions{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}, Preconditions: p}
	}
	versioned := options(&metav1.Preconditions{ResourceVersion: &rv})
	const waits, live, nothing = "pods ns/one 9", "live", ""
	const evict, bind = "/api/v1/namespaces/ns/pods/one/eviction", "/api/v1/namespaces/ns/pods/one/binding"
	evicted := func(p *metav1.Preconditions) *policyv1.Eviction {
		return &policyv1.Eviction{TypeMeta: metav1.TypeMeta{APIVersion: "policy/v1", Kind: "Eviction"}, ObjectMeta: metav1.ObjectMeta{Name: "one"}, DeleteOptions: options(p)}
	}
	bound := func(version string) *corev1.Binding {
		return &corev1.Binding{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Binding"}, ObjectMeta: metav1.ObjectMeta{Name: "one", UID: uid, ResourceVersion: version}}
	}
	for _, tc := range []struct {
		name   string
		method string // "" means PUT
		path   string // "" means that of the pod
		media  string
		body   []byte
		answer *metav1.Status // nil means conflict
		cut    bool           // the answer is not whole
		once   bool           // the request has no GetBody
		want   string
	}{
		{name: "update", media: jsonType, body: jsonOf(t, pod), want: waits},
		{name: "update with parameters in the type", media: "application/json; charset=utf-8", body: jsonOf(t, pod), want: waits},
		{name: "update in protobuf", media: pbType, body: protobufOf(t, pod), want: waits},
		{name: "update in CBOR", media: cborType, body: cborOf(t, pod), want: waits},
		{name: "a subresource", path: "/api/v1/namespaces/ns/pods/one/status", media: jsonType, body: jsonOf(t, pod), want: waits},
		{name: "a subresource that the answer names", path: "/api/v1/namespaces/ns/pods/one/status", media: jsonType, body: jsonOf(t, pod),
			answer: status(409, metav1.StatusReasonConflict, "pods/status", "one"), want: waits},
		{name: "merge patch", method: "PATCH", media: merge, body: []byte(`{"metadata":{"resourceVersion":"9"}}`), want: waits},
		{name: "strategic merge patch", method: "PATCH", media: strategic, body: []byte(`{"metadata":{"resourceVersion":"9"}}`), want: waits},
		{name: "merge patch without a version", method: "PATCH", media: merge, body: []byte(`{"spec":{"resourceVersion":"9"}}`), want: live},
		{name: "merge patch that requires that no object exists", method: "PATCH", media: merge, body: []byte(`{"metadata":{"resourceVersion":"` + kube.NoVersion + `"}}`), want: live},
		{name: "JSON patch that tests", method: "PATCH", media: jsonPatch, body: []byte(`[{"op":"test","path":"/metadata/resourceVersion","value":"9"}]`), want: waits},
		{name: "JSON patch that sets", method: "PATCH", media: jsonPatch, body: []byte(`[{"op":"replace","path":"/metadata/resourceVersion","value":"9"},{"op":"remove","path":"/spec","value":[1]}]`), want: waits},
		{name: "JSON patch without a version", method: "PATCH", media: jsonPatch, body: []byte(`[{"op":"replace","path":"/spec","value":"9"}]`), want: live},
		{name: "JSON patch of which a test fails", method: "PATCH", media: jsonPatch, body: []byte(`[{"op":"test","path":"/metadata/resourceVersion","value":"9"}]`),
			answer: status(422, metav1.StatusReasonInvalid, "", ""), want: live},
		{name: "JSON patch of which the result is not valid", method: "PATCH", media: jsonPatch, body: []byte(`[]`),
			answer: status(422, metav1.StatusReasonInvalid, "Pod", "one"), want: nothing},
		{name: "JSON patch that is too much", method: "PATCH", media: jsonPatch, body: []byte(`[]`), answer: status(422, "TooMuch", "", ""), want: nothing},
		{name: "apply of YAML", method: "PATCH", media: apply, body: []byte("metadata:\n  resourceVersion: \"9\"\n"), want: waits},
		{name: "apply of JSON", method: "PATCH", media: apply, body: jsonOf(t, pod), want: waits},
		{name: "apply of CBOR", method: "PATCH", media: string(types.ApplyCBORPatchType), body: cborOf(t, pod), want: waits},
		{name: "apply of fields that others manage", method: "PATCH", media: apply, body: []byte(`{"spec":{}}`),
			answer: status(409, metav1.StatusReasonConflict, "", "", metav1.CauseTypeFieldManagerConflict), want: nothing},
		{name: "the same with a version", method: "PATCH", media: apply, body: jsonOf(t, pod),
			answer: status(409, metav1.StatusReasonConflict, "", "", metav1.CauseTypeFieldManagerConflict), want: live},
		{name: "delete", method: "DELETE", media: jsonType, body: jsonOf(t, versioned), want: waits},
		{name: "delete in protobuf", method: "DELETE", media: pbType, body: protobufOf(t, versioned), want: waits},
		{name: "delete in CBOR", method: "DELETE", media: cborType, body: cborOf(t, versioned), want: waits},
		{name: "delete, answered with the kind", method: "DELETE", media: jsonType, body: jsonOf(t, versioned), answer: status(409, metav1.StatusReasonConflict, "Pod", "one"), want: waits},
		{name: "delete of a UID", method: "DELETE", media: jsonType, body: jsonOf(t, options(&metav1.Preconditions{UID: &uid})), want: live},
		{name: "delete without preconditions", method: "DELETE", media: jsonType, body: jsonOf(t, options(nil)), want: live},
		{name: "delete without a body", method: "DELETE", want: live},
		{name: "delete of a collection", method: "DELETE", path: "/api/v1/namespaces/ns/pods", media: jsonType, body: jsonOf(t, versioned), want: live},
		{name: "a UID that the cache does not have any more", media: jsonType, body: jsonOf(t, podWith("one", "former", "9")), want: nothing},
		{name: "the same of a deletion", method: "DELETE", media: jsonType, body: jsonOf(t, options(&metav1.Preconditions{UID: new(types.UID("former")), ResourceVersion: &rv})), want: nothing},
		{name: "a UID that the cache does not have yet", media: jsonType, body: jsonOf(t, podWith("one", "later", "12")), want: "pods ns/one 12"},
		{name: "a version that the cache has passed", media: jsonType, body: jsonOf(t, podWith("one", "a", "8")), want: nothing},
		{name: "no version", media: jsonType, body: jsonOf(t, podWith("one", "a", "")), want: live},
		{name: "no second body", media: jsonType, body: jsonOf(t, pod), once: true, want: live},
		{name: "a body that cannot be read", media: jsonType, body: []byte(`{"metadata":`), want: live},
		{name: "YAML that cannot be read", method: "PATCH", media: apply, body: []byte("\t:"), want: live},
		{name: "a JSON patch that cannot be read", method: "PATCH", media: jsonPatch, body: []byte(`{`), want: live},
		{name: "an unknown type", media: "text/plain", body: jsonOf(t, pod), want: live},
		{name: "an answer that is cut off", media: jsonType, body: jsonOf(t, pod), cut: true, want: live},
		{name: "another object's conflict", media: jsonType, body: jsonOf(t, pod), answer: status(409, metav1.StatusReasonConflict, "resourcequotas", "one"), want: live},
		{name: "another name's conflict", media: jsonType, body: jsonOf(t, pod), answer: status(409, metav1.StatusReasonConflict, "pods", "quota"), want: live},
		{name: "nobody's conflict", media: jsonType, body: jsonOf(t, pod), answer: &metav1.Status{TypeMeta: conflict.TypeMeta, Code: 409, Reason: metav1.StatusReasonConflict}, want: live},
		{name: "it exists already", media: jsonType, body: jsonOf(t, pod), answer: status(409, metav1.StatusReasonAlreadyExists, "pods", "one"), want: nothing},
		{name: "it is not valid", media: jsonType, body: jsonOf(t, pod), answer: status(422, metav1.StatusReasonInvalid, "pods", "one"), want: nothing},
		{name: "it is forbidden", media: jsonType, body: jsonOf(t, pod), answer: status(403, metav1.StatusReasonForbidden, "pods", "one"), want: nothing},
		{name: "eviction", method: "POST", path: evict, media: jsonType, body: jsonOf(t, evicted(&metav1.Preconditions{UID: &uid, ResourceVersion: &rv})), answer: status(409, metav1.StatusReasonConflict, "Pod", "one"), want: waits},
		{name: "eviction in protobuf", method: "POST", path: evict, media: pbType, body: protobufOf(t, evicted(&metav1.Preconditions{ResourceVersion: &rv})), want: waits},
		{name: "eviction in CBOR", method: "POST", path: evict, media: cborType, body: cborOf(t, evicted(&metav1.Preconditions{ResourceVersion: &rv})), want: waits},
		{name: "eviction of a UID", method: "POST", path: evict, media: jsonType, body: jsonOf(t, evicted(&metav1.Preconditions{UID: &uid})), want: live},
		{name: "eviction without options", method: "POST", path: evict, media: jsonType, body: []byte(`{"metadata":{"name":"one"}}`), want: live},
		{name: "binding", method: "POST", path: bind, media: jsonType, body: jsonOf(t, bound("9")), answer: status(409, metav1.StatusReasonConflict, "pods", "one"), want: waits},
		{name: "binding in protobuf", method: "POST", path: bind, media: pbType, body: protobufOf(t, bound("9")), want: waits},
		{name: "binding of a pod that has a node", method: "POST", path: bind, media: jsonType, body: jsonOf(t, bound("")), answer: status(409, metav1.StatusReasonConflict, "pods/binding", "one"), want: live},
		{name: "create", method: "POST", path: "/api/v1/namespaces/ns/pods", media: jsonType, body: jsonOf(t, pod), want: nothing},
		{name: "a resource without a store", path: "/api/v1/namespaces/ns/secrets/one", media: jsonType, body: jsonOf(t, pod), want: nothing},
		{name: "dry run", path: "/api/v1/namespaces/ns/pods/one?dryRun=All", media: jsonType, body: jsonOf(t, pod), want: nothing},
	} {
		for _, e := range encodings {
			t.Run(tc.name+"/answer in "+e.name, func(t *testing.T) {
				s := consistency.New(consistency.Config{Stores: stores{pods: cacheOf(t, podWith("one", "a", "9"), podWith("two", "c", "10"))}})
				answer := conflict
				if tc.answer != nil {
					answer = tc.answer
				}
				data := e.encode(t, k8sruntime.Object(answer))
				if tc.cut {
					data = data[:len(data)-9]
				}
				method, path := tc.method, tc.path
				if method == "" {
					method = "PUT"
				}
				if path == "" {
					path = "/api/v1/namespaces/ns/pods/one"
				}
				var body io.Reader
				if tc.body != nil {
					body = bytes.NewReader(tc.body)
				}
				req, err := http.NewRequestWithContext(s.Begin(t.Context(), owner), method, "https://server"+path, body)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", tc.media)
				if tc.once {
					req.GetBody = nil
				}
				server := respond(int(answer.Code), e.contentType, data)
				resp, err := s.Wrap(roundTripper(func(req *http.Request) (*http.Response, error) {
					if tc.body != nil {
						if sent, err := io.ReadAll(req.Body); err != nil || !bytes.Equal(sent, tc.body) {
							t.Errorf("the server read %q, %v, want %q", sent, err, tc.body)
						}
					}
					return server(req)
				})).RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if got, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(got, data) {
					t.Errorf("the caller read %q, %v, want %q", got, err, data)
				}

				got := nothing
				if stale, ok := errors.AsType[*consistency.StaleError](s.EnsureReady(owner)); ok {
					got = strings.Join([]string{stale.GroupResource.String(), stale.RefusedObject, stale.RefusedRV}, " ")
					if want := fmt.Sprintf(`has ns/one at version "9", and a write at version %q was refused`, stale.RefusedRV); !strings.Contains(stale.Error(), want) {
						t.Errorf("error = %q, want it to say %q", stale, want)
					}
				} else if consistency.LiveRead(s.Begin(t.Context(), owner)) {
					got = live
				}
				if got != tc.want {
					t.Errorf("recorded %q, want %q", got, tc.want)
				}
				if got := s.Ambiguous(owner); got != nil {
					t.Errorf("Ambiguous = %v", got)
				}
			})
		}
	}
}

// A conflict that was recorded before its resource had a store is waited for in the store.
//
// Proves C6.
func TestRefusedBeforeAddInformer(t *testing.T) {
	s := consistency.New(consistency.Config{})
	s.Refused(owner, "u", pods, types.NamespacedName{Namespace: "ns", Name: "one"}, "9")
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, nil)
	if err := s.AddInformer(pods, informer); err != nil {
		t.Fatal(err)
	}
	_ = informer.GetStore().Add(podWith("one", "a", "9"))
	if err := s.EnsureReady(owner); err == nil {
		t.Error("ready before the informer's store shows the reason of the conflict")
	}
	_ = informer.GetStore().Update(podWith("one", "a", "10"))
	if err := s.EnsureReady(owner); err != nil || consistency.LiveRead(s.Begin(t.Context(), owner)) {
		t.Errorf("EnsureReady = %v with the reason in the store; want nil, and no live read", err)
	}
}

// Owners that are not reconciled again leave nothing of a refused write.
func TestRefusedIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := consistency.New(consistency.Config{Stores: stores{pods: cacheOf(t, podWith("one", "a", "9"))}, MaxWait: -1})
		one := types.NamespacedName{Namespace: "ns", Name: "one"}
		var held memory
		for n := range 20_000 {
			key := types.NamespacedName{Namespace: fmt.Sprint(n), Name: held.name(n)}
			s.Refused(key, "", pods, one, []string{"8", ""}[n%2])
		}
		if got := held.count(); got < 9_000 { // every other one is seen at once
			t.Errorf("%d of 20000 names are held: the test proves nothing", got)
		}
		time.Sleep(10*time.Minute + 1)
		for n := range 50_000 { // as many as make it sweep
			s.WroteAt(types.NamespacedName{Namespace: "later", Name: fmt.Sprint(n)}, "", pods, "1")
		}
		if got := held.count(); got > 100 {
			t.Errorf("%d names are held for owners that never ran again, want almost none", got)
		}
		runtime.KeepAlive(s)
	})
}
