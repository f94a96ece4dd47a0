package controllertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/controllertest/internal/stalls"
)

// TestUnreached holds which errors of a request are those of the API server or the connection to it.
func TestUnreached(t *testing.T) {
	gr := schema.GroupResource{Resource: "configmaps"}
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("a is absent"), false},
		{context.DeadlineExceeded, false}, // a step that waits for the controller
		{&url.Error{Op: "Get", Err: context.Canceled}, false},
		{apierrors.NewNotFound(gr, "a"), false},
		{apierrors.NewInternalError(errors.New("a webhook failed")), false},
		{apierrors.NewTooManyRequests("busy", 1), true},
		{apierrors.NewServerTimeout(gr, "get", 1), true},
		{apierrors.NewServiceUnavailable("busy"), true},
		{fmt.Errorf("read the body: %w", io.ErrUnexpectedEOF), true},
		{&url.Error{Op: "Get", Err: syscall.ECONNRESET}, true},
		{&url.Error{Op: "Get", Err: io.EOF}, true},
	} {
		if got := unreached(test.err); got != test.want {
			t.Errorf("unreached(%v) = %t", test.err, got)
		}
	}
}

// TestStepHindered holds when the error of a step is no finding: a request of it had no response in
// time, or the machine was busy while the step waited.
func TestStepHindered(t *testing.T) {
	began := time.Now().Add(-10 * time.Second)
	for _, test := range []struct {
		name string
		with func(r *run)
		err  error
		want string
	}{
		{name: "the step waited", err: context.DeadlineExceeded},
		{name: "the script is wrong", with: func(r *run) { r.lost = "" }, err: errors.New("a is absent")},
		{name: "no response", with: func(r *run) {
			op := &fault.Op{Verb: "get", Resource: "configmaps", Name: "a"}
			finally := r.userAsksLocked(op)
			r.slow.sent[op] = began
			finally()
		}, err: context.DeadlineExceeded, want: "busy for"},
		{name: "overload", with: func(r *run) {
			r.userGot(&fault.Op{Verb: "get", Resource: "configmaps", Name: "a"}, http.StatusTooManyRequests)
		}, err: errors.New("busy"), want: "status 429"},
		{name: "a stall", with: func(r *run) { r.x.stalls.Tick(began); r.x.stalls.Tick(began.Add(5*time.Second + stalls.Interval)) }, err: context.DeadlineExceeded, want: "busy for 5s"},
		{name: "the context of the step ended", with: func(r *run) { r.late.responded("u", 7, began) }, err: errLate},
		{name: "the context of the step ended on a busy machine", with: func(r *run) { r.late.responded("u", 7, began.Add(-time.Hour)) }, err: errLate, want: "busy for 1h"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := quietRun(Scenario{}, "ct-1")
			r.x.options.ConvergeTimeout = 10 * time.Second
			r.unanswered = map[*fault.Op]bool{}
			if test.with != nil {
				test.with(r)
			}
			if why, hindered := r.hindered(test.err, began); hindered != (test.want != "") || !strings.Contains(why, test.want) {
				t.Errorf("hindered: %t, %q", hindered, why)
			}
		})
	}
}

// TestStepInTime holds when the context of a step ends: like the deadline of rest, it counts from the
// last fault or write of the user.
func TestStepInTime(t *testing.T) {
	waits := func(ctx context.Context) error {
		<-ctx.Done()
		return fmt.Errorf("a is absent: %w", ctx.Err())
	}
	for _, test := range []struct {
		name string
		do   func(ctx context.Context, r *run) error
		want time.Duration
		late bool
	}{
		{"returns", func(context.Context, *run) error { time.Sleep(time.Second); return errors.New("no") }, time.Second, false},
		{"waits", func(ctx context.Context, _ *run) error { return waits(ctx) }, 10 * time.Second, true},
		{"writes and waits", func(ctx context.Context, r *run) error {
			time.Sleep(4 * time.Second)
			r.userGot(&fault.Op{Verb: "update", Resource: "configmaps"}, http.StatusOK)
			r.userGot(&fault.Op{Verb: "get", Resource: "configmaps"}, http.StatusOK)
			time.Sleep(4 * time.Second)
			r.userGot(&fault.Op{Verb: "update", Resource: "configmaps"}, http.StatusConflict)
			return waits(ctx)
		}, 14 * time.Second, true},
		{"waits during a fault", func(ctx context.Context, r *run) error {
			r.goes(func() {
				defer r.begin()()
				time.Sleep(time.Minute)
			})
			return waits(ctx)
		}, 70 * time.Second, true},
		{"waits on a busy machine", func(ctx context.Context, r *run) error {
			r.mu.Lock()
			r.late.responded("u", 7, time.Now())
			r.mu.Unlock()
			return waits(ctx)
		}, 60 * time.Second, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := quietRun(Scenario{}, "ct-1")
				r.x.options.ConvergeTimeout = 10 * time.Second
				r.unanswered = map[*fault.Op]bool{}
				began := time.Now()
				end := r.begin()
				err := r.inTime(t.Context(), func(ctx context.Context) error { return test.do(ctx, r) })
				end()
				r.wg.Wait()
				if took := time.Since(began); err == nil || errors.Is(err, errLate) != test.late || took != test.want {
					t.Errorf("the step ended after %v, want %v, with %v", took, test.want, err)
				}
			})
		})
	}
}

// TestLateIsNoFinding holds that an observer that is behind all the time is no finding, unless the
// controller writes without end.
func TestLateIsNoFinding(t *testing.T) {
	for _, test := range []struct {
		name   string
		behind time.Duration
		wrotes int
		judged bool
	}{
		{"in time", 0, 1, true},
		{"a little late", 2 * time.Minute, 1, true},
		{"late", 10 * time.Minute, 1, false},
		{"late because of the writes", 10 * time.Minute, endless, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := quietRun(Scenario{}, "ct-1")
			r.x.options.ConvergeTimeout = time.Minute
			if test.behind > 0 {
				r.late.responded(types.UID("u"), 7, time.Now().Add(-test.behind))
			}
			r.wrotes = test.wrotes
			findings := r.unrested(nil)
			why, doubtful := r.doubtful()
			if (len(findings) == 1) != test.judged || doubtful == test.judged || doubtful && (!strings.Contains(why, "the observer was late") || r.fired() != -1) {
				t.Errorf("findings %v, doubtful: %t, %q", findings, doubtful, why)
			}
		})
	}
}

// A verdict is the testing.TB of a report.
type verdict struct {
	testing.TB
	errors []string
}

func (v *verdict) Helper()                      {}
func (v *verdict) Log(...any)                   {}
func (v *verdict) Logf(string, ...any)          {}
func (v *verdict) Error(args ...any)            { v.errors = append(v.errors, fmt.Sprint(args...)) }
func (v *verdict) Errorf(f string, args ...any) { v.errors = append(v.errors, fmt.Sprintf(f, args...)) }

// TestVerdict holds that a test fails only by a finding, or if no plan could be judged.
//
// Proves X2.
func TestVerdict(t *testing.T) {
	invalid := make([]string, 31)
	for n := range invalid {
		invalid[n] = fmt.Sprintf("500@update configmaps a#%d", n+1)
	}
	for _, test := range []struct {
		name   string
		report Report
		want   string // "" means that the test passes
	}{
		{"many invalid plans", Report{Plans: 460, Valid: 429, Invalid: invalid}, ""},
		{"some that were not judged", Report{Plans: 460, Valid: 429, Unjudged: invalid}, ""},
		{"nothing that was judged", Report{Plans: 62, Invalid: invalid, Unjudged: []string{"hold(a)@b#1: the observer was late"}}, "no plan could be judged: the faults of 31 of 62 plans did not happen, and 1 plans have no outcome, for example:\n\thold(a)@b#1: the observer was late\n\t500@"},
		{"no plan", Report{}, "no plan ran"},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := &verdict{TB: t}
			test.report.failTest(v)
			if got := strings.Join(v.errors, "\n"); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("the test fails by %q, want %q", got, test.want)
			}
		})
	}
	text := (&Report{Plans: 60, Valid: 57, Ran: 60, Enumerated: 460, Unjudged: invalid[:3]}).String()
	for _, part := range []string{"57 valid, 0 failing, 0 invalid, 3 not judged; 60 of 460 enumerated plans ran", "not judged: 500@update configmaps a#1"} {
		if !strings.Contains(text, part) {
			t.Errorf("the report has no %q:\n%s", part, text)
		}
	}
}

// TestCauses holds that failures with the same finding and a common operation are one, and others
// are not.
func TestCauses(t *testing.T) {
	x := &explorer{log: func(string, ...any) {}, groups: map[string]*group{}, found: map[string]*group{}}
	enter := func(text, field string) {
		p, err := parsePlan(text)
		if err != nil {
			t.Fatal(err)
		}
		x.enter(&run{x: x, plan: p}, []Finding{{Oracle: Liveness, Field: field}}, 1, 0)
	}
	enter("403@update serviceaccounts bot#1", "a")
	enter("hold(secrets)@update secrets bot#1", "a")
	enter("time-travel(secrets<start)@update secrets bot#2", "a")
	enter("crash-before@update secrets bot#1", "b")
	enter("crash-before@get secrets bot#1", "c")
	enter("crash-after@get pods bot#1", "c") // the same family
	got := map[string]string{}
	for _, f := range x.failures() {
		got[f.Plan] = fmt.Sprint(f.section(), f.Plans)
	}
	want := map[string]string{
		"403@update serviceaccounts bot#1":   "failing [403@update serviceaccounts bot#1]",
		"hold(secrets)@update secrets bot#1": "failing [hold(secrets)@update secrets bot#1 time-travel(secrets<start)@update secrets bot#2]",
		"crash-before@update secrets bot#1":  "failing [crash-before@update secrets bot#1]",
		"crash-after@get pods bot#1":         "failing [crash-after@get pods bot#1 crash-before@get secrets bot#1]",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("failures:\n%v\nwant\n%v", got, want)
	}
	// A plan of both operations joins what the others are about.
	enter("reset@update serviceaccounts bot#1 + slow@update secrets bot#1", "a")
	if all := x.failures(); len(all) != 3 || len(all[0].Plans) != 4 || all[0].Plan != "403@update serviceaccounts bot#1" {
		t.Errorf("failures: %v", all)
	}
	if len(x.groups) != 6 {
		t.Errorf("the groups of the exploration were joined: %d", len(x.groups))
	}
}

// TestConditional holds which writes another write makes the API server reject.
func TestConditional(t *testing.T) {
	for _, test := range []struct {
		op   fault.Op
		want bool
	}{
		{fault.Op{Verb: "create", Body: []byte(`{"metadata":{"name":"a","resourceVersion":"7"}}`)}, false},
		{fault.Op{Verb: "update", Body: []byte(`{"metadata":{"name":"a"}}`)}, false},
		{fault.Op{Verb: "update", Body: []byte(`{"metadata":{"name":"a","resourceVersion":"7"}}`)}, true},
		{fault.Op{Verb: "patch", ContentType: string(types.MergePatchType), Body: []byte(`{"data":{}}`)}, false},
		{fault.Op{Verb: "patch", ContentType: string(types.MergePatchType), Body: []byte(`{"metadata":{"resourceVersion":"7"}}`)}, true},
		{fault.Op{Verb: "patch", ContentType: string(types.JSONPatchType), Body: []byte(`[{"op":"test","path":"/metadata/uid","value":"u"}]`)}, false},
		{fault.Op{Verb: "patch", ContentType: string(types.JSONPatchType), Body: []byte(`[{"op":"test","path":"/metadata/resourceVersion","value":"7"}]`)}, true},
		{fault.Op{Verb: "apply", Body: []byte("metadata:\n  name: a\n")}, false},
		{fault.Op{Verb: "apply", Body: []byte("metadata:\n  resourceVersion: \"7\"\n")}, true},
		{fault.Op{Verb: "delete"}, false},
		{fault.Op{Verb: "delete", Body: []byte(`{"preconditions":{"uid":"u"}}`)}, false},
		{fault.Op{Verb: "delete", Body: []byte(`{"preconditions":{"resourceVersion":"7"}}`)}, true},
		{fault.Op{Verb: "get"}, false},
	} {
		if got := conditional(&test.op); got != test.want {
			t.Errorf("%s %s is conditional: %t", test.op.Verb, test.op.Body, got)
		}
	}
}

// clusterOf returns an exploration whose API server is a function.
func clusterOf(t *testing.T, serve func(*http.Request) (*http.Response, error)) *explorer {
	t.Helper()
	config := &rest.Config{Host: "http://cluster", QPS: -1}
	config.Wrap(func(http.RoundTripper) http.RoundTripper { return transport(serve) })
	return &explorer{
		config: config, kube: kubernetes.NewForConfigOrDie(config), dyn: dynamic.NewForConfigOrDie(config), observer: newObserver(t.Context(), "ct"), prefix: "ct",
		slots: make(chan struct{}, 1), plans: map[string]plan{}, report: &Report{Kinds: map[Kind]Count{}, Accepted: map[string]int{}},
	}
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// TestServerIsDead holds that an exploration ends with an error if its API server does not serve for
// a minute, and does not use up the plans before.
//
// Proves X4.
func TestServerIsDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := clusterOf(t, func(*http.Request) (*http.Response, error) { return nil, syscall.ECONNREFUSED })
		ctx, abort := context.WithCancelCause(t.Context())
		defer abort(nil)
		x.abort = abort
		began := time.Now()
		p, err := parsePlan("500@update configmaps a#1")
		if err != nil {
			t.Fatal(err)
		}
		x.attempt(ctx, p, nil, began)
		cause := context.Cause(ctx)
		if cause == nil || !strings.Contains(cause.Error(), "the API server does not serve any more: no run could begin for 1m0s: create a namespace: ") || !strings.Contains(cause.Error(), "connection refused") {
			t.Errorf("the exploration ends by %v", cause)
		}
		if took, n := time.Since(began), x.runs.Load(); took < time.Minute || took > 2*time.Minute || n > 70 {
			t.Errorf("it ends after %v and %d runs", took, n)
		}
		if len(x.report.Unjudged) > 0 {
			t.Errorf("not judged: %q", x.report.Unjudged)
		}
	})
}

// TestSweepOfMany holds that the cleanup of many runs is in time on a slow cluster.
//
// Proves X5.
func TestSweepOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		deleted := map[string]bool{}
		var mu sync.Mutex
		x := clusterOf(t, func(req *http.Request) (*http.Response, error) {
			if err := sleep(req.Context(), nil, 500*time.Millisecond); err != nil {
				return nil, err
			}
			mu.Lock()
			defer mu.Unlock()
			deleted[req.Method+" "+req.URL.Path] = true
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Success"}`))}, nil
		})
		const runs = 3000
		x.runs.Store(runs)
		if err := x.sweep(); err != nil {
			t.Error(err)
		}
		for n := range runs {
			if name := fmt.Sprintf("DELETE /api/v1/namespaces/ct-%d", n+1); !deleted[name] {
				t.Fatalf("no request: %s", name)
			}
		}
	})
}
