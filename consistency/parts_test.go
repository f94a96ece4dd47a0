package consistency_test

import (
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/internal/calls"
)

// parted is a store whose namespaces have versions of their own.
type parted struct {
	cache.Store
	all *version
	of  sync.Map // of strings, by namespace
}

func (p *parted) LastStoreSyncResourceVersion() string { return p.all.LastStoreSyncResourceVersion() }

func (p *parted) LastStoreSyncResourceVersionOf(namespace string) (string, bool) {
	rv, ok := p.of.Load(namespace)
	if !ok {
		return "", false
	}
	return rv.(string), true
}

// selecting is a store that reports whether it selects nothing.
type selecting struct {
	*version
	nothing atomic.Bool
}

func (s *selecting) SelectsNothing() bool { return s.nothing.Load() }

// A store that selects nothing is no reason to read live in the term of a new leader. If it selects an older cache later,
// that cache is one.
func TestSelectsNothing(t *testing.T) {
	ctx := calls.WithSince(t.Context(), "5")
	store := &selecting{version: at("")}
	s := consistency.New(consistency.Config{Stores: stores{pods: store, secrets: at("9")}})
	check := func(version string, nothing, want bool) {
		t.Helper()
		store.set(version)
		store.nothing.Store(nothing)
		for range 2 {
			if got := consistency.LiveRead(s.Begin(ctx, types.NamespacedName{Name: "owner"})); got != want {
				t.Errorf("at %q, selects nothing %t: LiveRead = %t, want %t", version, nothing, got, want)
			}
		}
	}
	check("", true, false)
	check("3", false, true)
	check("5", false, false)
	check("", true, false)
	check("", false, true) // selected, and unknown
	check("4", false, true)
	check("5", false, false)
}

// several is a store of several caches, whose version costs a read of each.
type several struct {
	counted
	view int
}

func (s *several) Showing() any { return s.view }

// The calls of a term read the version of a store of several caches once for each set of caches that it shows, because
// a version that is known stays known in it.
func TestShowing(t *testing.T) {
	pod, secret := &several{counted: counted{version: at("4")}}, at("9")
	s := consistency.New(consistency.Config{Stores: stores{pods: pod, secrets: secret}})
	check := func(when, since string, want bool, reads int) {
		t.Helper()
		pod.reads = 0
		ctx := calls.WithSince(t.Context(), since)
		for range 100 {
			if got := consistency.LiveRead(s.Begin(ctx, owner)); got != want {
				t.Fatalf("%s: LiveRead = %t, want %t", when, got, want)
			}
		}
		if pod.reads != reads {
			t.Errorf("%s: %d reads of the version for 100 calls, want %d", when, pod.reads, reads)
		}
	}
	check("the store is behind", "5", true, 100)
	pod.set("5")
	check("it has caught up", "5", false, 1)
	pod.set("6")
	check("an event", "5", false, 0)
	pod.set("")
	pod.view++
	check("another view has an old cache", "5", true, 100)
	pod.set("6")
	check("that cache has caught up", "5", false, 1)
	pod.set("3")
	check("a restore of etcd", "5", false, 0)
	pod.view++
	check("a restore of etcd and another view", "5", false, 1)
	check("a later term", "7", true, 100)
	pod.set("7")
	check("a later term, caught up", "7", false, 1)
	secret.set("")
	if ctx := calls.WithSince(t.Context(), "7"); !consistency.LiveRead(s.Begin(ctx, owner)) {
		t.Error("a store without views has no version, and LiveRead is false")
	}
}

// In a store whose namespaces have versions of their own, a recorded write, deletion or
// conflict waits for the namespace of the object. A version of WroteAt, whose namespace is
// unknown, and a write in a namespace without a version wait for the whole store.
func TestParts(t *testing.T) { synctest.Test(t, testParts) }

func testParts(t *testing.T) {
	key := types.NamespacedName{Namespace: "blue", Name: "owner"}
	var store *parted
	var s *consistency.Store
	begin := func() {
		store = &parted{Store: cacheOf(t), all: at("5")}
		store.of.Store("blue", "10")
		store.of.Store("green", "5")
		s = consistency.New(consistency.Config{Stores: stores{pods: store}, MaxWait: -1, RecheckInterval: time.Hour})
	}
	put := func(namespace, rv string) {
		t.Helper()
		req, err := http.NewRequestWithContext(s.Begin(t.Context(), key), http.MethodPut, "https://server/api/v1/namespaces/"+namespace+"/pods/one", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := s.Wrap(respond(http.StatusOK, jsonType, object(rv))).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
	}
	woken := 0
	// waits adds a wait, which steps end: only the last one may.
	waits := func(steps ...func()) {
		t.Helper()
		woken = 0
		if s.Ready(key, func() { woken++ }) {
			t.Fatal("Ready = true before the cache shows it")
		}
		for i, step := range steps {
			step()
			s.Handler().OnAdd(nil, false)
			if last := i == len(steps)-1; woken != map[bool]int{true: 1}[last] {
				t.Fatalf("after step %d: woken %d times", i+1, woken)
			}
		}
		if entries, _ := s.Waits(); entries+s.WaitedParts() != 0 {
			t.Errorf("%d entries of %d parts are left", entries, s.WaitedParts())
		}
		if !s.Ready(key, nil) {
			t.Error("Ready = false, want true")
		}
	}
	set := func(namespace, rv string) func() { return func() { store.of.Store(namespace, rv) } }
	all := func(rv string) func() { return func() { store.all.set(rv) } }

	begin()
	put("blue", "10")
	if !s.Ready(key, nil) {
		t.Error("a write that its namespace shows waits for another one")
	}
	put("blue", "12")
	if got, want := s.EnsureReady(key).Error(), `consistency: the cache of pods in namespace blue is at version "10", behind the written "12"`; got != want {
		t.Errorf("EnsureReady = %s, want %s", got, want)
	}
	waits(set("green", "20"), set("blue", "11"), set("blue", "12"))

	// Two namespaces.
	put("blue", "30")
	put("green", "29")
	waits(set("blue", "30"), set("green", "29"))

	// The whole store.
	s.WroteAt(key, "", pods, "40")
	waits(set("blue", "50"), set("green", "50"), all("40"))
	put("red", "51")
	waits(set("blue", "60"), all("51"))

	// A live read waits for the namespace of the object.
	s.Saw(key, "", pods, &metav1.ObjectMeta{Namespace: "blue", ResourceVersion: "61"})
	waits(set("green", "61"), set("blue", "61"))
	s.Saw(key, "", pods, &metav1.ObjectMeta{Namespace: "red", ResourceVersion: "61"})
	waits(set("blue", "62"), all("61"))

	// A namespace that leaves the store, and comes back with an old list.
	put("blue", "70")
	waits(func() { store.of.Delete("blue") }, set("blue", "55"), set("blue", "70"))
	put("blue", "71")
	waits(func() { store.of.Delete("blue") }, all("71"))
	store.of.Store("blue", "60")
	put("blue", "72")
	waits(set("blue", "72"))

	// A restore of etcd.
	put("green", "80")
	waits(func() {
		store.of.Store("green", "20")
		time.Sleep(time.Hour) // RecheckInterval
		synctest.Wait()
	})
	if !consistency.LiveRead(s.Begin(t.Context(), key)) {
		t.Error("the run after a restore does not read live")
	}
	s.Refused(key, "", pods, types.NamespacedName{Namespace: "green", Name: "one"}, "30")
	waits(set("green", "30"))

	// A conflict at a version that the cache does not have yet.
	begin()
	s.Refused(key, "", pods, types.NamespacedName{Namespace: "blue", Name: "one"}, "11")
	waits(set("green", "20"), all("20"), set("blue", "11"))

	// A deletion counts when the namespace was listed.
	begin()
	store.of.Store("blue", "")
	s.Deleted(key, "", pods, types.NamespacedName{Namespace: "blue", Name: "one"}, "uid")
	waits(all("20"), set("blue", "3"))
}

// A write in one namespace settles no write in another one, whose cache it does not wait for.
//
// Proves C4, C5.
func TestAmbiguousInParts(t *testing.T) {
	blue, green := &metav1.ObjectMeta{Namespace: "blue", ResourceVersion: "5"}, &metav1.ObjectMeta{Namespace: "green", ResourceVersion: "5"}
	lost, made := respond(http.StatusInternalServerError, jsonType, nil), respond(http.StatusOK, jsonType, object("5"))
	for _, tc := range []struct {
		name    string
		do      func(s *consistency.Store, send func(namespace string, answer roundTripper))
		settled bool
	}{
		{"nothing", func(*consistency.Store, func(string, roundTripper)) {}, false},
		{"a write in the namespace", func(_ *consistency.Store, send func(string, roundTripper)) { send("blue", made) }, true},
		{"a write in another namespace", func(_ *consistency.Store, send func(string, roundTripper)) { send("green", made) }, false},
		{"a write that the whole store must show", func(_ *consistency.Store, send func(string, roundTripper)) { send("red", made) }, true},
		{"a live read of all namespaces", func(s *consistency.Store, _ func(string, roundTripper)) { s.WroteAt(owner, "", pods, "5") }, true},
		{"a live read of the namespace", func(s *consistency.Store, _ func(string, roundTripper)) { s.Saw(owner, "", pods, blue) }, true},
		{"a live read of another namespace", func(s *consistency.Store, _ func(string, roundTripper)) { s.Saw(owner, "", pods, green) }, false},
		{"clear", func(s *consistency.Store, _ func(string, roundTripper)) { s.Clear(owner, "") }, true},
		{"another lost write, in another namespace", func(_ *consistency.Store, send func(string, roundTripper)) { send("green", lost) }, false},
		{"writes in all namespaces that lost one", func(_ *consistency.Store, send func(string, roundTripper)) {
			send("green", lost)
			send("blue", made)
			send("green", made)
		}, true},
		{"a write in one of the namespaces that lost one", func(_ *consistency.Store, send func(string, roundTripper)) {
			send("green", lost)
			send("blue", made)
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			store := &parted{Store: cacheOf(t), all: at("5")}
			store.of.Store("blue", "5")
			store.of.Store("green", "5")
			s := consistency.New(consistency.Config{Stores: stores{pods: store}, AmbiguousWait: -1})
			send := func(namespace string, answer roundTripper) {
				req, err := http.NewRequestWithContext(s.Begin(t.Context(), owner), http.MethodPost, "https://server/api/v1/namespaces/"+namespace+"/pods", http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := s.Wrap(answer).RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil {
					t.Fatal(err)
				}
			}
			send("blue", lost)
			tc.do(s, send)
			want := []schema.GroupResource{pods}
			if tc.settled {
				want = nil
			}
			if got := s.Ambiguous(owner); !slices.Equal(got, want) {
				t.Errorf("Ambiguous = %v, want %v", got, want)
			}
			if got := consistency.LiveRead(s.Begin(t.Context(), owner)); got == tc.settled {
				t.Errorf("LiveRead = %v", got)
			}
		})
	}
}
