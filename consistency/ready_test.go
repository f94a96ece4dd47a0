package consistency_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/consistency"
)

// TestReadyWakesOnce proves C2.
func TestReadyWakesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := at("5")
		s := consistency.New(consistency.Config{Stores: stores{pods: store}, RecheckInterval: time.Second, MaxWait: -1})
		var woken []string
		wake := func(what string) func() { return func() { woken = append(woken, what) } }
		if !s.Ready(owner, wake("nothing written")) {
			t.Error("Ready = false for an owner without a write")
		}
		s.WroteAt(owner, "u", pods, "10")
		s.WroteAt(other, "u", pods, "12")
		if s.Ready(owner, wake("owner")) || s.Ready(owner, wake("owner again")) || s.Ready(other, wake("other")) {
			t.Error("Ready = true while the store is behind")
		}
		time.Sleep(time.Hour)
		synctest.Wait() // a recheck is due at this moment too
		if len(woken) > 0 {
			t.Errorf("woken: %v, want nobody yet", woken)
		}
		store.set("11")
		s.Handler().OnAdd(nil, false)
		s.Handler().OnAdd(nil, false)
		if diff := cmp.Diff([]string{"owner", "owner again"}, woken); diff != "" {
			t.Errorf("woken (-want +got):\n%s", diff)
		}
		// A write that is made before the wake means waiting for it too.
		s.WroteAt(other, "u", pods, "13")
		store.set("12")
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(woken) != 2 {
			t.Errorf("woken: %v, want other to wait for its second write", woken)
		}
		store.set("13")
		time.Sleep(time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{"owner", "owner again", "other"}, woken); diff != "" {
			t.Errorf("woken (-want +got):\n%s", diff)
		}
		time.Sleep(time.Hour)
		if !s.Ready(owner, wake("ready")) || len(woken) != 3 {
			t.Errorf("woken: %v, want nobody twice", woken)
		}
	})
}

// The timer runs only while somebody waits, however the waiting ends.
func TestRechecksOnlyWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := &counting{version: at("5")}
		s := consistency.New(consistency.Config{Stores: stores{pods: asked}})
		idle := func(when string) {
			t.Helper()
			before := asked.n.Load()
			time.Sleep(time.Hour)
			if n := asked.n.Load() - before; n != 0 {
				t.Errorf("%s the store was asked %d times in an hour, want not at all", when, n)
			}
			if _, timer := s.Waits(); timer {
				t.Errorf("%s a timer runs", when)
			}
		}
		s.WroteAt(owner, "u", pods, "10")
		idle("before anybody waits")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		before := asked.n.Load()
		if err := s.Wait(ctx, owner); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait = %v", err)
		}
		if n := asked.n.Load() - before; n < 49 || n > 53 {
			t.Errorf("asked %d times while waiting 10s, want every 200ms", n)
		}
		idle("after Wait has ended")
		s.Ready(owner, func() {})
		asked.set("10")
		time.Sleep(time.Second)
		idle("after the wake")
	})
}

// A key that begins to wait does not postpone the check of a key that waits already.
func TestRecheckIsNotPostponed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := at("5")
		s := consistency.New(consistency.Config{Stores: stores{pods: store}, AmbiguousWait: 100 * time.Millisecond})
		start, woken := time.Now(), time.Duration(0)
		s.WroteAt(owner, "u", pods, "10")
		s.Ready(owner, func() { woken = time.Since(start) })
		time.Sleep(100 * time.Millisecond)
		s.WroteAt(other, "u", pods, "11")
		s.Ready(other, nil)
		time.Sleep(50 * time.Millisecond)
		third := types.NamespacedName{Namespace: "ns", Name: "third"}
		lose(t, s, third)
		s.Ready(third, nil) // bounded at 250ms
		store.set("10")
		time.Sleep(time.Second)
		synctest.Wait()
		if woken != 200*time.Millisecond {
			t.Errorf("woken after %v, want the check at 200ms", woken)
		}
		s.Clear(other, "")
	})
}

type counting struct {
	*version
	n atomic.Int64
}

func (c *counting) LastStoreSyncResourceVersion() string {
	c.n.Add(1)
	return c.version.LastStoreSyncResourceVersion()
}

// No wake is lost or doubled when everything happens at once.
//
// Proves C2.
func TestWakesUnderRaces(t *testing.T) {
	for _, handlers := range []bool{true, false} {
		t.Run(fmt.Sprintf("handlers=%v", handlers), func(t *testing.T) {
			const owners, writes = 20, 50
			store := at("1")
			s := consistency.New(consistency.Config{Stores: stores{pods: store}, RecheckInterval: time.Millisecond})
			var rv atomic.Int64
			rv.Store(1)
			stop := make(chan struct{})
			var informer, workers sync.WaitGroup
			informer.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						store.set(fmt.Sprint(rv.Load()))
						if handlers {
							s.Handler().OnUpdate(nil, nil)
						}
						runtime.Gosched()
					}
				}
			})
			var doubled atomic.Int64
			for i := range owners {
				key := types.NamespacedName{Name: fmt.Sprint(i)}
				workers.Go(func() {
					for range writes {
						wrote := rv.Add(1)
						s.WroteAt(key, "u", pods, fmt.Sprint(wrote))
						var calls atomic.Int64
						woken := make(chan struct{})
						if !s.Ready(key, func() {
							if calls.Add(1) > 1 {
								doubled.Add(1)
								return
							}
							close(woken)
						}) {
							<-woken // a lost wake hangs here
						} else if calls.Load() > 0 {
							doubled.Add(1)
						}
						if err := s.EnsureReady(key); err != nil {
							t.Errorf("woken, but %v", err)
						}
						s.WroteAt(key, "u", pods, fmt.Sprint(rv.Add(1)))
						if err := s.Wait(t.Context(), key); err != nil {
							t.Errorf("Wait = %v", err)
						}
						s.End(key)
					}
				})
			}
			workers.Wait()
			close(stop)
			informer.Wait()
			if n := doubled.Load(); n > 0 {
				t.Errorf("%d wakes too many", n)
			}
		})
	}
}
