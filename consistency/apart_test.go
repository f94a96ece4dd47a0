package consistency_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/testlog"
)

const apartLine = "The cache is still at an earlier version than the Lease ten minutes after the start of the leader: they seem to be in different etcds, so LiveRead ignores this cache"

// If the Lease is in an etcd of its own, whose versions are far above those of a store, LiveRead ends. A store
// that can be late is not trusted.
//
// Proves C9.
func TestLiveReadInAnotherEtcd(t *testing.T) {
	const never = -1
	every := func(n int) func(int) string {
		return func(minute int) string { return fmt.Sprint(50 + minute/n) }
	}
	for _, tc := range []struct {
		name  string
		since string
		at    func(minute int) string // the version of the store
		ends  int                     // the minute of the first call that does not read live
		lines int
	}{
		{name: "a store that moves each minute", since: "1000000", at: every(1), ends: 12, lines: 1},
		{name: "a store that moves every five minutes", since: "1000000", at: every(5), ends: 20, lines: 1},
		{name: "a store whose watch is dead", since: "1000000", at: func(int) string { return "50" }, ends: never},
		{name: "a store whose watch dies", since: "1000000", at: func(minute int) string { return fmt.Sprint(50 + min(minute, 10)) }, ends: never},
		{name: "a store that moves every half an hour", since: "1000000", at: every(30), ends: 60, lines: 1},
		{name: "a store that is late by an hour", since: "1000", at: func(minute int) string {
			if minute < 60 {
				return "50"
			}
			return "1000"
		}, ends: 60},
		{name: "a store that moves and reaches the version", since: "54", at: every(1), ends: 4},
		{name: "a store without a version", since: "1000000", at: func(int) string { return "" }, ends: never},
		{name: "a store whose versions are no numbers", since: "1000000", at: func(minute int) string { return fmt.Sprint("v", minute) }, ends: never},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				logs, store := testlog.New(), at("50")
				s := consistency.New(consistency.Config{Stores: stores{pods: store, secrets: at("2000000")}})
				ctx := calls.WithSince(logs.Context(t.Context()), tc.since)
				for minute := range 120 {
					store.set(tc.at(minute))
					for range 3 {
						want := tc.ends == never || minute < tc.ends
						if got := consistency.LiveRead(s.Begin(ctx, owner)); got != want {
							t.Fatalf("minute %d: LiveRead = %t, want %t", minute, got, want)
						}
					}
					time.Sleep(time.Minute)
				}
				if lines := logs.All(); len(lines) != tc.lines || len(logs.Find(apartLine)) != tc.lines {
					t.Errorf("lines %v, want %d", lines, tc.lines)
				}
			})
		})
	}
}

// A store that catches up after ten minutes has many events in a few seconds. While it is below the version,
// it is not trusted.
//
// Proves C9.
func TestLateStoreCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := at("50")
		s := consistency.New(consistency.Config{Stores: stores{pods: store}})
		ctx := calls.WithSince(t.Context(), "1000")
		live := func() bool { return consistency.LiveRead(s.Begin(ctx, owner)) }
		for range 15 {
			if !live() {
				t.Fatal("LiveRead is false, and the store has not moved")
			}
			time.Sleep(time.Minute)
		}
		for version := 51; version < 1000; version++ {
			store.set(fmt.Sprint(version))
			if !live() {
				t.Fatalf("LiveRead is false at version %d", version)
			}
			time.Sleep(50 * time.Millisecond)
		}
		if store.set("1000"); live() {
			t.Error("LiveRead is true although the store has reached the version")
		}
	})
}

// Each leader and each owner of a shard has ten minutes of its own. A store that holds an older cache too is not trusted.
//
// Proves C9.
func TestTermsInAnotherEtcd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs, store := testlog.New(), at("0")
		s := consistency.New(consistency.Config{Stores: stores{pods: store}})
		minute := 0
		check := func(when string, ctx context.Context, want bool) {
			t.Helper()
			if got := consistency.LiveRead(s.Begin(ctx, owner)); got != want {
				t.Errorf("%s, minute %d: LiveRead = %t, want %t", when, minute, got, want)
			}
		}
		begin := func(version string) context.Context { return calls.WithSince(logs.Context(t.Context()), version) }
		first, second := begin("1000000"), context.Context(nil)
		for ; minute < 60; minute++ {
			if minute == 8 {
				second = begin("1000008")
			}
			store.set(fmt.Sprint(50 + minute))
			check("the first", first, minute < 12)
			if second != nil {
				check("the second", second, minute < 20)
			}
			time.Sleep(time.Minute)
		}
		store.set("")
		check("the store has an older cache too", first, true)
		store.set("200")
		check("that cache has caught up", first, false)
		if lines := logs.Find(apartLine); len(lines) != 1 {
			t.Errorf("%d lines, want one for the resource: %v", len(lines), logs.All())
		}
	})
}

// TestServerInAnotherEtcd has the versions of an informer of the API server, and a Lease whose version is far above them.
//
// Proves C9.
func TestServerInAnotherEtcd(t *testing.T) {
	f := newFixture(t, jsonType)
	if err := f.writes.RemoveInformer(pods); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	for i, minutes := range []time.Duration{0, 5, 11, 13, 15} {
		cm, err := f.live.CoreV1().ConfigMaps(f.ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		f.writes.Saw(f.key, "", corev1.Resource("configmaps"), cm)
		if err := f.writes.Wait(t.Context(), f.key); err != nil {
			t.Fatal(err)
		}
		now := begun.Add(minutes * time.Minute)
		if !f.writes.ShowsAt(cm.ResourceVersion, now, now) {
			t.Errorf("minute %d: a cache that is current is not trusted", minutes)
		}
		raised := "1000" + cm.ResourceVersion
		if got, want := f.writes.ShowsAt(raised, begun, now), i == 4; got != want {
			t.Errorf("minute %d: trusted %t, want %t, at version %s", minutes, got, want, raised)
		}
	}
}
