package optional

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/internal/testlog"
)

// server serves a kind, or does not.
type server struct {
	mu      sync.Mutex
	kind    string
	cluster bool     // the kind is cluster-scoped
	listed  []string // the namespaces of its informers
	err     error    // of the question
	list    error
	asked   int
	watches []*watch.RaceFreeFakeWatcher
}

func (s *server) set(kind string, err, list error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kind, s.err, s.list = kind, err, list
	for _, w := range s.watches {
		w.Stop() // client-go lists again
	}
	s.watches = nil
}

func (s *server) ask(ctx context.Context, _ schema.GroupVersion, _ string) (string, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.err == errHangs {
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return "", false, context.Cause(ctx)
	}
	return s.kind, !s.cluster, s.err
}

// errHangs lets a question or a list wait until its context is done.
var errHangs = errors.New("hangs")

func (s *server) questions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.asked = 0 }()
	return s.asked
}

type unsupported struct{}

func (unsupported) IsWatchListSemanticsUnSupported() bool { return true }

func (s *server) informer(namespace string) (cache.SharedIndexInformer, error) {
	s.mu.Lock()
	s.listed = append(s.listed, namespace)
	s.mu.Unlock()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.list == errHangs {
				s.mu.Unlock()
				<-ctx.Done()
				s.mu.Lock()
				return nil, context.Cause(ctx)
			}
			if s.kind == "" {
				return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, "")
			}
			if s.list != nil {
				return nil, s.list
			}
			return &corev1.SecretList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.Secret{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}}, nil
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.kind == "" {
				return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, "")
			}
			w := watch.NewRaceFreeFake()
			s.watches = append(s.watches, w)
			return w, nil
		},
	}
	return cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lw, unsupported{}), &corev1.Secret{}, 0, cache.Indexers{}), nil
}

// TestObserve: the informer has objects while the resource is served, and each change is told once, before the
// objects go and after they have come. Proves OP15.
func TestObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		resource := schema.GroupResource{Resource: "secrets"}
		i := New(corev1.SchemeGroupVersion.WithKind("Secret"), resource, "", s.informer)
		var told []string
		i.Changed(func(err error) {
			text := "served"
			if err != nil {
				text, _, _ = strings.Cut(err.Error(), " yet")
				if !errors.Is(err, crd.ErrNotServed) {
					text = "failed"
				}
				if apierrors.IsNotFound(err) {
					t.Errorf("readers would take %v for an absent object", err)
				}
			}
			told = append(told, fmt.Sprint(text, " ", len(i.GetStore().List())))
		})
		if err := i.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
			if apierrors.IsNotFound(err) {
				t.Error("the handler gets the error of a resource that is not served")
			}
		}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var g sync.WaitGroup
		g.Go(func() { i.RunWithContext(ctx) })
		g.Go(func() { i.Observe(ctx, s.ask, Intervals{Absent: 10 * time.Second, Present: time.Minute}) })
		check := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(told, want) {
				t.Errorf("%s: %q, want %q", when, told, want)
			}
			told = nil
		}
		absent := "crd: the API server does not serve the resource secrets"
		check("at first", absent+" 0", absent+" in version v1 0")
		if !i.HasSynced() {
			t.Error("an informer without its resource is not synced")
		}
		time.Sleep(time.Minute)
		check("later")
		if n := s.questions(); n < 5 || n > 7 {
			t.Errorf("%d questions in a minute, want about 6", n)
		}
		s.set("Secret", nil, nil)
		time.Sleep(11 * time.Second)
		check("when it has come", "served 1")
		s.questions()
		time.Sleep(10 * time.Minute)
		check("later")
		if n := s.questions(); n < 9 || n > 11 {
			t.Errorf("%d questions in ten minutes, want about 10", n)
		}
		s.set("", nil, nil)
		time.Sleep(2 * time.Second) // client-go lists again after a pause
		check("when it has gone, which a list tells", absent+" in version v1 1")
		if n := len(i.GetStore().List()); n != 0 {
			t.Errorf("%d objects of a resource that is not served", n)
		}
		s.set("Other", nil, nil)
		time.Sleep(11 * time.Second)
		check("another kind")
		s.set("Secret", errors.New("the API server is away"), nil)
		time.Sleep(time.Minute)
		check("without an answer")
		s.set("Secret", nil, apierrors.NewForbidden(resource, "", nil))
		time.Sleep(time.Second)
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if len(told) != 1 || told[0] != "failed 0" {
			t.Errorf("a forbidden list: %q, want it once", told)
		}
		told = nil
		s.set("Secret", nil, apierrors.NewNotFound(resource, "")) // discovery is ahead
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if len(told) != 1 || !strings.HasPrefix(told[0], "operator: "+absent) {
			t.Errorf("a list that is not found: %q, want it once", told)
		}
		told = nil
		s.set("", nil, nil)
		time.Sleep(30 * time.Second)
		check("and then it is gone", absent+" in version v1 0")
		s.set("Secret", nil, nil)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if len(told) == 0 || told[len(told)-1] != "served 1" {
			t.Errorf("when the right was given: %q", told)
		}
		told = nil
		s.set("Secret", errors.New("the API server is away"), nil)
		time.Sleep(10 * time.Minute)
		check("an outage changes nothing")
		cancel()
		g.Wait()
	})
}

// TestOneOtherAnswer: of several API servers, one that does not serve the resource yet, or no longer, takes no object
// away. Two answers do. Proves OP15.
func TestOneOtherAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{kind: "Secret"}
		other := map[int64]bool{2: true, 4: true, 5: true} // the numbers of the questions that the other one answers
		var asked, deleted atomic.Int64
		ask := func(ctx context.Context, version schema.GroupVersion, resource string) (string, bool, error) {
			if other[asked.Add(1)] {
				return "", false, nil
			}
			return s.ask(ctx, version, resource)
		}
		i := New(corev1.SchemeGroupVersion.WithKind("Secret"), schema.GroupResource{Resource: "secrets"}, "", s.informer)
		if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) { deleted.Add(1) }}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var g sync.WaitGroup
		g.Go(func() { i.RunWithContext(ctx) })
		g.Go(func() { i.Observe(ctx, ask, Intervals{Absent: 10 * time.Second, Present: time.Minute}) })
		check := func(when string, question, deletions int64, from, to time.Duration) {
			t.Helper()
			begin := time.Now()
			synctest.Wait()
			for asked.Load() < question {
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
			}
			if took := time.Since(begin); deleted.Load() != deletions || took < from || took > to {
				t.Errorf("%s: %d deletions after %v, want %d after %v to %v", when, deleted.Load(), took, deletions, from, to)
			}
		}
		check("at first", 1, 0, 0, time.Second)
		check("another answer", 2, 0, 59*time.Second, 67*time.Second)
		check("asked again soon", 3, 0, 9*time.Second, 12*time.Second)
		check("another answer again", 4, 0, 59*time.Second, 67*time.Second)
		check("the second in a row", 5, 1, 9*time.Second, 12*time.Second)
		cancel()
		g.Wait()
	})
}

// TestObserveUnknown: if it cannot be found out at the start whether the resource is served, or its objects cannot
// be listed, the informer is synced without them before an operator gives up, and has them later. Proves OP15.
func TestObserveUnknown(t *testing.T) {
	for name, first := range map[string]struct{ err, list error }{
		"no answer":          {err: errors.New("the backend is away")},
		"a question hangs":   {err: errHangs},
		"the list fails":     {list: apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", nil)},
		"the list hangs":     {list: errHangs},
		"the list is absent": {list: apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, "")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				s.set("Secret", first.err, first.list)
				i := New(corev1.SchemeGroupVersion.WithKind("Secret"), schema.GroupResource{Resource: "secrets"}, "", s.informer)
				var last error
				i.Changed(func(err error) { last = err })
				ctx, cancel := context.WithCancel(t.Context())
				var g sync.WaitGroup
				g.Go(func() { i.RunWithContext(ctx) })
				g.Go(func() { i.Observe(ctx, s.ask, Intervals{Absent: 10 * time.Second, Present: time.Minute}) })
				time.Sleep(15 * time.Second) // of the 20s of StartTimeout
				synctest.Wait()
				nothing := i.GetStore().(interface{ SelectsNothing() bool }).SelectsNothing
				_ = i.GetStore().(interface{ Showing() any }) // without it, package consistency reads all versions in each call
				if !i.HasSynced() || last == nil || !nothing() {
					t.Errorf("the informer is synced: %t, without a cache: %t, and readers are told %v", i.HasSynced(), nothing(), last)
				}
				s.set("Secret", nil, nil)
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				if n := len(i.GetStore().List()); n != 1 || last != nil || nothing() {
					t.Errorf("%d objects, without a cache: %t, and readers are told %v", n, nothing(), last)
				}
				cancel()
				g.Wait()
			})
		})
	}
}

// TestOutages: each outage of the question has its line.
func TestOutages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{kind: "Secret"}
		i := New(corev1.SchemeGroupVersion.WithKind("Secret"), schema.GroupResource{Resource: "secrets"}, "", s.informer)
		logs := testlog.New()
		ctx, cancel := context.WithCancel(logs.Context(t.Context()))
		var g sync.WaitGroup
		g.Go(func() { i.RunWithContext(ctx) })
		g.Go(func() { i.Observe(ctx, s.ask, Intervals{Absent: 10 * time.Second, Present: time.Minute}) })
		for n := range 3 {
			time.Sleep(10 * time.Minute)
			s.set("Secret", errors.New("the API server is away"), nil)
			time.Sleep(10 * time.Minute)
			s.set("Secret", nil, nil)
			if lines := logs.Find("An optional resource is not known"); len(lines) != n+1 {
				t.Errorf("%d lines after %d outages", len(lines), n+1)
			}
		}
		s.set("Secret", nil, apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", nil))
		cancel()
		g.Wait()
	})
}

// TestFailedList: a list that fails again and again has one line, although the question succeeds each time.
func TestFailedList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{kind: "Secret", list: apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", nil)}
		i := New(corev1.SchemeGroupVersion.WithKind("Secret"), schema.GroupResource{Resource: "secrets"}, "", s.informer)
		logs := testlog.New()
		ctx, cancel := context.WithCancel(logs.Context(t.Context()))
		var g sync.WaitGroup
		g.Go(func() { i.RunWithContext(ctx) })
		g.Go(func() { i.Observe(ctx, s.ask, Intervals{Absent: 10 * time.Second, Present: time.Minute}) })
		time.Sleep(time.Minute) // until the informer is synced, the attempts end in other ways
		before := len(logs.Find("An optional resource is not known"))
		time.Sleep(time.Hour)
		if lines := logs.Find("An optional resource is not known"); before == 0 || len(lines) > before {
			t.Errorf("%d lines in a minute, %d in the hour after it, want none", before, len(lines)-before)
		}
		cancel()
		g.Wait()
	})
}

// TestScope: the objects of a cluster-scoped kind are in no namespace, also if those of others are in one.
func TestScope(t *testing.T) {
	for _, cluster := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &server{kind: "Secret", cluster: cluster}
			i := New(corev1.SchemeGroupVersion.WithKind("Secret"), schema.GroupResource{Resource: "secrets"}, "one", s.informer)
			ctx, cancel := context.WithCancel(t.Context())
			var g sync.WaitGroup
			g.Go(func() { i.RunWithContext(ctx) })
			g.Go(func() { i.Observe(ctx, s.ask, Intervals{Absent: 10 * time.Second, Present: time.Minute}) })
			time.Sleep(time.Second)
			synctest.Wait()
			want := "one"
			if cluster {
				want = ""
			}
			if len(s.listed) == 0 || s.listed[len(s.listed)-1] != want {
				t.Errorf("cluster-scoped: %t: the informers are of the namespaces %q, want %q", cluster, s.listed, want)
			}
			cancel()
			g.Wait()
		})
	}
}
