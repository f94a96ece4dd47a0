package informer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
)

// TestSyncsRunsAndStops proves I1.
func TestSyncsRunsAndStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(configMap("a"), configMap("b"))
		factory := informers.NewSharedInformerFactory(client, time.Minute) // with resyncs
		configMaps, secrets := factory.Core().V1().ConfigMaps(), factory.Core().V1().Secrets()
		var mu sync.Mutex
		var seen int
		handler, err := configMaps.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { mu.Lock(); seen++; mu.Unlock() }})
		if err != nil {
			t.Fatal(err)
		}
		var set informer.Set
		set.Add("configmaps", configMaps.Informer(), handler)
		set.Add("secrets", secrets.Informer())
		checker := set.HasSyncedChecker() // before Run
		if err := set.Ready(); !errors.Is(err, informer.ErrNotSynced) || set.HasSynced() {
			t.Errorf("before Run: Ready() = %v, HasSynced() = %v", err, set.HasSynced())
		}
		ctx, cancel := context.WithCancel(quiet(t))
		done := make(chan error, 1)
		go func() { done <- set.Run(ctx) }()
		<-checker.Done()
		mu.Lock()
		if seen != 2 {
			t.Errorf("synced while the handler has seen %d of 2 objects", seen)
		}
		mu.Unlock()
		if err := set.Ready(); err != nil || !set.HasSynced() {
			t.Errorf("synced: Ready() = %v, HasSynced() = %v", err, set.HasSynced())
		}
		if _, err := configMaps.Lister().ConfigMaps("default").Get("b"); err != nil {
			t.Errorf("the lister has no b: %v", err)
		}

		time.Sleep(time.Hour) // long after the deadline
		if _, err := client.CoreV1().ConfigMaps("default").Create(ctx, configMap("c"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := configMaps.Lister().ConfigMaps("default").Get("c"); err != nil {
			t.Errorf("the informer does not run any more: %v", err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if !configMaps.Informer().IsStopped() || !secrets.Informer().IsStopped() {
			t.Error("Run returned before the informers have stopped")
		}
		if err := set.Ready(); !errors.Is(err, informer.ErrNotSynced) {
			t.Errorf("stopped: Ready() = %v, want ErrNotSynced", err)
		}
		// The bubble fails if a goroutine is left.
	})
}

// TestStartsTogether proves I1.
func TestStartsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The first can sync only once the second has been asked.
		asked := make(chan struct{})
		var once sync.Once
		first := listWatch(func() error { <-asked; return nil }, func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if o.SendInitialEvents != nil {
				return nil, errors.New("no watch-list")
			}
			return watch.NewFake(), nil
		})
		second := listWatch(func() error { once.Do(func() { close(asked) }); return nil }, func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if o.SendInitialEvents != nil {
				return nil, errors.New("no watch-list")
			}
			return watch.NewFake(), nil
		})
		var set informer.Set
		set.Add("first", first)
		set.Add("second", second)
		ctx, cancel := context.WithCancel(quiet(t))
		done := make(chan error, 1)
		go func() { done <- set.Run(ctx) }()
		<-set.HasSyncedChecker().Done()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
}

func TestWatchErrorHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inf := failing(forbidden("list"))
		if err := inf.SetWatchErrorHandler(func(*cache.Reflector, error) { t.Error("the informer's own handler was called") }); err != nil {
			t.Fatal(err)
		}
		var got []error
		set := informer.Set{WatchErrorHandler: func(_ context.Context, r *cache.Reflector, err error) {
			if r == nil {
				t.Error("no reflector was passed")
			}
			got = append(got, err)
		}}
		set.Add("configmaps", inf)
		if err := set.Run(quiet(t)); err == nil {
			t.Error("Run() = nil")
		}
		if len(got) < 2 || !apierrors.IsForbidden(got[0]) {
			t.Errorf("WatchErrorHandler got %v, want each error", got)
		}
	})
}

// TestWaitForStopIsBounded tests that if an informer does not stop within StopTimeout, Run
// returns an error that names it.
func TestWaitForStopIsBounded(t *testing.T) {
	for _, tc := range []struct {
		name        string
		stopTimeout time.Duration
		extra       time.Duration
		took        time.Duration
		late        bool
	}{
		{name: "default, in time", extra: 4 * time.Second, took: 4 * time.Second},
		{name: "default, late", extra: 6 * time.Second, took: 5 * time.Second, late: true},
		{name: "longer", stopTimeout: time.Minute, extra: 50 * time.Second, took: 50 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				set := informer.Set{StopTimeout: tc.stopTimeout}
				set.Add("quick", healthy())
				set.Add("slow", stubborn{healthy(), tc.extra})
				set.Add("slow too", stubborn{healthy(), tc.extra})
				set.Add("quick too", healthy())
				ctx, cancel := context.WithCancel(quiet(t))
				var cancelled time.Time
				time.AfterFunc(time.Minute, func() { cancelled = time.Now(); cancel() })
				err := set.Run(ctx)
				if got := time.Since(cancelled); got != tc.took {
					t.Errorf("Run took %v to stop, want %v", got, tc.took)
				}
				text := fmt.Sprint(err)
				if tc.late != (strings.Contains(text, `"slow" has not stopped within 5s`) && strings.Contains(text, `"slow too" has not`)) || strings.Contains(text, "quick") || !tc.late && err != nil {
					t.Errorf("Run() = %v, want the slow ones to be named: %v", err, tc.late)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}

// TestPauseOfClientGo shows that the wait is needed with client-go as it is: in its pause
// after a refused connection it does not look at its context.
func TestPauseOfClientGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := informer.Set{StopTimeout: time.Millisecond}
		set.Add("configmaps", failing(errRefused))
		err := set.Run(quiet(t))
		if err == nil || !strings.Contains(err.Error(), "the server could not be reached") || !strings.Contains(err.Error(), `"configmaps" has not stopped within 1ms`) {
			t.Errorf("Run() = %v, want both the reason and that the informer is left behind", err)
		}
		time.Sleep(time.Minute) // and here it ends by itself, or the bubble fails
	})
}

// Whether ctx or Timeout is noticed first is chance when both end at once; it is no
// failure.
func TestContextAndTimeoutEndTogether(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			set := informer.Set{Timeout: time.Second}
			set.Add("configmaps", failing(forbidden("list")))
			ctx, cancel := context.WithTimeout(quiet(t), time.Second)
			defer cancel()
			if err := set.Run(ctx); err != nil {
				t.Errorf("Run() = %v, want nil", err)
			}
		})
	}
}

func TestMisuse(t *testing.T) {
	type registration struct {
		cache.ResourceEventHandlerRegistration
	}
	stopped := func() cache.SharedIndexInformer {
		inf := healthy()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		inf.RunWithContext(ctx)
		return inf
	}
	for _, tc := range []struct {
		name  string
		setup func(*informer.Set)
		want  string
	}{
		{name: "empty", want: "informer: the Set has no informers: call Add before Run"},
		{name: "no name", setup: func(s *informer.Set) { s.Add("", healthy()) }, want: "informer: Add got an empty name: use the resource, errors name informers by it"},
		{name: "nil", setup: func(s *informer.Set) { s.Add("x", nil) }, want: `informer: Add("x") got a nil informer: pass one`},
		{name: "nil pointer", setup: func(s *informer.Set) { s.Add("x", (*stubborn)(nil)) }, want: `informer: Add("x") got a nil informer: pass one`},
		{name: "nil pointer as handler", setup: func(s *informer.Set) { s.Add("x", healthy(), (*registration)(nil)) }, want: `informer: Add("x"): handler 0 is nil: check the error of AddEventHandler`},
		{name: "nil handler", setup: func(s *informer.Set) { s.Add("x", healthy(), nil) }, want: `informer: Add("x"): handler 0 is nil: check the error of AddEventHandler`},
		{name: "same name", setup: func(s *informer.Set) { s.Add("x", healthy()); s.Add("x", healthy()) }, want: `informer: Add("x") was called twice: give every informer its own name`},
		{name: "same informer", setup: func(s *informer.Set) {
			inf := healthy()
			s.Add("x", inf)
			s.Add("y", another{inf})
		}, want: `informer: Add("y"): the informer is already in the set as "x": pass all its handlers to one Add`},
		{name: "stopped", setup: func(s *informer.Set) { s.Add("x", stopped()) }, want: `informer: "x" was stopped before Run: an informer runs once, create a new one`},
		{name: "negative timeout", setup: func(s *informer.Set) { s.Timeout = -1; s.Add("x", healthy()) }, want: "informer: Set.Timeout is -1ns: set it to more than 0, or 0 for 20s"},
		{name: "negative stop timeout", setup: func(s *informer.Set) { s.StopTimeout = -1; s.Add("x", healthy()) }, want: "informer: Set.StopTimeout is -1ns: set it to more than 0, or 0 for 5s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var set informer.Set
			if tc.setup != nil {
				tc.setup(&set)
			}
			if err := set.Run(quiet(t)); err == nil || err.Error() != tc.want {
				t.Errorf("Run() = %v\nwant    %s", err, tc.want)
			}
		})
	}
}

// another is another value of the same informer, such as a TypedSharedIndexInformer.
type another struct{ cache.SharedIndexInformer }

func TestInformerStartedElsewhereIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(quiet(t))
		inf, other := healthy(), healthy()
		done := make(chan struct{})
		go func() { defer close(done); inf.RunWithContext(ctx) }()
		synctest.Wait()
		var set informer.Set
		set.Add("other", other)
		set.Add("configmaps", inf)
		err := set.Run(ctx)
		want := `informer: "configmaps" cannot be started: informer has already started: only the Set may start it, do not call the factory's Start or the informer's Run`
		if err == nil || err.Error() != want {
			t.Errorf("Run() = %v, want %s", err, want)
		}
		if other.HasSynced() {
			t.Error("the other informer was started")
		}
		if got, want := set.Ready().Error(), "informer: not synced: stopped"; got != want {
			t.Errorf("Ready() = %s, want %s", got, want)
		}
		cancel()
		<-done
	})
}

func TestInformerThatEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inf := healthy()
		var set informer.Set
		set.Add("configmaps", brief{inf})
		set.Add("other", healthy())
		err := set.Run(quiet(t))
		if err == nil || err.Error() != `informer: "configmaps" ended by itself: only the Set may start and stop it` {
			t.Errorf("Run() = %v, want an error about the informer that ended", err)
		}
	})
}

func TestRunTwiceAndAddAfterRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var set informer.Set
		set.Add("x", healthy())
		time.AfterFunc(time.Minute, func() { set.Add("y", healthy()) })
		want := `informer: Add("y") was called after Run: add all informers before Run`
		if err := set.Run(quiet(t)); err == nil || err.Error() != want {
			t.Errorf("Run() = %v, want %s", err, want)
		}
		want = "informer: Run was called twice: informers run once, create new ones and a new Set"
		if err := set.Run(quiet(t)); err == nil || err.Error() != want {
			t.Errorf("second Run() = %v, want %s", err, want)
		}
	})
}

func TestAskedToStopBeforeSyncIsNoError(t *testing.T) {
	for _, tc := range []struct {
		name  string
		after time.Duration
	}{{name: "before Run"}, {name: "while syncing", after: time.Second}} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inf := failing(forbidden("list"))
				var set informer.Set
				set.Add("x", inf)
				ctx, cancel := context.WithTimeout(quiet(t), tc.after)
				defer cancel()
				if err := set.Run(ctx); err != nil {
					t.Errorf("Run() = %v, want nil", err)
				}
				if tc.after == 0 && inf.IsStopped() {
					t.Error("the informer was started")
				}
				if got, want := set.Ready().Error(), "informer: not synced: stopped"; got != want {
					t.Errorf("Ready() = %s, want %s", got, want)
				}
			})
		})
	}
}

// TestTransformReturnsNil: if a transform without Guard returns nil for an object, client-go
// leaves others out of the cache without an error. The process continues, and an Audit reports
// the cache.
func TestTransformReturnsNil(t *testing.T) {
	for _, broken := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			transform := informers.WithTransform(func(obj any) (any, error) {
				if o, ok := obj.(*corev1.ConfigMap); broken && ok && o.Name == "a" {
					return nil, nil
				}
				return obj, nil
			})
			a, b := configMap("a"), configMap("b")
			a.UID, b.UID = "1", "2"
			client := fake.NewClientset(a, b)
			inf := informers.NewSharedInformerFactoryWithOptions(client, 0, transform).Core().V1().ConfigMaps().Informer()
			set := &informer.Set{}
			set.Add("configmaps", inf)
			var found []informer.Difference
			audits := &informer.Audit{Report: func(d informer.Difference) { found = append(found, d) }}
			audits.Add("configmaps", inf, func(ctx context.Context, opts metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
				all, err := client.CoreV1().ConfigMaps("").List(ctx, opts)
				if err != nil {
					return nil, err
				}
				list := &metav1.PartialObjectMetadataList{ListMeta: all.ListMeta}
				for _, obj := range all.Items {
					list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: obj.ObjectMeta})
				}
				return list, nil
			})
			ctx, stop := context.WithTimeout(quiet(t), 19*time.Minute) // one round
			defer stop()
			done := make(chan error, 1)
			go func() { done <- set.Run(ctx) }()
			if err := audits.Run(ctx); err != nil {
				t.Error(err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			if got := inf.GetStore().ListKeys(); len(found) > 0 != broken || len(got) == 2 == broken {
				t.Errorf("broken is %t, the cache has %v, and the Audit reports %v", broken, got, found)
			}
		})
	}
}
