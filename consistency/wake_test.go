package consistency_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
)

func TestEventLooksAtWhomItConcerns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiting = 1000
		store := &counted{version: at("1")}
		s := consistency.New(consistency.Config{Stores: stores{pods: store}, RecheckInterval: time.Hour, MaxWait: -1})
		woken := 0
		for i := range waiting {
			key := types.NamespacedName{Name: fmt.Sprint(i)}
			s.WroteAt(key, "u", pods, strconv.Itoa(100+i))
			if s.Ready(key, func() { woken++ }) {
				t.Fatal("Ready = true before the write is in the cache")
			}
		}
		s.Deleted(owner, "u", secrets, other, "gone") // a resource without a store: looked at each time
		s.Ready(owner, nil)
		for i := range waiting {
			store.reads = 0
			store.set(strconv.Itoa(100 + i))
			s.Handler().OnUpdate(nil, nil)
			if woken != i+1 {
				t.Fatalf("%d woken after %d events, want one by each", woken, i+1)
			}
			if store.reads > 5 {
				t.Fatalf("an event read the version of the store %d times, want a few", store.reads)
			}
			if entries, timer := s.Waits(); entries != waiting-i || !timer {
				t.Fatalf("%d entries, timer %v after %d events", entries, timer, i+1)
			}
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if entries, timer := s.Waits(); entries != 1 || !timer {
			t.Errorf("%d entries, timer %v after a recheck; one waits", entries, timer)
		}
		s.Clear(owner, "")
		if _, timer := s.Waits(); timer {
			t.Error("a timer runs and nobody waits")
		}
		s.WroteAt(owner, "u", pods, "10000")
		s.Ready(owner, nil)
		store.set("10000")
		s.Handler().OnUpdate(nil, nil)
		if _, timer := s.Waits(); timer {
			t.Error("a timer runs after an event and nobody waits")
		}
		s.WroteAt(owner, "u", pods, "20000")
		s.Ready(owner, nil)
		store.set("20000")
		time.Sleep(time.Hour)
		synctest.Wait()
		if _, timer := s.Waits(); timer {
			t.Error("a timer runs after a recheck and nobody waits")
		}
	})
}

// Whatever owners wait for, and however that changes meanwhile, the event with which
// one becomes ready wakes it: nothing here depends on the timer.
//
// Proves C2.
func TestEventWakes(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			resources := []schema.GroupResource{pods, secrets}
			versions := map[schema.GroupResource]int{pods: 1, secrets: 1}
			held := map[schema.GroupResource]*version{pods: at("1"), secrets: at("1")}
			s := consistency.New(consistency.Config{Stores: stores{pods: held[pods], secrets: held[secrets]}, RecheckInterval: time.Hour, MaxWait: -1})
			type waits struct{ started, woken int }
			owners := map[types.NamespacedName]*waits{}
			for i := range 8 {
				owners[types.NamespacedName{Name: fmt.Sprint(i)}] = &waits{}
			}
			for range 200 {
				key := types.NamespacedName{Name: fmt.Sprint(r.IntN(len(owners)))}
				resource := resources[r.IntN(len(resources))]
				w := owners[key]
				switch r.IntN(6) {
				case 0, 1:
					s.WroteAt(key, types.UID(fmt.Sprint(r.IntN(20)/19)), resource, strconv.Itoa(versions[resource]+r.IntN(8)))
				case 2:
					w.started++
					if s.Ready(key, func() { w.woken++ }) {
						w.started--
					}
				case 3:
					s.Clear(key, "")
					if w.started != w.woken {
						t.Fatalf("seed %d: %s was not woken by Clear", seed, key.Name)
					}
				default:
					versions[resource] += r.IntN(3)
					held[resource].set(strconv.Itoa(versions[resource]))
					s.Handler().OnUpdate(nil, nil)
					for key, w := range owners {
						if w.started > w.woken && s.EnsureReady(key) == nil {
							t.Fatalf("seed %d: %s is ready and was not woken", seed, key.Name)
						}
					}
				}
			}
			for key, w := range owners {
				s.Clear(key, "")
				if w.started != w.woken {
					t.Fatalf("seed %d: %s waited %d times and was woken %d times", seed, key.Name, w.started, w.woken)
				}
			}
		})
	}
}

// stopped is an informer that takes no handler any more.
type stopped struct {
	cache.SharedInformer
	store cache.Store
	then  func()
}

func (i *stopped) GetStore() cache.Store { return i.store }
func (i *stopped) AddEventHandler(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	i.then()
	return nil, errors.New("stopped")
}

// Somebody can wait for a store that turns out not to be one.
func TestStoreThatIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := consistency.New(consistency.Config{RecheckInterval: time.Hour})
		s.WroteAt(owner, "u", pods, "2")
		informer := &stopped{store: cache.NewStore(cache.MetaNamespaceKeyFunc), then: func() { s.Ready(owner, nil) }}
		if err := s.AddInformer(pods, informer); err == nil {
			t.Fatal("AddInformer = nil")
		}
		s.Handler().OnUpdate(nil, nil)
		if err := s.EnsureReady(owner); err == nil || !strings.Contains(err.Error(), "no store") {
			t.Errorf("EnsureReady = %v, want no store", err)
		}
		s.Clear(owner, "")
	})
}

// What owners that gave up waiting leave behind does not grow.
func TestWakesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := consistency.New(consistency.Config{Stores: stores{pods: at("1")}, RecheckInterval: time.Hour, MaxWait: -1})
		for i := range 1000 {
			key := types.NamespacedName{Name: fmt.Sprint(i)}
			s.WroteAt(key, "u", pods, "2")
			s.Ready(key, nil)
			s.Clear(key, "")
		}
		if got, _ := s.Waits(); got > 100 {
			t.Errorf("%d entries and nobody waits", got)
		}
		s.WroteAt(owner, "u", pods, "2")
		for i := range 1000 {
			s.Ready(owner, nil)
			s.WroteAt(owner, types.UID(fmt.Sprint(i)), pods, "2")
			s.Handler().OnUpdate(nil, nil)
		}
		if got, _ := s.Waits(); got > 100 {
			t.Errorf("%d entries of one owner that waits", got)
		}
		s.Clear(owner, "")
	})
}

// Waits that end with their contexts leave nothing behind, and do not disturb another wait for
// the same key.
func TestWaitsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := at("1")
		s := consistency.New(consistency.Config{Stores: stores{pods: pod}, RecheckInterval: time.Hour, MaxWait: -1})
		s.WroteAt(owner, "u", pods, "2")
		ended, end := context.WithCancel(t.Context())
		end()
		for range 1000 {
			if err := s.Wait(ended, owner); !errors.Is(err, context.Canceled) {
				t.Fatalf("Wait = %v, want an error of its context", err)
			}
		}
		if got, _ := s.Waits(); got > 100 {
			t.Errorf("%d entries and nobody waits", got)
		}

		short, cancel := context.WithCancel(t.Context())
		waits := make(chan error, 2)
		go func() { waits <- s.Wait(short, owner) }()
		synctest.Wait()
		go func() { waits <- s.Wait(t.Context(), owner) }()
		synctest.Wait()
		cancel()
		if err := <-waits; !errors.Is(err, context.Canceled) {
			t.Errorf("the first Wait = %v, want an error of its context", err)
		}
		pod.set("2")
		s.Handler().OnUpdate(nil, nil)
		if err := <-waits; err != nil {
			t.Errorf("the second Wait = %v, want nil", err)
		}
	})
}
