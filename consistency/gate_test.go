package consistency_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/consistency"
)

// A nil pointer in the Config is as nil: no metrics, no store.
func TestNilPointers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := consistency.New(consistency.Config{Stores: stores{pods: (*version)(nil)}, Metrics: (*waits)(nil)})
		s.WroteAt(owner, "u", pods, "10")
		start, woken := time.Now(), make(chan struct{})
		if s.Ready(owner, func() { close(woken) }) {
			t.Fatal("Ready = true, and no store shows the write")
		}
		<-woken
		if took := time.Since(start); took != 2*time.Minute {
			t.Errorf("held back for %v, want 2m0s, as without a store", took)
		}
	})
}

// How long Ready holds a key back, and what the run is told then.
//
// Proves C2, C5.
func TestReadyIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for 8s")
	}
	wrote := func(rv string) func(*testing.T, *consistency.Store) {
		return func(_ *testing.T, s *consistency.Store) { s.WroteAt(owner, "u", pods, rv) }
	}
	lost := func(t *testing.T, s *consistency.Store) { lose(t, s, owner) }
	const never = 24 * time.Hour
	for _, tc := range []struct {
		name   string
		cfg    consistency.Config
		before func(t *testing.T, s *consistency.Store)
		at     time.Duration                                            // when during happens
		during func(t *testing.T, s *consistency.Store, store *version) // nil means nothing
		took   time.Duration
		live   bool
		waits  waits
	}{
		{name: "nothing written", before: func(*testing.T, *consistency.Store) {}},
		{name: "seen", before: wrote("5")},
		{name: "never seen", before: wrote("10"), took: 2 * time.Minute, live: true, waits: waits{"2m0s timedOut=true"}},
		{name: "never seen, configured", cfg: consistency.Config{MaxWait: 90 * time.Second}, before: wrote("10"), took: 90 * time.Second, live: true, waits: waits{"1m30s timedOut=true"}},
		{name: "never seen, no bound", cfg: consistency.Config{MaxWait: -1}, before: wrote("10"), took: never},
		{name: "a bound below RecheckInterval", cfg: consistency.Config{RecheckInterval: time.Hour, MaxWait: time.Second}, before: wrote("10"), took: time.Second, live: true, waits: waits{"1s timedOut=true"}},
		{name: "no store", before: func(_ *testing.T, s *consistency.Store) { s.WroteAt(owner, "u", secrets, "10") }, took: 2 * time.Minute, live: true, waits: waits{"2m0s timedOut=true"}},
		{name: "a deletion that nothing shows", before: func(_ *testing.T, s *consistency.Store) { deleted(s, "a") }, took: 2 * time.Minute, live: true, waits: waits{"2m0s timedOut=true"}},
		{name: "seen in time", before: wrote("10"), at: time.Minute, during: func(_ *testing.T, s *consistency.Store, store *version) {
			store.set("10")
			s.Handler().OnUpdate(nil, nil)
		}, took: time.Minute, waits: waits{"1m0s timedOut=false"}},
		{name: "cleared", before: wrote("10"), at: time.Minute, during: func(_ *testing.T, s *consistency.Store, _ *version) { s.Clear(owner, "") },
			took: time.Minute, waits: waits{"1m0s timedOut=false"}},
		{name: "written again meanwhile", before: wrote("10"), at: time.Minute, during: func(t *testing.T, s *consistency.Store, _ *version) { wrote("11")(t, s) },
			took: 3 * time.Minute, live: true, waits: waits{"3m0s timedOut=true"}},
		{name: "a bound below RecheckInterval that moves", cfg: consistency.Config{RecheckInterval: time.Hour, MaxWait: time.Second}, before: wrote("10"), at: time.Second / 2,
			during: func(t *testing.T, s *consistency.Store, _ *version) { wrote("11")(t, s) }, took: 3 * time.Second / 2, live: true, waits: waits{"1.5s timedOut=true"}},
		{name: "an older version meanwhile", before: wrote("10"), at: time.Minute, during: func(t *testing.T, s *consistency.Store, _ *version) { wrote("9")(t, s) },
			took: 2 * time.Minute, live: true, waits: waits{"2m0s timedOut=true"}},
		{name: "ambiguous", before: lost, took: time.Second, live: true, waits: waits{"1s timedOut=false"}},
		{name: "ambiguous, configured", cfg: consistency.Config{AmbiguousWait: 5 * time.Second, RecheckInterval: time.Hour}, before: lost, took: 5 * time.Second, live: true, waits: waits{"5s timedOut=false"}},
		{name: "ambiguous, no wait", cfg: consistency.Config{AmbiguousWait: -1}, before: lost, live: true},
		{name: "ambiguous, and settled", cfg: consistency.Config{AmbiguousWait: time.Minute}, before: lost, at: time.Second, during: func(t *testing.T, s *consistency.Store, _ *version) {
			wrote("5")(t, s)
			s.Handler().OnUpdate(nil, nil)
		}, took: time.Second, waits: waits{"1s timedOut=false"}},
		{name: "ambiguous, and a write that is seen", before: func(t *testing.T, s *consistency.Store) { wrote("10")(t, s); lost(t, s) }, at: 10 * time.Second, during: func(_ *testing.T, s *consistency.Store, store *version) {
			store.set("10")
			s.Handler().OnUpdate(nil, nil)
		}, took: 10 * time.Second, live: true, waits: waits{"10s timedOut=false"}},
		{name: "ambiguous, and ten minutes later", cfg: consistency.Config{AmbiguousWait: -1}, before: func(t *testing.T, s *consistency.Store) { lost(t, s); time.Sleep(10*time.Minute + 1) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := at("5")
				var told waits
				tc.cfg.Stores, tc.cfg.Metrics = stores{pods: store}, &told
				s := consistency.New(tc.cfg)
				tc.before(t, s)
				start := time.Now()
				woken := 0
				var took time.Duration
				if !s.Ready(owner, func() { woken++; took = time.Since(start) }) {
					if tc.during != nil {
						time.Sleep(tc.at)
						tc.during(t, s, store)
					}
					time.Sleep(never - tc.at)
					synctest.Wait()
					if tc.took == never {
						if woken != 0 {
							t.Errorf("woken after %v, want never", took)
						}
						s.Clear(owner, "")
						return
					}
					if woken != 1 {
						t.Fatalf("woken %d times, want once", woken)
					}
				}
				if took != tc.took {
					t.Errorf("held back for %v, want %v", took, tc.took)
				}
				if diff := cmp.Diff(tc.waits, told); diff != "" {
					t.Errorf("Metrics (-want +got):\n%s", diff)
				}
			})
			// The same once more, to see the run itself and not what a day did to it.
			synctest.Test(t, func(t *testing.T) {
				store := at("5")
				tc.cfg.Stores, tc.cfg.Metrics = stores{pods: store}, nil
				s := consistency.New(tc.cfg)
				tc.before(t, s)
				if tc.took == never {
					return
				}
				woken := make(chan struct{})
				if tc.during != nil {
					time.AfterFunc(tc.at, func() { tc.during(t, s, store) })
				}
				if !s.Ready(owner, func() { close(woken) }) {
					<-woken
					if !s.Ready(owner, nil) {
						t.Error("Ready = false right after the wake")
					}
				}
				ctx := s.Begin(t.Context(), owner)
				if got := consistency.LiveRead(ctx); got != tc.live {
					t.Errorf("LiveRead = %v, want %v", got, tc.live)
				}
				if consistency.LiveRead(s.Begin(t.Context(), other)) {
					t.Error("LiveRead = true for another key")
				}
				if consistency.LiveRead(t.Context()) {
					t.Error("LiveRead = true without Begin")
				}
			})
		})
	}
}

// A live read ends the live runs: its version is waited for as a write is.
//
// Proves C5.
func TestLiveReadIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := at("5")
		s := consistency.New(consistency.Config{Stores: stores{pods: store}})
		lose(t, s, owner)
		if s.Ready(owner, nil) {
			t.Error("Ready = true right after the answer was lost")
		}
		time.Sleep(time.Second)
		for run := range 3 { // nothing but a live read changes anything
			if !s.Ready(owner, nil) {
				t.Errorf("run %d: Ready = false after AmbiguousWait", run)
			}
			if !consistency.LiveRead(s.Begin(t.Context(), owner)) {
				t.Errorf("run %d: LiveRead = false", run)
			}
			s.End(owner)
		}
		if got := s.Ambiguous(owner); !slices.Equal(got, []schema.GroupResource{pods}) {
			t.Errorf("Ambiguous = %v, want pods", got)
		}
		s.WroteAt(owner, "", pods, "8") // the list's version
		s.End(owner)
		if s.Ready(owner, nil) {
			t.Error("Ready = true although the cache is behind the live read")
		}
		store.set("8")
		if !s.Ready(owner, nil) || consistency.LiveRead(s.Begin(t.Context(), owner)) {
			t.Error("the cache has caught up with the live read, but is not used")
		}
	})
}

// Wait has no bound but its context.
func TestWaitHasNoBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := at("5")
		s := consistency.New(consistency.Config{Stores: stores{pods: store}, MaxWait: time.Second})
		s.WroteAt(owner, "u", pods, "10")
		s.Ready(owner, nil) // has a bound, for the same owner
		start := time.Now()
		time.AfterFunc(time.Hour, func() { store.set("10") })
		if err := s.Wait(t.Context(), owner); err != nil || time.Since(start) < time.Hour {
			t.Errorf("Wait = %v after %v, want nil when the cache is there", err, time.Since(start))
		}
	})
}
