package consistency_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/internal/testcost"
)

// Whatever a server answers and a request carries, nothing panics, the caller reads the
// same bytes, the key is held back at most by its bounds, and the work is linear.
//
// Proves C3, C4, C6.
func FuzzHostile(f *testing.F) {
	contentTypes := []string{jsonType, pbType, cborType, string(types.ApplyYAMLPatchType), string(types.ApplyCBORPatchType), string(types.JSONPatchType), string(types.MergePatchType), "", "application/json; charset=\xff"}
	requests := []struct{ method, path string }{
		{"PUT", "/api/v1/namespaces/ns/pods/n"}, {"PATCH", "/apis/apps/v1/namespaces/ns/deployments/n/scale"}, {"DELETE", "/api/v1/namespaces/ns/pods/n"},
		{"DELETE", "/api/v1/namespaces/ns/pods"}, {"POST", "/api/v1/namespaces/ns/pods/n/eviction"}, {"POST", "/api/v1/namespaces/ns/pods/n/binding"},
		{"POST", "/api/v1/namespaces/ns/pods"}, {"PUT", "/api/v1/namespaces/n/finalize"},
	}
	codes := []int{200, 201, 202, 409, 422, 429, 500, 503, 204, 301}
	for i, part := range []string{
		`{"metadata":{"resourceVersion":"`, `9`, `[`, `{"a":`, `"\u0000\u001b"`, `{"metadata":{"finalizers":[""`, `,""`, `{"metadata":{"resourceVersion":"1e999999999","uid":"a","deletionGracePeriodSeconds":1e308}}`,
		`{"metadata":{},"metadata":{"uid":"a","deletionTimestamp":""}}`, `{"status":"Failure","reason":"Conflict","details":{"name":"n","kind":"pods","causes":[{"reason":"FieldManagerConflict"}]}}`,
		`{"deleteOptions":{"preconditions":{"resourceVersion":"`, "k8s\x00\x12", "\x9f", "\xbf\x41a", "\xd9\xd9\xf7\xbb\xff\xff\xff\xff\xff\xff\xff\xff", "\xc1", "a: &a [*a]\n", "- ", "k8s\x00\x12\x08\x0a\x06\x5a\x04\x0a\x02\x31\x31",
	} {
		for j := range codes {
			f.Add([]byte(part), uint16(1), uint8(i+j), uint8(j), uint8(j))
			f.Add([]byte(part), uint16(9999), uint8(i), uint8(i+j), uint8(j))
		}
	}
	f.Fuzz(func(t *testing.T, part []byte, repeat uint16, contentType, request, code uint8) {
		body := bytes.Repeat(part, min(int(repeat), 3<<20/max(len(part), 1)))
		kind, r, status := contentTypes[int(contentType)%len(contentTypes)], requests[int(request)%len(requests)], codes[int(code)%len(codes)]
		testcost.Cheap(t, fmt.Sprintf("%s %s with %s", r.method, r.path, kind), func() { _, _ = json.Marshal(string(body)) }, func() {
			synctest.Test(t, func(t *testing.T) {
				const maxWait = time.Second
				s := consistency.New(consistency.Config{MaxWait: maxWait, AmbiguousWait: -1, Stores: stores{
					pods: cacheOf(t, podWith("n", "a", "5")), deployments: at("5"), namespaces: at("5"),
				}})
				req, err := http.NewRequestWithContext(s.Begin(t.Context(), owner), r.method, "https://server"+r.path, bytes.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", kind)
				resp, err := s.Wrap(respond(status, strings.TrimPrefix(kind, "application/apply-patch+"), body)).RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(got, body) {
					t.Errorf("the caller reads %d bytes, %v, want %d", len(got), err, len(body))
				}
				resp.Body.Close()
				_ = s.EnsureReady(owner)
				time.Sleep(maxWait)
				if !s.Ready(owner, nil) {
					t.Error("the key is held back for longer than its bounds")
				}
				s.End(owner)
			})
		})
	})
}

// A key with ten thousand deletions and conflicts takes ten times as long as one with a
// thousand: quadratic work would take a hundred times as long.
func TestHostileGrowth(t *testing.T) {
	run := func(n int) time.Duration {
		c := cacheOf(t, podWith("one", "a", "9"))
		s := consistency.New(consistency.Config{Stores: stores{pods: c, secrets: at("9")}, MaxWait: -1})
		start := time.Now()
		for i := range n {
			object := types.NamespacedName{Namespace: "ns", Name: fmt.Sprint(i)}
			s.Deleted(owner, "u", pods, object, types.UID(object.Name))
			s.Refused(owner, "u", pods, object, "20")
			s.Refused(owner, "u", pods, object, "19")
		}
		if s.Ready(owner, nil) {
			t.Error("Ready = true before the cache shows the conflicts")
		}
		for i := range n {
			_ = c.Add(podWith(fmt.Sprint(i), "b", "21"))
			s.Handler().OnUpdate(nil, nil)
		}
		if err := s.EnsureReady(owner); err != nil {
			t.Error(err)
		}
		return time.Since(start)
	}
	var small, large time.Duration
	for range 10 { // one quiet moment is enough to see that it is linear
		if small, large = run(1000), run(10_000); large < 30*small {
			return
		}
	}
	t.Errorf("1000 take %v, and 10000 take %v", small, large)
}
