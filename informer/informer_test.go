package informer_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/klog/v2/textlogger"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestMain(m *testing.M) {
	// The second of apimachinery's error handlers spaces errors by 1 ms since the
	// last one, which it keeps for the process. Each synctest bubble begins in
	// the year 2000, so an error of an earlier bubble would be one of the future
	// and the handler would sleep until then.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	testserver.Main(m)
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

// listWatch makes an informer of ConfigMaps from two functions. It uses the
// watch-list protocol, as real clients do.
func listWatch(list func() error, watchFn func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			if err := list(); err != nil {
				return nil, err
			}
			return &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
		},
		WatchFuncWithContext: watchFn,
	}, &corev1.ConfigMap{}, 0, cache.Indexers{})
}

// healthy lists nothing and then watches for ever.
func healthy() cache.SharedIndexInformer {
	return listWatch(func() error { return nil }, func(_ context.Context, opts metav1.ListOptions) (watch.Interface, error) {
		if opts.SendInitialEvents != nil {
			return nil, errors.New("the server has no watch-list")
		}
		return watch.NewFake(), nil
	})
}

// failing answers both verbs with err.
func failing(err error) cache.SharedIndexInformer {
	return listWatch(func() error { return err }, func(context.Context, metav1.ListOptions) (watch.Interface, error) { return nil, err })
}

func forbidden(verb string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "", errors.New(`User "joe" cannot `+verb+` resource "configmaps"`))
}

var errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}

// quiet drops client-go's own lines, which failures here make many of.
func quiet(t *testing.T) context.Context {
	return klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(io.Discard))))
}

// TestSyncsRunsAndStops proves I1, I4.
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

// TestDiagnosis proves I2.
func TestDiagnosis(t *testing.T) {
	missing := apierrors.NewGenericServerResponse(404, "list", schema.GroupResource{Group: "example.com", Resource: "widgets"}, "", "page not found", 0, true)
	for _, tc := range []struct {
		name     string
		informer func(t *testing.T) cache.SharedIndexInformer
		timeout  time.Duration
		after    time.Duration // when Run ends; 0 means 20s
		want     []string
		is       func(error) bool
	}{
		{name: "forbidden", informer: func(*testing.T) cache.SharedIndexInformer { return failing(forbidden("list")) },
			want: []string{`informer: not synced within 20s: "thing": forbidden to list: a Role or ClusterRole must allow verbs ["list" "watch"] on resources ["configmaps"] in apiGroups [""]: failed to list *v1.ConfigMap: `, `User "joe" cannot list resource "configmaps"`},
			is:   apierrors.IsForbidden},
		{name: "not served", informer: func(*testing.T) cache.SharedIndexInformer { return failing(missing) },
			want: []string{`"thing": cannot list widgets: the server does not serve it: install its CustomResourceDefinition, or check group and version: `},
			is:   apierrors.IsNotFound},
		{name: "unauthorized", informer: func(*testing.T) cache.SharedIndexInformer { return failing(apierrors.NewUnauthorized("who?")) },
			want: []string{`"thing": unauthorized to list thing: the server does not accept the credentials: `}, is: apierrors.IsUnauthorized},
		// client-go never tells its watch error handler about these two.
		{name: "connection refused", informer: func(*testing.T) cache.SharedIndexInformer { return failing(errRefused) },
			want: []string{`"thing": cannot watch thing: the server could not be reached, when client-go last tried, `, "connection refused"},
			is:   func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }},
		{name: "no answer in time", informer: func(*testing.T) cache.SharedIndexInformer {
			return failing(&url.Error{Op: "Get", URL: "https://server", Err: context.DeadlineExceeded})
		},
			want: []string{`"thing": cannot list thing: the server could not be reached, when client-go last tried, `}},
		// net/http wraps these as it wraps connections that fail.
		{name: "certificate not trusted", informer: func(*testing.T) cache.SharedIndexInformer {
			return failing(&url.Error{Op: "Get", URL: "https://server", Err: x509.UnknownAuthorityError{}})
		},
			want: []string{`"thing": cannot list thing: failed to list *v1.ConfigMap: Get "https://server": x509: `}},
		{name: "own certificate not trusted", informer: func(*testing.T) cache.SharedIndexInformer {
			return failing(&url.Error{Op: "Get", URL: "https://server", Err: &net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}})
		},
			want: []string{`"thing": cannot list thing: failed to list *v1.ConfigMap: Get "https://server": remote error: tls: `}},
		{name: "no credentials", informer: func(*testing.T) cache.SharedIndexInformer {
			return failing(&url.Error{Op: "Get", URL: "https://server", Err: errors.New("getting credentials: exec: no such file")})
		},
			want: []string{`"thing": cannot list thing: failed to list *v1.ConfigMap: Get "https://server": getting credentials: `}},
		{name: "429", informer: func(*testing.T) cache.SharedIndexInformer { return failing(apierrors.NewTooManyRequestsError("later")) },
			want: []string{`"thing": cannot watch thing: the server is overloaded: `}, is: apierrors.IsTooManyRequests},
		{name: "bookmark missing", informer: func(*testing.T) cache.SharedIndexInformer {
			return listWatch(nil, func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil })
		},
			want: []string{`"thing": the server took the watch but does not mark the end of the initial events: `, "KUBE_FEATURE_WatchListClient=false"}},
		{name: "bookmark missing, short timeout", timeout: 5 * time.Second, informer: func(*testing.T) cache.SharedIndexInformer {
			return listWatch(nil, func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil })
		},
			want: []string{`informer: not synced within 5s: "thing": list and watch are neither refused nor complete: `, "or the end of the initial events is never marked, which shows only after 10s"}},
		{name: "no answer", informer: func(*testing.T) cache.SharedIndexInformer {
			return listWatch(nil, func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			})
		},
			want: []string{`"thing": list and watch are neither refused nor complete: the server cannot be reached, or there is more to list than Timeout allows`}},
		{name: "any other error", informer: func(*testing.T) cache.SharedIndexInformer { return failing(errors.New("strange")) },
			want: []string{`"thing": cannot list thing: failed to list *v1.ConfigMap: strange`}},
		{name: "list allowed, watch not", after: 10 * time.Second, informer: func(*testing.T) cache.SharedIndexInformer {
			return listWatch(func() error { return nil }, func(context.Context, metav1.ListOptions) (watch.Interface, error) { return nil, forbidden("watch") })
		},
			want: []string{`informer: not synced: "thing": its cache was filled and then went stale: forbidden to watch: a Role or ClusterRole must allow verbs ["list" "watch"] on resources ["configmaps"] in apiGroups [""]: `, "cannot watch resource"},
			is:   apierrors.IsForbidden},
		{name: "watch is no verb of it", after: 10 * time.Second, informer: func(*testing.T) cache.SharedIndexInformer {
			return listWatch(func() error { return nil }, func(context.Context, metav1.ListOptions) (watch.Interface, error) {
				return nil, apierrors.NewMethodNotSupported(schema.GroupResource{Group: "metrics.k8s.io", Resource: "pods"}, "watch")
			})
		},
			want: []string{`cannot watch pods: the server does not support that verb for it: `}, is: apierrors.IsMethodNotSupported},
		{name: "slow handler", informer: func(t *testing.T) cache.SharedIndexInformer {
			return informers.NewSharedInformerFactory(fake.NewClientset(configMap("a")), 0).Core().V1().ConfigMaps().Informer()
		},
			want: []string{`"thing": the informer is synced, but SharedIndexInformer *v1.ConfigMap + event handler `, "has not worked off the initial list: it does more than put keys into a queue, was removed, or is another informer's"}},
		{name: "transform fails", informer: func(*testing.T) cache.SharedIndexInformer {
			transform := informers.WithTransform(func(any) (any, error) { return nil, errors.New("strange") })
			return informers.NewSharedInformerFactoryWithOptions(fake.NewClientset(configMap("a")), 0, transform).Core().V1().ConfigMaps().Informer()
		},
			want: []string{`"thing": cannot list thing: unable to sync list result: strange`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inf := tc.informer(t)
				set := informer.Set{Timeout: tc.timeout, StopTimeout: time.Hour}
				if tc.name == "slow handler" {
					h, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { time.Sleep(time.Minute) }})
					if err != nil {
						t.Fatal(err)
					}
					set.Add("thing", inf, h)
				} else {
					set.Add("thing", inf)
				}
				set.Add("healthy", healthy())
				start := time.Now()
				err := set.Run(quiet(t))
				if !errors.Is(err, informer.ErrNotSynced) {
					t.Fatalf("Run() = %v, want ErrNotSynced", err)
				}
				for _, want := range tc.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("Run() = %v\nwant it to contain %s", err, want)
					}
				}
				if strings.Contains(err.Error(), "healthy") {
					t.Errorf("Run() = %v, blames the healthy informer", err)
				}
				if tc.is != nil && !tc.is(err) {
					t.Errorf("Run() = %v, does not wrap the cause", err)
				}
				if tc.after != 0 && time.Since(start) > tc.after {
					t.Errorf("Run took %v, want at most %v", time.Since(start), tc.after)
				}
				if !inf.IsStopped() {
					t.Error("the informer still runs")
				}
			})
		})
	}
}

// A proxy's 403 does not say what was asked for; the name of the informer does.
//
// Proves I2.
func TestForbiddenWithoutDetails(t *testing.T) {
	for _, tc := range []struct {
		name, want string
	}{
		{"widgets.example.com", `on resources ["widgets"] in apiGroups ["example.com"]: `},
		{"configmaps", `on resources ["configmaps"] in apiGroups [""]: `},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var set informer.Set
				set.Add(tc.name, failing(&apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonForbidden, Message: "no"}}))
				if err := set.Run(quiet(t)); err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("Run() = %v\nwant it to contain %s", err, tc.want)
				}
			})
		})
	}
}

// Others write with the logger of the context too. What they say is not why an
// informer does not sync.
//
// Proves I2.
func TestLinesOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := informer.Set{WatchErrorHandler: func(ctx context.Context, _ *cache.Reflector, _ error) {
			logger := klog.FromContext(ctx)
			logger.Info("Cannot count bookmarks", "err", errors.New("disk full"))
			logger.Info("Odd", "err", (*net.OpError)(nil), []string{"no string"}, 1, "reflector")
			logger.Info("Odd", "reflector", "r", "err", "no error")
		}}
		set.Add("configmaps", failing(forbidden("list")))
		if err := set.Run(quiet(t)); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `"configmaps": forbidden to list: `) {
			t.Errorf("Run() = %v, want the 403", err)
		}
	})
}

// incomparable is an informer whose checkers panic when they are compared.
type incomparable struct{ cache.SharedIndexInformer }

func (i incomparable) HasSyncedChecker() cache.DoneChecker {
	return struct {
		cache.DoneChecker
		_ []int
	}{DoneChecker: i.SharedIndexInformer.HasSyncedChecker()}
}

func TestCheckersAreNotCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var set informer.Set
		set.Add("configmaps", incomparable{failing(forbidden("list"))})
		if err := set.Run(quiet(t)); !apierrors.IsForbidden(err) {
			t.Errorf("Run() = %v, want the 403", err)
		}
	})
}

// TestEveryUnsyncedInformerIsNamed proves I4.
func TestEveryUnsyncedInformerIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var set informer.Set
		set.Add("a", failing(forbidden("list")))
		set.Add("b", healthy())
		set.Add("c", failing(apierrors.NewUnauthorized("who?")))
		ready := make(chan string, 1)
		time.AfterFunc(10*time.Second, func() { ready <- set.Ready().Error() })
		err := set.Run(quiet(t))
		if err == nil || strings.Count(err.Error(), "informer: not synced within 20s: ") != 2 || !strings.Contains(err.Error(), `"a": forbidden`) || !strings.Contains(err.Error(), `"c": unauthorized`) {
			t.Errorf("Run() = %v, want a and c", err)
		}
		if got, want := <-ready, `informer: not synced: waiting for ["a" "c"]`; got != want {
			t.Errorf("Ready() = %s, want %s", got, want)
		}
	})
}

func TestFailureThatPassesIsNone(t *testing.T) {
	for _, tc := range []struct {
		name  string
		after int // the watch is refused this many times
	}{
		{name: "roles arrive late", after: 0},
		{name: "one refusal of the watch", after: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				watches := 0
				inf := listWatch(func() error {
					if tc.after == 0 && time.Since(start) < 2*time.Second {
						return forbidden("list")
					}
					return nil
				}, func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
					if o.SendInitialEvents != nil {
						return nil, errors.New("no watch-list")
					}
					if watches++; watches <= tc.after {
						time.Sleep(time.Millisecond) // lets the informer note that it has synced
						return nil, forbidden("watch")
					}
					return watch.NewFake(), nil
				})
				var set informer.Set
				set.Add("configmaps", inf)
				ctx, cancel := context.WithTimeout(quiet(t), time.Hour)
				defer cancel()
				if err := set.Run(ctx); err != nil {
					t.Errorf("Run() = %v, want nil: it recovered in time", err)
				}
			})
		})
	}
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

// stubborn is an informer that takes its time to stop, as client-go's does in
// one of its pauses.
type stubborn struct {
	cache.SharedIndexInformer
	extra time.Duration
}

func (s stubborn) RunWithContext(ctx context.Context) {
	s.SharedIndexInformer.RunWithContext(ctx)
	time.Sleep(s.extra)
}

// TestWaitForStopIsBounded proves I5.
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
				set.Add("quick too", healthy())
				ctx, cancel := context.WithCancel(quiet(t))
				var cancelled time.Time
				time.AfterFunc(time.Minute, func() { cancelled = time.Now(); cancel() })
				err := set.Run(ctx)
				if got := time.Since(cancelled); got != tc.took {
					t.Errorf("Run took %v to stop, want %v", got, tc.took)
				}
				if tc.late != (err != nil && strings.Contains(err.Error(), `"slow" has not stopped within 5s`) && !strings.Contains(err.Error(), "quick")) {
					t.Errorf("Run() = %v, want slow to be named: %v", err, tc.late)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}

// TestPauseOfClientGo shows that the wait is needed with client-go as it is: in
// its pause after a refused connection it does not look at its context.
//
// Proves I5.
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

// client-go does not notice that the server is back before its pause is over. The error
// says how long ago it last tried.
//
// Proves I2.
func TestServerThatIsBackUnnoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var last time.Time
		refused := func() error { last = time.Now(); return errRefused }
		var set informer.Set
		set.Add("configmaps", listWatch(refused, func(context.Context, metav1.ListOptions) (watch.Interface, error) { return nil, refused() }))
		err := set.Run(quiet(t))
		ago := time.Since(last)
		ago -= 5 * time.Second // the StopTimeout
		want := fmt.Sprintf("when client-go last tried, %v ago: it pauses for up to a minute", ago.Round(time.Second))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run() = %v, want it to contain %q", err, want)
		}
		time.Sleep(time.Minute)
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

// The text of an error comes from the server, and ends in logs.
func TestHostileErrors(t *testing.T) {
	hostile := apierrors.NewForbidden(schema.GroupResource{Group: "\x1b[2J", Resource: "a\nb"}, "", errors.New(strings.Repeat("no\r\n", 1<<20)))
	synctest.Test(t, func(t *testing.T) {
		var set informer.Set
		set.Add("configmaps", failing(hostile))
		err := set.Run(quiet(t))
		if !apierrors.IsForbidden(err) || !errors.Is(err, informer.ErrNotSynced) {
			t.Fatalf("Run() = %v, want the refusal", err)
		}
		if text := err.Error(); len(text) > 4<<10 || strings.ContainsAny(text, "\x1b\r\n") {
			t.Errorf("the error has %d bytes or control characters: %.300q", len(text), text)
		}
	})
}

func TestMisuse(t *testing.T) {
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
		{name: "no name", setup: func(s *informer.Set) { s.Add("", healthy()) }, want: "informer: Add needs a name: errors name informers by it, best use the resource"},
		{name: "nil", setup: func(s *informer.Set) { s.Add("x", nil) }, want: `informer: Add("x") needs an informer, got nil`},
		{name: "nil handler", setup: func(s *informer.Set) { s.Add("x", healthy(), nil) }, want: `informer: Add("x"): handler 0 is nil: check the error of AddEventHandler`},
		{name: "same name", setup: func(s *informer.Set) { s.Add("x", healthy()); s.Add("x", healthy()) }, want: `informer: Add("x") was called twice: give every informer its own name`},
		{name: "same informer", setup: func(s *informer.Set) {
			inf := healthy()
			s.Add("x", inf)
			s.Add("y", cache.NewTypedSharedIndexInformer[*corev1.ConfigMap](inf))
		}, want: `informer: Add("y"): the informer is already in the set as "x": pass all its handlers to one Add`},
		{name: "stopped", setup: func(s *informer.Set) { s.Add("x", stopped()) }, want: `informer: "x" was stopped before Run: an informer runs once, make a new one`},
		{name: "negative timeout", setup: func(s *informer.Set) { s.Timeout = -1; s.Add("x", healthy()) }, want: "informer: Set.Timeout is -1ns: it must not be negative; 0 means 20s"},
		{name: "negative stop timeout", setup: func(s *informer.Set) { s.StopTimeout = -1; s.Add("x", healthy()) }, want: "informer: Set.StopTimeout is -1ns: it must not be negative; 0 means 5s"},
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

type brief struct{ cache.SharedIndexInformer }

func (brief) RunWithContext(context.Context) {}

func TestRunTwiceAndAddAfterRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var set informer.Set
		set.Add("x", healthy())
		time.AfterFunc(time.Minute, func() { set.Add("y", healthy()) })
		want := `informer: Add("y") was called after Run: add all informers before Run`
		if err := set.Run(quiet(t)); err == nil || err.Error() != want {
			t.Errorf("Run() = %v, want %s", err, want)
		}
		want = "informer: Run was called twice: informers run once, make new ones and a new Set"
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

// lockedBuffer takes the lines of several goroutines.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// TestLogIsUnchanged: the Set listens to client-go's log, and whoever reads the
// log must not notice.
//
// Proves I6.
func TestLogIsUnchanged(t *testing.T) {
	lookFor := []string{"bookmark expired", "backing off", "Failed to watch"}
	volatile := regexp.MustCompile(`reflector="[^"]*"|err="[^"]*"`)
	for _, verbosity := range []int{0, 4} {
		run := func(t *testing.T, inf cache.SharedIndexInformer, start func(context.Context)) []string {
			var out lockedBuffer
			logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&out), textlogger.Verbosity(verbosity)))
			logger = logger.WithName("app").WithValues("controller", "widgets")
			ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), logger), 15*time.Second)
			defer cancel()
			start(ctx)
			var lines []string
			for line := range strings.Lines(out.String()) {
				// The informer's own name and the time differ from run to run.
				if at, text, ok := strings.Cut(line, "] "); ok && slices.ContainsFunc(lookFor, func(s string) bool { return strings.Contains(text, s) }) {
					lines = append(lines, at[strings.LastIndexByte(at, ' ')+1:]+" "+volatile.ReplaceAllString(text, ""))
				}
			}
			return lines
		}
		for name, inf := range map[string]func() cache.SharedIndexInformer{
			"bookmark": func() cache.SharedIndexInformer {
				return listWatch(nil, func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil })
			},
			"refused":   func() cache.SharedIndexInformer { return failing(errRefused) },
			"forbidden": func() cache.SharedIndexInformer { return failing(forbidden("list")) },
		} {
			synctest.Test(t, func(t *testing.T) {
				plain := inf()
				want := run(t, plain, plain.RunWithContext)
				set := informer.Set{StopTimeout: time.Hour}
				mine := inf()
				set.Add("x", mine)
				got := run(t, mine, func(ctx context.Context) { _ = set.Run(ctx) })
				if (len(want) == 0) != (name == "refused" && verbosity == 0) || (len(want) == 0) != (len(got) == 0) {
					t.Fatalf("verbosity %d, %s: got %q, want %q", verbosity, name, got, want)
				}
				if len(want) > 0 && got[0] != want[0] {
					t.Errorf("verbosity %d, %s: first line\n%q, want\n%q", verbosity, name, got[0], want[0])
				}
			})
		}
	}
}

// testLog is where a test's logger writes. It notes file and line as testing does.
type testLog struct {
	testing.TB
	mu      sync.Mutex // guards the fields below
	helpers map[string]bool
	lines   []string
}

func (l *testLog) Helper() {
	pc, _, _, _ := goruntime.Caller(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.helpers[goruntime.FuncForPC(pc).Name()] = true
}

func (l *testLog) Log(...any) {
	pcs := make([]uintptr, 50)
	frames := goruntime.CallersFrames(pcs[:goruntime.Callers(2, pcs)])
	l.mu.Lock()
	defer l.mu.Unlock()
	for frame, more := frames.Next(); more; frame, more = frames.Next() {
		if !l.helpers[frame.Function] {
			l.lines = append(l.lines, fmt.Sprintf("%s:%d", filepath.Base(frame.File), frame.Line))
			return
		}
	}
}

// Loggers of tests find the line by testing.TB.Helper.
//
// Proves I6.
func TestLinesInTestLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := func(start func(context.Context)) []string {
			log := &testLog{TB: t, helpers: map[string]bool{}}
			logger := ktesting.NewLogger(log, ktesting.NewConfig(ktesting.Verbosity(4)))
			ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), logger), 5*time.Second)
			defer cancel()
			start(ctx)
			slices.Sort(log.lines)
			return slices.Compact(log.lines)
		}
		want := run(failing(forbidden("list")).RunWithContext)
		var set informer.Set
		set.Add("x", failing(forbidden("list")))
		got := run(func(ctx context.Context) { _ = set.Run(ctx) })
		if diff := cmp.Diff(want, got); diff != "" || len(want) == 0 {
			t.Errorf("lines of code in the log (-without +with the Set):\n%s", diff)
		}
	})
}

// Client-go also tells debuggers what is no failure.
//
// Proves I2.
func TestDiagnosisWithAVerboseLog(t *testing.T) {
	for _, verbosity := range []int{0, 4, 10} {
		synctest.Test(t, func(t *testing.T) {
			set := informer.Set{StopTimeout: time.Hour}
			set.Add("x", cache.NewSharedIndexInformer(&cache.ListWatch{
				ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
					<-ctx.Done() // a long list
					return nil, ctx.Err()
				},
				WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
					return nil, errors.New("the server has no watch-list")
				},
			}, &corev1.ConfigMap{}, 0, cache.Indexers{}))
			logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(io.Discard), textlogger.Verbosity(verbosity)))
			err := set.Run(klog.NewContext(t.Context(), logger))
			if err == nil || strings.Contains(err.Error(), "watch-list") {
				t.Errorf("verbosity %d: Run() = %v, want nothing about the watch-list", verbosity, err)
			}
		})
	}
}

// A logger of a higher verbosity is no reason to be deaf.
func TestLoggerWithVerbosity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := informer.Set{StopTimeout: time.Hour}
		set.Add("x", failing(errRefused))
		ctx := quiet(t)
		err := set.Run(klog.NewContext(ctx, klog.FromContext(ctx).V(3)))
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("Run() = %v, want the reason", err)
		}
	})
}

func TestLoggerThatIsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := informer.Set{StopTimeout: time.Hour}
		set.Add("x", failing(errRefused))
		err := set.Run(klog.NewContext(t.Context(), klog.Logger{}))
		if err == nil || !strings.Contains(err.Error(), "the server could not be reached") {
			t.Errorf("Run() = %v, want the reason also without a log", err)
		}
	})
}
