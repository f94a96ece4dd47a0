package informer_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/informer"
)

// TestDiagnosis proves I2.
func TestDiagnosis(t *testing.T) {
	const slack = 100 * time.Millisecond
	missing := apierrors.NewGenericServerResponse(404, "list", schema.GroupResource{Group: "example.com", Resource: "widgets"}, "", "page not found", 0, true)
	for _, tc := range []struct {
		name     string
		informer func(t *testing.T) cache.SharedIndexInformer
		timeout  time.Duration
		after    time.Duration // when Run ends at the latest; 0 means after 20s
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
			want: []string{`informer: not synced within 5s: "thing": list and watch are neither refused nor complete, and no data is seen: `, "or the end of the initial events is never marked, which shows only after 10s"}},
		{name: "no answer", informer: func(*testing.T) cache.SharedIndexInformer {
			return listWatch(nil, func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			})
		},
			want: []string{`"thing": list and watch are neither refused nor complete, and no data is seen: the server cannot be reached, or a conversion webhook fails; without the transport of EndSilentWatches, Set.Timeout (Options.StartTimeout of an operator) must be longer than the first list`}},
		{name: "any other error", informer: func(*testing.T) cache.SharedIndexInformer { return failing(errors.New("strange")) },
			want: []string{`"thing": cannot list thing: failed to list *v1.ConfigMap: strange`}},
		// The first three of four attempts are within 5s: client-go pauses for 0.8s, 1.6s and
		// 3.2s between them, or for up to twice as long.
		{name: "list allowed, watch not", after: 11200*time.Millisecond + slack, informer: func(*testing.T) cache.SharedIndexInformer {
			return listWatch(func() error { return nil }, func(context.Context, metav1.ListOptions) (watch.Interface, error) {
				time.Sleep(time.Millisecond) // lets the informer note that it has synced
				return nil, forbidden("watch")
			})
		},
			want: []string{`informer: not synced: "thing": its cache was filled and then went stale: forbidden to watch: a Role or ClusterRole must allow verbs ["list" "watch"] on resources ["configmaps"] in apiGroups [""]: `, "cannot watch resource"},
			is:   apierrors.IsForbidden},
		{name: "watch is no verb of it", after: 11200*time.Millisecond + slack, informer: func(*testing.T) cache.SharedIndexInformer {
			return listWatch(func() error { return nil }, func(context.Context, metav1.ListOptions) (watch.Interface, error) {
				time.Sleep(time.Millisecond)
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
					h, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { time.Sleep(time.Hour) }})
					if err != nil {
						t.Fatal(err)
					}
					set.Add("thing", inf, h)
				} else {
					set.Add("thing", inf)
				}
				set.Add("healthy", healthy())
				start := time.Now()
				ctx, cancel := context.WithTimeout(quiet(t), time.Hour)
				defer cancel()
				err := set.Run(ctx)
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

func TestCheckersAreNotCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var set informer.Set
		set.Add("configmaps", incomparable{failing(forbidden("list"))})
		if err := set.Run(quiet(t)); !apierrors.IsForbidden(err) {
			t.Errorf("Run() = %v, want the 403", err)
		}
	})
}

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

// TestFailureThatPassesIsNone: a few refusals after the list do not end Run, lasting ones do.
//
// Proves I3.
func TestFailureThatPassesIsNone(t *testing.T) {
	for _, tc := range []struct {
		name  string
		after int           // the watch is refused this many times
		apart time.Duration // the time before each refusal, beside client-go's
		ends  bool
	}{
		{name: "roles arrive late", after: 0},
		{name: "two refusals of the watch", after: 2, apart: 7 * time.Second},
		{name: "three refusals of the watch within 5s", after: 3},
		{name: "three refusals of the watch", after: 3, apart: 2 * time.Second, ends: true},
		{name: "each watch is refused", after: 1000, ends: true},
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
						time.Sleep(max(tc.apart, time.Millisecond)) // lets the informer note that it has synced
						return nil, forbidden("watch")
					}
					return watch.NewFake(), nil
				})
				var set informer.Set
				set.Add("configmaps", inf)
				ctx, cancel := context.WithTimeout(quiet(t), time.Hour)
				defer cancel()
				if err := set.Run(ctx); apierrors.IsForbidden(err) != tc.ends || !tc.ends && err != nil {
					t.Errorf("Run() = %v, want it to end with the refusal: %v", err, tc.ends)
				}
			})
		})
	}
}

// client-go does not notice that the server is back before its pause is over. The error
// says how long ago it last tried.
//
// Proves I2.
func TestServerThatIsBackUnnoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var last time.Duration // before the error was made
		refused := func() error {
			if d := time.Since(start); d < 20*time.Second {
				last = d
			}
			return errRefused
		}
		var set informer.Set
		set.Add("configmaps", listWatch(refused, func(context.Context, metav1.ListOptions) (watch.Interface, error) { return nil, refused() }))
		err := set.Run(quiet(t))
		want := fmt.Sprintf("when client-go last tried, %v ago: it pauses for up to a minute", (20*time.Second - last).Round(time.Second))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run() = %v, want it to contain %q", err, want)
		}
		time.Sleep(time.Minute)
	})
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
