package consistency_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
	"weak"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clientfeatures "k8s.io/client-go/features"
	featuretest "k8s.io/client-go/features/testing"
	"k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/consistency"
)

var (
	pods    = schema.GroupResource{Resource: "pods"}
	secrets = schema.GroupResource{Resource: "secrets"}
	owner   = types.NamespacedName{Namespace: "ns", Name: "owner"}
	other   = types.NamespacedName{Namespace: "ns", Name: "other"}
)

// The interface of client-go 0.38, word for word.
var _ interface {
	WroteAt(owner types.NamespacedName, ownerUID types.UID, resource schema.GroupResource, rv string)
	Clear(owner types.NamespacedName, ownerUID types.UID)
	EnsureReady(owner types.NamespacedName) error
} = (*consistency.Store)(nil)

// The gate of a reconcile loop.
var _ interface {
	Begin(ctx context.Context, key types.NamespacedName) context.Context
	Ready(key types.NamespacedName, wake func()) bool
	End(key types.NamespacedName)
} = (*consistency.Store)(nil)

// TestEnsureReady proves C1.
func TestEnsureReady(t *testing.T) {
	type write struct {
		uid      types.UID
		resource schema.GroupResource
		rv       string
	}
	for _, tc := range []struct {
		name   string
		writes []write
		read   map[schema.GroupResource]string
		stale  *consistency.StaleError // nil means ready
		text   string                  // of another error
	}{
		{name: "nothing written", read: map[schema.GroupResource]string{pods: ""}},
		{name: "store behind", writes: []write{{"u", pods, "10"}}, read: map[schema.GroupResource]string{pods: "9"},
			stale: &consistency.StaleError{GroupResource: pods, ReadRV: "9", WroteRV: "10"}},
		{name: "compared as numbers", writes: []write{{"u", pods, "99"}}, read: map[schema.GroupResource]string{pods: "100"}},
		{name: "longer than 64 bits", writes: []write{{"u", pods, "99999999999999999999999"}}, read: map[schema.GroupResource]string{pods: "99999999999999999999998"},
			stale: &consistency.StaleError{GroupResource: pods, ReadRV: "99999999999999999999998", WroteRV: "99999999999999999999999"}},
		{name: "store there", writes: []write{{"u", pods, "10"}}, read: map[schema.GroupResource]string{pods: "10"}},
		{name: "the highest write counts", writes: []write{{"u", pods, "10"}, {"u", pods, "12"}, {"u", pods, "11"}}, read: map[schema.GroupResource]string{pods: "11"},
			stale: &consistency.StaleError{GroupResource: pods, ReadRV: "11", WroteRV: "12"}},
		{name: "every resource counts", writes: []write{{"u", pods, "10"}, {"u", secrets, "11"}}, read: map[schema.GroupResource]string{pods: "20", secrets: "10"},
			stale: &consistency.StaleError{GroupResource: secrets, ReadRV: "10", WroteRV: "11"}},
		{name: "store without a version", writes: []write{{"u", pods, "10"}}, read: map[schema.GroupResource]string{pods: ""},
			stale: &consistency.StaleError{GroupResource: pods, ReadRV: "", WroteRV: "10"}},
		{name: "store's version does not compare", writes: []write{{"u", pods, "10"}}, read: map[schema.GroupResource]string{pods: "x"},
			stale: &consistency.StaleError{GroupResource: pods, ReadRV: "x", WroteRV: "10"}},
		{name: "resource without a store", writes: []write{{"u", pods, "10"}}, text: "has no store: use AddInformer or Config.Stores"},
		{name: "nil store", writes: []write{{"u", pods, "10"}}, read: map[schema.GroupResource]string{pods: "nil"}, text: "has no store"},
		{name: "versions that are none", writes: []write{{"u", pods, ""}, {"u", pods, "0"}, {"u", pods, "x"}, {"u", pods, "010"}}, read: map[schema.GroupResource]string{pods: "1"}},
		{name: "another UID is another owner", writes: []write{{"u", pods, "10"}, {"v", secrets, "5"}}, read: map[schema.GroupResource]string{pods: "1", secrets: "5"}},
		{name: "no UID is any", writes: []write{{"u", pods, "10"}, {"", secrets, "5"}}, read: map[schema.GroupResource]string{pods: "9", secrets: "5"},
			stale: &consistency.StaleError{GroupResource: pods, ReadRV: "9", WroteRV: "10"}},
		{name: "a UID for what had none", writes: []write{{"", pods, "10"}, {"u", secrets, "5"}}, read: map[schema.GroupResource]string{pods: "9", secrets: "5"},
			stale: &consistency.StaleError{GroupResource: pods, ReadRV: "9", WroteRV: "10"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := consistency.Config{Stores: stores{}}
			for resource, rv := range tc.read {
				cfg.Stores[resource] = at(rv)
				if rv == "nil" {
					cfg.Stores[resource] = nil
				}
			}
			s := consistency.New(cfg)
			for _, w := range tc.writes {
				s.WroteAt(owner, w.uid, w.resource, w.rv)
			}
			err := s.EnsureReady(owner)
			var stale *consistency.StaleError
			errors.As(err, &stale)
			if diff := cmp.Diff(tc.stale, stale); diff != "" {
				t.Errorf("StaleError (-want +got):\n%s", diff)
			}
			var marked controllerkit.StaleError
			if isStale := errors.As(err, &marked) && marked.Stale(); isStale != (tc.stale != nil) {
				t.Errorf("Stale() = %v, want %v", isStale, tc.stale != nil)
			}
			if tc.stale == nil && (err != nil) != (tc.text != "") || tc.text != "" && !strings.Contains(fmt.Sprint(err), tc.text) {
				t.Errorf("error = %v, want %q", err, tc.text)
			}
			if err := s.EnsureReady(other); err != nil {
				t.Errorf("another owner: %v, want nil", err)
			}
		})
	}
}

// Once ready, an owner is forgotten: a store that goes back does not matter any more.
func TestReadyIsForgotten(t *testing.T) {
	store := at("10")
	s := consistency.New(consistency.Config{Stores: stores{pods: store}})
	for _, tc := range []struct {
		name string
		call func()
	}{
		{"EnsureReady", func() { _ = s.EnsureReady(owner) }},
		{"Ready", func() { s.Ready(owner, nil) }},
		{"Wait", func() { _ = s.Wait(t.Context(), owner) }},
		{"End", func() { s.End(owner) }},
		{"Clear", func() { store.set("1"); s.Clear(owner, "u") }},
		{"Clear of any", func() { store.set("1"); s.Clear(owner, "") }},
	} {
		store.set("10")
		s.WroteAt(owner, "u", pods, "10")
		tc.call()
		store.set("9")
		if err := s.EnsureReady(owner); err != nil {
			t.Errorf("after %s: %v, want it forgotten", tc.name, err)
		}
	}
	s.WroteAt(owner, "u", pods, "10")
	s.Clear(owner, "v")
	s.End(owner)
	if err := s.EnsureReady(owner); err == nil {
		t.Error("forgotten by Clear of another UID, or by End while the store is behind")
	}
}

func TestWait(t *testing.T) {
	cause := errors.New("lease lost")
	for _, tc := range []struct {
		name    string
		do      func(s *consistency.Store, store *version, cancel context.CancelCauseFunc)
		took    time.Duration
		wantErr error
	}{
		{name: "woken by an event", took: time.Second, do: func(s *consistency.Store, store *version, _ context.CancelCauseFunc) {
			store.set("10")
			s.Handler().OnUpdate(nil, nil)
		}},
		{name: "found by the re-check", took: 60 * time.Second, do: func(_ *consistency.Store, store *version, _ context.CancelCauseFunc) { store.set("10") }},
		{name: "cleared", took: time.Second, do: func(s *consistency.Store, _ *version, _ context.CancelCauseFunc) { s.Clear(owner, "") }},
		{name: "ctx", took: time.Second, wantErr: cause, do: func(_ *consistency.Store, _ *version, cancel context.CancelCauseFunc) { cancel(cause) }},
		{name: "ctx, after progress", took: time.Second, wantErr: cause, do: func(_ *consistency.Store, store *version, cancel context.CancelCauseFunc) {
			store.set("9")
			cancel(cause)
		}},
		{name: "an event that is not enough", took: 60 * time.Second, do: func(s *consistency.Store, store *version, _ context.CancelCauseFunc) {
			store.set("9")
			s.Handler().OnDelete(nil)
			store.set("10")
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := at("5")
				s := consistency.New(consistency.Config{Stores: stores{pods: store}, RecheckInterval: time.Minute})
				s.WroteAt(owner, "u", pods, "10")
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				start := time.Now()
				time.AfterFunc(time.Second, func() { tc.do(s, store, cancel) })
				err := s.Wait(ctx, owner)
				if took := time.Since(start); took != tc.took {
					t.Errorf("Wait took %v, want %v", took, tc.took)
				}
				if !errors.Is(err, tc.wantErr) || tc.wantErr == nil && err != nil {
					t.Errorf("Wait = %v, want %v", err, tc.wantErr)
				}
				var stale *consistency.StaleError
				if tc.wantErr != nil && (!errors.As(err, &stale) || stale.WroteRV != "10" || stale.ReadRV != store.LastStoreSyncResourceVersion()) {
					t.Errorf("Wait = %v, want it to say what was missing", err)
				}
			})
		})
	}

	// Ready just after ctx: what was found ready is not reported as missing. Wait
	// may run before that, and then rightly reports it, so not every round is one.
	t.Run("tie", func(t *testing.T) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // or there is hardly a tie
		ready := 0
		for range 100 {
			synctest.Test(t, func(t *testing.T) {
				store := at("5")
				s := consistency.New(consistency.Config{Stores: stores{pods: store}})
				s.WroteAt(owner, "u", pods, "10")
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Second, func() {
					cancel()
					store.set("10")
					s.Handler().OnUpdate(nil, nil)
				})
				if err := s.Wait(ctx, owner); err == nil {
					ready++
				}
			})
		}
		if ready == 0 {
			t.Error("Wait reported a missing write in all of 100 ties")
		}
	})

	t.Run("a resource without a store", func(t *testing.T) {
		s := consistency.New(consistency.Config{})
		s.WroteAt(owner, "u", pods, "10")
		if err := s.Wait(t.Context(), owner); err == nil || !strings.Contains(err.Error(), "no store") {
			t.Errorf("Wait = %v, want an error at once", err)
		}
	})
}

// Random programs against the obvious model: a set of writes for each owner.
//
// Proves C1.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		versions := map[schema.GroupResource]int{pods: 1, secrets: 1}
		backing := map[schema.GroupResource]*version{pods: at("1"), secrets: at("1")}
		s := consistency.New(consistency.Config{Stores: stores{pods: backing[pods], secrets: backing[secrets]}, RecheckInterval: time.Hour, MaxWait: -1})
		type unseen struct {
			uid    types.UID
			writes map[schema.GroupResource]int
		}
		model := map[types.NamespacedName]unseen{}
		waiting := map[types.NamespacedName]int{}
		woken := map[types.NamespacedName]int{}
		ready := func(key types.NamespacedName) bool {
			for resource, rv := range model[key].writes {
				if versions[resource] < rv {
					return false
				}
			}
			delete(model, key)
			return true
		}
		settle := func() {
			for key := range waiting {
				if ready(key) {
					delete(waiting, key)
				}
			}
		}
		keys := rapid.SampledFrom([]types.NamespacedName{owner, other})
		resources := rapid.SampledFrom([]schema.GroupResource{pods, secrets})
		uids := rapid.SampledFrom([]types.UID{"u", "v", ""})
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				key, resource, uid, rv := keys.Draw(t, "key"), resources.Draw(t, "resource"), uids.Draw(t, "uid"), rapid.IntRange(1, 30).Draw(t, "rv")
				s.WroteAt(key, uid, resource, fmt.Sprint(rv))
				m := model[key]
				if m.writes == nil || m.uid != "" && uid != "" && m.uid != uid {
					m = unseen{uid: uid, writes: map[schema.GroupResource]int{}}
				}
				if m.uid == "" {
					m.uid = uid
				}
				m.writes[resource] = max(m.writes[resource], rv)
				model[key] = m
			},
			"cache": func(t *rapid.T) {
				resource := resources.Draw(t, "resource")
				versions[resource] += rapid.IntRange(0, 5).Draw(t, "step")
				backing[resource].set(fmt.Sprint(versions[resource]))
				s.Handler().OnUpdate(nil, nil)
				settle()
			},
			"ready": func(t *rapid.T) {
				key := keys.Draw(t, "key")
				got := s.Ready(key, func() { woken[key]++ })
				if want := ready(key); got != want {
					t.Fatalf("Ready(%s) = %v, want %v", key, got, want)
				}
				if !got {
					waiting[key]++
					woken[key]--
				}
			},
			"clear": func(t *rapid.T) {
				key, uid := keys.Draw(t, "key"), uids.Draw(t, "uid")
				s.Clear(key, uid)
				if uid == "" || model[key].uid == uid {
					delete(model, key)
				}
				settle()
			},
			"end": func(t *rapid.T) {
				key := keys.Draw(t, "key")
				s.End(key)
				ready(key)
			},
			"": func(t *rapid.T) {
				for _, key := range []types.NamespacedName{owner, other} {
					if got, want := woken[key], -waiting[key]; got != want {
						t.Fatalf("%s: %d wakes too many (negative: outstanding), want %d", key, got, want)
					}
				}
			},
		})
	})
}

// memory makes names and counts those that are still reachable. Other than the size of the
// heap, the count is not changed by what other goroutines do.
type memory []weak.Pointer[byte]

func (m *memory) name(n int) string {
	name := fmt.Sprintf("an-owner-whose-name-is-an-allocation-of-its-own-%d", n)
	*m = append(*m, weak.Make(unsafe.StringData(name)))
	return name
}

func (m memory) count() int {
	runtime.GC()
	held := 0
	for _, p := range m {
		if p.Value() != nil {
			held++
		}
	}
	return held
}

// Owners that are never asked for again do not fill the memory.
func TestMemoryIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for 3s")
	}
	store := at("1")
	s := consistency.New(consistency.Config{Stores: stores{pods: store}})
	var held memory
	for i := range 200_000 {
		rv := fmt.Sprint(i + 1)
		s.WroteAt(types.NamespacedName{Name: held.name(i)}, "u", pods, rv)
		store.set(rv)
	}
	if got := held.count(); got > 100 {
		t.Errorf("%d names are held for owners whose writes were seen, want almost none", got)
	}
	runtime.KeepAlive(s)
}

// A real informer over a scripted watch: the store moves, then the handler wakes.
func TestAddInformer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := watch.NewFakeWithChanSize(10, false)
		pod := func(name, rv string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: rv}}
		}
		lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (k8sruntime.Object, error) {
				return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "5"}}, nil
			},
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return events, nil },
		}, noWatchList{})
		informer := cache.NewSharedIndexInformer(lw, &corev1.Pod{}, 0, nil)
		s := consistency.New(consistency.Config{RecheckInterval: 24 * time.Hour})
		s.WroteAt(owner, "u", pods, "5")
		early := false
		if s.Ready(owner, func() { early = true }) {
			t.Error("Ready before the resource has a store")
		}
		if err := s.AddInformer(pods, informer); err != nil {
			t.Fatal(err)
		}
		if err := s.AddInformer(pods, informer); err == nil || !strings.Contains(err.Error(), "already has a store") {
			t.Errorf("a second informer for a resource: %v, want an error", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { informer.RunWithContext(ctx) })
		synctest.Wait()

		s.WroteAt(owner, "u", pods, "7")
		if err := s.EnsureReady(owner); err == nil {
			t.Error("EnsureReady = nil before the informer saw the write")
		}
		woken := false
		if s.Ready(owner, func() { woken = true }) {
			t.Error("Ready before the informer saw the write")
		}
		events.Add(pod("a", "6"))
		synctest.Wait()
		if woken {
			t.Error("woken by an older event")
		}
		events.Modify(pod("a", "8"))
		synctest.Wait()
		if !woken || !early {
			t.Errorf("woken = %v, waiter from before AddInformer woken = %v, want both", woken, early)
		}
		cancel()
		wg.Wait()
		s2 := consistency.New(consistency.Config{})
		if err := s2.AddInformer(pods, informer); err == nil || !strings.Contains(err.Error(), "add handler") {
			t.Errorf("a stopped informer: %v, want an error", err)
		}
	})
}

// A store without versions is never ready, and the cause is a variable of the environment.
func TestAddInformerWithoutVersions(t *testing.T) {
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, nil)
	s := consistency.New(consistency.Config{})
	featuretest.SetFeatureDuringTest(t, clientfeatures.AtomicFIFO, false)
	if err := s.AddInformer(pods, informer); err == nil || !strings.Contains(err.Error(), "remove KUBE_FEATURE_AtomicFIFO=false") {
		t.Errorf("without client-go's AtomicFIFO: %v, want an error with the cure", err)
	}
	featuretest.SetFeatureDuringTest(t, clientfeatures.AtomicFIFO, true)
	if err := s.AddInformer(pods, informer); err != nil {
		t.Errorf("with client-go's AtomicFIFO: %v", err)
	}
}
