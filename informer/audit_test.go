package informer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/testlog"
)

// cacheOf is an informer that nobody runs: a store and a version.
type cacheOf struct {
	cache.SharedIndexInformer
	store   cache.Store
	unready bool
	version string // of the reflector
}

func newCache() *cacheOf {
	return &cacheOf{store: cache.NewStore(cache.MetaNamespaceKeyFunc), version: "1"}
}

func (c *cacheOf) GetStore() cache.Store           { return c.store }
func (c *cacheOf) HasSynced() bool                 { return !c.unready }
func (c *cacheOf) LastSyncResourceVersion() string { return c.version }

// has adds objects in the form name@version, with the UID of the name, or name@version/uid,
// and then moves the store to the version.
func (c *cacheOf) has(t *testing.T, version string, objects ...string) *cacheOf {
	t.Helper()
	for _, o := range objects {
		m := parse(o)
		if err := c.store.Add(&corev1.ConfigMap{ObjectMeta: m.ObjectMeta}); err != nil {
			t.Fatal(err)
		}
	}
	c.store.Bookmark(version)
	c.version = version
	return c
}

func parse(text string) metav1.PartialObjectMetadata {
	name, version, _ := strings.Cut(text, "@")
	version, uid, ok := strings.Cut(version, "/")
	if !ok {
		uid = name
	}
	return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid), ResourceVersion: version}}
}

// serverOf responds to lists with the objects, at the version.
type serverOf struct {
	version  string
	objects  []string
	requests []string      // "list" or the field selector
	on       func(n int)   // called before request n, from 1
	fails    map[int]error // by number
}

func (s *serverOf) list(_ context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	what := options.FieldSelector
	if what == "" {
		what = "list"
	}
	s.requests = append(s.requests, what)
	if s.on != nil {
		s.on(len(s.requests))
	}
	if err := s.fails[len(s.requests)]; err != nil {
		return nil, err
	}
	list := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: s.version}}
	begin := 0
	if options.Continue != "" {
		fmt.Sscan(options.Continue, &begin)
	}
	for n := begin; n < len(s.objects); n++ {
		m := parse(s.objects[n])
		if options.FieldSelector != "" && options.FieldSelector != "metadata.name="+m.Name+",metadata.namespace=ns" {
			continue
		}
		if options.Limit > 0 && len(list.Items) == int(options.Limit) {
			list.Continue = fmt.Sprint(n)
			break
		}
		list.Items = append(list.Items, m)
	}
	return list, nil
}

// audit runs one round, and returns what it reports and how long it took.
func audit(t *testing.T, c *cacheOf, s *serverOf) []string {
	t.Helper()
	ctx, cancel := context.WithCancel(quiet(t))
	defer cancel()
	var found []string
	a := &informer.Audit{Period: time.Hour, Report: func(d informer.Difference) { found = append(found, d.String()) }}
	a.Add("configmaps", c, s.list)
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	time.Sleep(2*time.Hour - time.Second)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run() = %v", err)
	}
	return found
}

// TestAudit proves I5.
func TestAudit(t *testing.T) {
	const confirm = "metadata.name=a,metadata.namespace=ns"
	missing := `informer: "configmaps": the cache lacks ns/a, which the API server has at version 3`
	tests := []struct {
		name     string
		cache    []string
		at       string // the cache's version
		server   []string
		then     func(t *testing.T, c *cacheOf, s *serverOf, request int)
		want     []string
		requests []string // nil means one list
	}{
		{name: "equal", cache: []string{"a@3", "b@5"}, at: "9", server: []string{"a@3", "b@5"}},
		{name: "nothing", at: "9"},
		{name: "equal and quiet", cache: []string{"a@2"}, at: "2", server: []string{"a@2"}},
		{name: "lacks an object", at: "9", server: []string{"a@3"}, want: []string{missing}, requests: []string{"list", confirm}},
		{
			name: "lacks an object that is deleted after the list", at: "9", server: []string{"a@3"}, requests: []string{"list", confirm},
			then: func(_ *testing.T, _ *cacheOf, s *serverOf, n int) {
				if n == 2 {
					s.objects, s.version = nil, "10"
				}
			},
		}, {
			name: "lacks an object that is made again after the list, then shows it", at: "9", server: []string{"a@3"}, requests: []string{"list", confirm},
			then: func(t *testing.T, c *cacheOf, s *serverOf, n int) {
				if n == 2 {
					s.objects, s.version = []string{"a@11/other"}, "12"
					time.AfterFunc(time.Minute, func() { c.has(t, "12", "a@11/other") })
				}
			},
		}, {
			name: "lacks an object that changes after the list", at: "9", server: []string{"a@3"}, requests: []string{"list", confirm, confirm},
			then: func(_ *testing.T, c *cacheOf, s *serverOf, n int) {
				if n == 2 {
					s.objects, s.version = []string{"a@11"}, "12"
					c.store.Bookmark("12")
				}
			},
			want: []string{`informer: "configmaps": the cache lacks ns/a, which the API server has at version 11`},
		}, {
			name: "has an old state", cache: []string{"a@2"}, at: "9", server: []string{"a@3"},
			want: []string{`informer: "configmaps": the cache has ns/a at version 2, and the API server at 3`},
		}, {
			name: "has an object of old", cache: []string{"a@2/old"}, at: "9", server: []string{"a@3"},
			want: []string{`informer: "configmaps": the cache has ns/a at version 2, and the API server at 3`},
		}, {
			name: "has a deleted object", cache: []string{"a@2"}, at: "9",
			want: []string{`informer: "configmaps": the cache has ns/a at version 2, which the API server has deleted`},
		}, {
			name: "lags", cache: []string{"a@2", "gone@1"}, at: "2", server: []string{"a@3", "new@4"},
			then: func(t *testing.T, c *cacheOf, _ *serverOf, _ int) {
				time.AfterFunc(2*time.Minute, func() {
					if err := c.store.Delete(&corev1.ConfigMap{ObjectMeta: parse("gone@1").ObjectMeta}); err != nil {
						t.Error(err)
					}
					c.has(t, "9", "a@3", "new@4")
				})
			},
		}, {
			name: "is ahead of the list", cache: []string{"a@2"}, at: "2", server: []string{"a@2"},
			then: func(t *testing.T, c *cacheOf, _ *serverOf, _ int) { c.has(t, "11", "a@10", "new@11") },
		}, {
			name: "is ahead of a list that is older than its version", cache: []string{"a@5"}, at: "9", server: []string{"a@3"},
		}, {
			name: "is stalled", cache: []string{"a@2"}, at: "2", server: []string{"a@3"},
			want: []string{`informer: "configmaps": the cache is still at version "2" after 3m0s, and the API server was at 9: its watch is stalled`},
		}, {
			name: "is ahead of the server", cache: []string{"a@20"}, at: "20", server: []string{"a@3"},
			want: []string{`informer: "configmaps": the API server is at version 9, and the informer at 20: etcd was restored from a backup: call Set.Relist or restart the process`},
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCache().has(t, tc.at, tc.cache...)
				s := &serverOf{version: "9", objects: tc.server}
				if tc.then != nil {
					s.on = func(n int) { tc.then(t, c, s, n) }
				}
				if diff := cmp.Diff(tc.want, audit(t, c, s)); diff != "" {
					t.Errorf("reports (-want +got):\n%s", diff)
				}
				want := tc.requests
				if want == nil {
					want = []string{"list"}
				}
				if diff := cmp.Diff(want, s.requests); diff != "" {
					t.Errorf("requests (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestAuditStopped: a round that a stop ends reports nothing.
//
// Proves I5.
func TestAuditStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(quiet(t))
		defer cancel()
		c, s := newCache().has(t, "2", "a@2"), &serverOf{version: "9", objects: []string{"a@3"}}
		a := &informer.Audit{Period: time.Hour, Report: func(d informer.Difference) { t.Errorf("a false report: %v", d) }}
		a.Add("configmaps", c, s.list)
		time.AfterFunc(time.Hour+time.Minute, cancel) // while the round waits for the cache
		if err := a.Run(ctx); err != nil || len(s.requests) != 1 {
			t.Errorf("Run() = %v after %q, want nil after one list", err, s.requests)
		}
	})
}

// TestAuditStoppedBetweenPages: a stop ends the requests of a round.
func TestAuditStoppedBetweenPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(quiet(t))
		c, s := newCache().has(t, "9"), &serverOf{version: "9"}
		for n := range 600 {
			s.objects = append(s.objects, fmt.Sprintf("a%d@3", n))
		}
		s.on = func(int) { cancel() }
		a := &informer.Audit{}
		a.Add("configmaps", c, s.list)
		if err := a.Run(ctx); err != nil || len(s.requests) != 1 {
			t.Errorf("Run() = %v after %d requests, want nil after 1", err, len(s.requests))
		}
	})
}

// TestAuditLogs: without Report a difference is a line of log, as a failed round always is.
func TestAuditLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lockedBuffer
		logger := testlog.Text(&out, 0)
		ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), logger), 150*time.Minute)
		defer cancel()
		s := &serverOf{version: "9", objects: []string{"a@3"}, fails: map[int]error{1: errors.New("no\nline")}}
		a := &informer.Audit{Period: time.Hour}
		a.Add("configmaps", newCache().has(t, "9"), s.list)
		if err := a.Run(ctx); err != nil {
			t.Errorf("Run() = %v", err)
		}
		for _, want := range []string{"Cannot audit a cache", "A cache differs from the API server", "the cache lacks ns/a"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("no %q in the log:\n%s", want, out.String())
			}
		}
	})
}

// TestAuditIsBounded: pages, at most four requests a second, and at most 1000 objects of a
// round are looked at again.
//
// Proves I5.
func TestAuditIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := newCache().has(t, "9"), &serverOf{version: "9"}
		for n := range 1700 {
			s.objects = append(s.objects, fmt.Sprintf("a%d@3", n))
		}
		begin := time.Now().Add(time.Hour) // of the round
		var last time.Time
		s.on = func(n int) {
			if n > 1 && time.Since(last) < 250*time.Millisecond {
				t.Errorf("request %d comes %v after the one before", n, time.Since(last))
			}
			last = time.Now()
		}
		if found := audit(t, c, s); len(found) != 1000 {
			t.Errorf("%d reports, want 1000", len(found))
		}
		if n, took := len(s.requests), last.Sub(begin); n != 4+1000 || took > 252*time.Second {
			t.Errorf("%d requests in %v, want 1004 in 251s", n, took)
		}
	})
}

// TestAuditOfLeftovers: the bound holds for objects that the server has deleted, too.
//
// Proves I5.
func TestAuditOfLeftovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache()
		for n := range 1200 {
			c.has(t, "9", fmt.Sprintf("a%d@3", n))
		}
		if found := audit(t, c, &serverOf{version: "9"}); len(found) != 1000 {
			t.Errorf("%d reports, want 1000", len(found))
		}
	})
}

// TestAuditThatCannot: a failed or useless response ends a round with a line of log and
// without a report. The next one goes on.
func TestAuditThatCannot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := newCache().has(t, "9"), &serverOf{version: "9", objects: []string{"a@3", "b@3"}}
		s.fails = map[int]error{1: errors.New("no\nline"), 3: errors.New("none of one")}
		if found := audit(t, c, s); len(found) != 0 || len(s.requests) != 1 {
			t.Errorf("reports %q after %q, want none after one", found, s.requests)
		}
		if found := audit(t, c, s); len(found) != 0 || len(s.requests) != 3 {
			t.Errorf("reports %q after %q, want none after three requests", found, s.requests)
		}
		s.version = ""
		if found := audit(t, c, s); len(found) != 0 || len(s.requests) != 4 {
			t.Errorf("reports %q after %q, want none after four requests", found, s.requests)
		}
		s.version, c.unready = "9", true
		if found := audit(t, c, s); len(found) != 0 || len(s.requests) != 4 {
			t.Errorf("reports %q after %q: an informer that has not synced was audited", found, s.requests)
		}
	})
}

// TestAuditBadInput names each mistake.
func TestAuditBadInput(t *testing.T) {
	a := &informer.Audit{Period: -1}
	a.Add("pods", nil, (&serverOf{}).list)
	a.Add("secrets", newCache(), nil)
	err := a.Run(t.Context())
	if err == nil {
		t.Fatal("Run() = nil")
	}
	for _, want := range []string{`Audit.Period is -1ns: set it to a positive`, `Audit.Add("pods") got a nil informer: `, `Audit.Add("secrets") got no function list: `} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Run() = %v, want %q", err, want)
		}
	}
}

// TestAuditLife: an informer that is added late is audited, a mistake in a late Add ends Run, and so
// do a second Run and an Audit without informers.
func TestAuditLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		found := make(chan informer.Difference, 10)
		a := &informer.Audit{Period: time.Hour, Report: func(d informer.Difference) { found <- d }}
		if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no informers: call Add before Run") {
			t.Errorf("Run() = %v without informers", err)
		}
		s := &serverOf{version: "9"}
		a.Add("configmaps", newCache().has(t, "9"), s.list)
		ended := make(chan error, 1)
		go func() { ended <- a.Run(quiet(t)) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := a.Run(ctx); err == nil || !strings.Contains(err.Error(), "runs already: use one Audit for each Run") {
			t.Errorf("a second Run() = %v", err)
		}
		a.Add("late", newCache().has(t, "9"), (&serverOf{version: "9", objects: []string{"a@3"}}).list)
		if d := <-found; d.Name != "late" || d.Key != "ns/a" {
			t.Errorf("the Audit reports %v, want ns/a of the late informer", d)
		}
		a.Add("pods", nil, s.list)
		if err := <-ended; err == nil || !strings.Contains(err.Error(), `Audit.Add("pods") got a nil informer: pass one`) {
			t.Errorf("Run() = %v after a late mistake", err)
		}
	})
}
