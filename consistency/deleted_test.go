package consistency_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/internal/malformed"
)

// deleted records the deletion of an object of these tests.
func deleted(s *consistency.Store, uid types.UID) {
	name := map[types.UID]string{"a": "one", "c": "two", "n": "new"}[uid]
	s.Deleted(owner, "u", pods, types.NamespacedName{Namespace: "ns", Name: name}, uid)
}

// malformedCache is a cache of package crd with an object that does not fit its Go type.
func malformedCache(t *testing.T, uid types.UID) cache.Store {
	t.Helper()
	c := malformed.New(cache.NewSharedIndexInformer(&cache.ListWatch{}, nil, 0, cache.Indexers{}), "").GetStore()
	bad := &malformed.Object{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "one", UID: uid, ResourceVersion: "9"}, Err: errors.New("malformed")}
	if err := c.Add(bad); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestDeleted proves C1.
func TestDeleted(t *testing.T) {
	still := &consistency.StaleError{GroupResource: pods, ReadRV: "10", DeletedUID: "a"}
	for _, tc := range []struct {
		name  string
		store func(t *testing.T) cache.Store
		uid   types.UID
		then  func(s *consistency.Store, c cache.Store)
		stale *consistency.StaleError // nil means ready
	}{
		{name: "held", uid: "a", stale: still},
		{name: "gone", uid: "a", then: func(_ *consistency.Store, c cache.Store) { _ = c.Delete(podWith("one", "a", "11")) }},
		{name: "gone before", uid: "x"},
		{name: "replaced", uid: "a", then: func(_ *consistency.Store, c cache.Store) { _ = c.Update(podWith("one", "b", "12")) }},
		{name: "changed, not gone", uid: "a", then: func(_ *consistency.Store, c cache.Store) { _ = c.Update(podWith("one", "a", "12")) },
			stale: &consistency.StaleError{GroupResource: pods, ReadRV: "12", DeletedUID: "a"}},
		{name: "another object gone", uid: "a", then: func(_ *consistency.Store, c cache.Store) { _ = c.Delete(podWith("two", "c", "11")) },
			stale: &consistency.StaleError{GroupResource: pods, ReadRV: "11", DeletedUID: "a"}},
		{name: "no UID", uid: ""},
		{name: "store that is not filled", store: func(t *testing.T) cache.Store { return cacheOf(t) }, uid: "a",
			stale: &consistency.StaleError{GroupResource: pods, DeletedUID: "a"}},
		{name: "malformed and held", store: func(t *testing.T) cache.Store { return malformedCache(t, "a") }, uid: "a",
			stale: &consistency.StaleError{GroupResource: pods, ReadRV: "9", DeletedUID: "a"}},
		{name: "malformed and replaced", store: func(t *testing.T) cache.Store { return malformedCache(t, "b") }, uid: "a"},
		{name: "a write of the owner comes first", uid: "n", then: func(s *consistency.Store, _ cache.Store) { s.WroteAt(owner, "u", pods, "20") },
			stale: &consistency.StaleError{GroupResource: pods, ReadRV: "10", WroteRV: "20"}},
		{name: "it came with that write", uid: "n", then: func(s *consistency.Store, c cache.Store) {
			s.WroteAt(owner, "u", pods, "20")
			_ = c.Add(podWith("new", "n", "20"))
		}, stale: &consistency.StaleError{GroupResource: pods, ReadRV: "20", DeletedUID: "n"}},
		{name: "and went", uid: "n", then: func(s *consistency.Store, c cache.Store) {
			s.WroteAt(owner, "u", pods, "20")
			_ = c.Add(podWith("new", "n", "20"))
			_ = s.EnsureReady(owner)
			_ = c.Delete(podWith("new", "n", "21"))
		}},
		{name: "a second deletion", uid: "a", then: func(s *consistency.Store, c cache.Store) {
			deleted(s, "c")
			_ = c.Delete(podWith("two", "c", "11"))
			deleted(s, "a")
		}, stale: &consistency.StaleError{GroupResource: pods, ReadRV: "11", DeletedUID: "a"}},
		{name: "an owner that was replaced", uid: "a", then: func(s *consistency.Store, _ cache.Store) { s.WroteAt(owner, "v", pods, "1") }},
		{name: "cleared", uid: "a", then: func(s *consistency.Store, _ cache.Store) { s.Clear(owner, "u") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := cacheOf(t, podWith("one", "a", "9"), podWith("two", "c", "10"))
			if tc.store != nil {
				c = tc.store(t)
			}
			s := consistency.New(consistency.Config{Stores: stores{pods: c}})
			deleted(s, tc.uid)
			if tc.then != nil {
				tc.then(s, c)
			}
			err := s.EnsureReady(owner)
			stale, _ := errors.AsType[*consistency.StaleError](err)
			if diff := cmp.Diff(tc.stale, stale); diff != "" {
				t.Errorf("StaleError (-want +got):\n%s", diff)
			}
			if (err == nil) != (tc.stale == nil) {
				t.Errorf("EnsureReady = %v", err)
			}
			if tc.stale != nil && tc.stale.DeletedUID != "" && !strings.Contains(fmt.Sprint(err), "still holds the deleted object with UID "+string(tc.stale.DeletedUID)) {
				t.Errorf("error = %q, want it to name the object", err)
			}
		})
	}

	t.Run("a store that cannot be asked", func(t *testing.T) {
		s := consistency.New(consistency.Config{Stores: stores{pods: at("10")}})
		deleted(s, "")
		if err := s.EnsureReady(owner); err != nil {
			t.Errorf("no UID: EnsureReady = %v", err)
		}
		deleted(s, "a")
		if err := s.EnsureReady(owner); err == nil || !strings.Contains(err.Error(), "has no GetByKey") {
			t.Errorf("EnsureReady = %v, want an error that says so", err)
		}
		if err := s.Wait(t.Context(), owner); err == nil {
			t.Error("Wait = nil, want that error")
		}
	})
	t.Run("no store", func(t *testing.T) {
		s := consistency.New(consistency.Config{})
		deleted(s, "a")
		if err := s.EnsureReady(owner); err == nil || !strings.Contains(err.Error(), "no store") {
			t.Errorf("EnsureReady = %v, want an error that says so", err)
		}
	})
	t.Run("an item without metadata", func(t *testing.T) {
		c := cache.NewStore(func(any) (string, error) { return "ns/one", nil })
		_ = c.Add(podWith("one", "a", "9"))
		s := consistency.New(consistency.Config{Stores: stores{pods: c}})
		deleted(s, "a")
		_ = c.Update(&struct{ metav1.TypeMeta }{})
		c.Bookmark("10")
		if err := s.EnsureReady(owner); err == nil {
			t.Error("EnsureReady = nil although nobody knows what the store holds")
		}
	})
}

// The wake comes with the DELETED event, not before.
//
// Proves C2.
func TestDeletedWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cacheOf(t, podWith("one", "a", "9"), podWith("two", "c", "10"))
		s := consistency.New(consistency.Config{Stores: stores{pods: c}, RecheckInterval: time.Hour, MaxWait: -1})
		deleted(s, "a")
		woken := 0
		if s.Ready(owner, func() { woken++ }) {
			t.Error("Ready = true while the store holds the object")
		}
		_ = c.Delete(podWith("two", "c", "11"))
		s.Handler().OnDelete(nil)
		if woken != 0 {
			t.Error("woken by another object's deletion")
		}
		_ = c.Delete(podWith("one", "a", "12"))
		s.Handler().OnDelete(nil)
		s.Handler().OnDelete(nil)
		if woken != 1 {
			t.Errorf("woken %d times, want once", woken)
		}
	})
}

// What a transport records of answers that may mean that an object is gone, in every
// encoding.
//
// Proves C1.
func TestWrapRecordsDeletions(t *testing.T) {
	const podPath = "/api/v1/namespaces/ns/pods/n"
	pod := func(finalizers []string, deleted bool, grace *int64) *corev1.Pod {
		p := podWith("n", "a", "5") // the version that the cache has
		p.Finalizers = finalizers
		p.DeletionGracePeriodSeconds = grace
		if deleted {
			p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)}
		}
		return p
	}
	status := &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Success",
		Details: &metav1.StatusDetails{Name: "n", Kind: "pods", UID: "a"}}
	namespace := &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "a", ResourceVersion: "5",
		DeletionTimestamp: &metav1.Time{Time: time.Unix(1e9, 0)}}}
	for _, tc := range []struct {
		name         string
		method, path string
		answer       k8sruntime.Object
		gone         bool
		ambiguous    bool
	}{
		{"deletion with a Status", "DELETE", podPath, status, true, false},
		{"deletion with a Status that names nothing", "DELETE", podPath, &metav1.Status{TypeMeta: status.TypeMeta, Status: "Success"}, false, true},
		{"deletion with the object as it was", "DELETE", podPath, pod(nil, false, nil), true, false},
		{"deletion with the object, no grace", "DELETE", podPath, pod(nil, true, new(int64)), true, false},
		{"deletion with the object, in its grace period", "DELETE", podPath, pod(nil, true, new(int64(30))), false, false},
		{"deletion with the object, finalizers", "DELETE", podPath, pod([]string{"a/b"}, true, nil), false, false},
		{"deletion of a namespace", "DELETE", "/api/v1/namespaces/n", namespace, false, false},
		{"deletion of a subresource", "DELETE", podPath + "/sub", pod(nil, false, nil), false, false},
		{"update that removes the last finalizer", "PUT", podPath, pod(nil, true, nil), true, false},
		{"the same, grace 0", "PUT", podPath, pod(nil, true, new(int64)), true, false},
		{"patch that removes the last finalizer", "PATCH", podPath, pod(nil, true, nil), true, false},
		{"update that leaves one", "PATCH", podPath, pod([]string{"a/b"}, true, nil), false, false},
		{"update in the grace period", "PUT", podPath, pod(nil, true, new(int64(30))), false, false},
		{"update of what is not deleted", "PUT", podPath, pod(nil, false, nil), false, false},
		{"update of a namespace", "PUT", "/api/v1/namespaces/n", namespace, false, false},
		{"eviction", "POST", podPath + "/eviction", status, false, true},
	} {
		for _, e := range encodings {
			t.Run(tc.name+"/"+e.name, func(t *testing.T) {
				send := func(s *consistency.Store) {
					req, _ := http.NewRequestWithContext(s.Begin(t.Context(), owner), tc.method, "https://server"+tc.path, nil)
					resp, err := s.Wrap(respond(200, e.contentType, e.encode(t, tc.answer))).RoundTrip(req)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := io.Copy(io.Discard, resp.Body); err != nil {
						t.Error(err)
					}
					resp.Body.Close()
				}
				podCache := cacheOf(t, podWith("n", "a", "5"))
				s := consistency.New(consistency.Config{Stores: stores{pods: podCache, namespaces: cacheOf(t, namespace)}})
				send(s)
				want := ""
				if tc.gone {
					want = "consistency: the cache of pods is at version \"5\" and still holds the deleted object with UID a"
				}
				got := ""
				if err := s.EnsureReady(owner); err != nil {
					got = err.Error()
				}
				if got != want {
					t.Errorf("EnsureReady = %q, want %q", got, want)
				}
				if n := s.Ambiguous(owner); (len(n) > 0) != tc.ambiguous {
					t.Errorf("Ambiguous = %v, want one: %v", n, tc.ambiguous)
				}
				_ = podCache.Delete(podWith("n", "a", "6"))
				if err := s.EnsureReady(owner); err != nil {
					t.Errorf("EnsureReady = %v after the object is gone", err)
				}

				// Where nothing could tell that the object is gone, nobody waits for that.
				s = consistency.New(consistency.Config{Stores: stores{pods: at("5"), namespaces: at("5")}})
				send(s)
				if err := s.EnsureReady(owner); err != nil {
					t.Errorf("EnsureReady = %v of a store that cannot be asked", err)
				}
				var ambiguous []schema.GroupResource
				if tc.gone || tc.ambiguous {
					ambiguous = []schema.GroupResource{pods}
				}
				if diff := cmp.Diff(ambiguous, s.Ambiguous(owner)); diff != "" {
					t.Errorf("Ambiguous of a store that cannot be asked (-want +got):\n%s", diff)
				}
			})
		}
	}
}
