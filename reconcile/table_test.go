package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/controllerkit/controllerkit/reconcile"
)

type result = reconcile.Result

type staleError bool

func (staleError) Error() string { return "cache is behind" }
func (e staleError) Stale() bool { return bool(e) }

type terminalError bool

func (terminalError) Error() string    { return "it will never work" }
func (e terminalError) Terminal() bool { return bool(e) }

var (
	configMaps    = schema.GroupResource{Resource: "configmaps"}
	errPlain      = errors.New("plain")
	errConflict   = apierrors.NewConflict(configMaps, "a", errors.New("modified"))
	errDelay      = apierrors.NewTooManyRequests("slow down", 10)
	errRejected   = apierrors.NewInvalid(schema.GroupKind{Kind: "ConfigMap"}, "a", nil)
	errForbidden  = apierrors.NewForbidden(configMaps, "a", errors.New("no"))
	errQuota      = apierrors.NewForbidden(configMaps, "a", errors.New("exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=9, limited: count/configmaps=9"))
	errNotFound   = apierrors.NewNotFound(configMaps, "a")
	errApply      = apierrors.NewApplyConflict([]metav1.StatusCause{{Type: metav1.CauseTypeFieldManagerConflict, Field: ".data.x"}}, "conflict with x")
	errNoDelay    = apierrors.NewTooManyRequests("slow down", 0)
	errDeadline   = fmt.Errorf("get: %w", context.DeadlineExceeded)
	errStale      = staleError(true)
	errStaleNot   = staleError(false)
	errInvalid    = fmt.Errorf("spec.size: %w", reconcile.ErrTerminal)
	errPanicValue = "panic value"
)

// outcome is what one call led to.
type outcome struct {
	Result   string
	Failures string        // reset, kept, counted
	Again    string        // no, at once, rate limiter, after
	Min, Max time.Duration // of after
	Log      string        // V(4), error
}

// observe runs one key and tells what became of the n-th call of fn. The delays
// before it are waited out; calls after it are not made.
func observe(t *testing.T, n int, fn reconcile.Func[string]) outcome {
	t.Helper()
	var got outcome
	synctest.Test(t, func(t *testing.T) {
		q, metrics, logs, calls := newTestQueue("a"), &counts{}, newLogs(), 0
		c := &reconcile.Controller[string]{
			Name: "test", Queue: q, Metrics: metrics,
			Reconcile: func(ctx context.Context, key string) (reconcile.Result, error) {
				if calls++; calls > n {
					<-ctx.Done()
					return reconcile.Result{}, nil
				}
				q.take()
				return fn(ctx, key)
			},
		}
		r := start(t, logs.Context(t.Context()), c)
		for len(metrics.results()) < n {
			time.Sleep(2 * time.Hour)
		}
		got.Result = metrics.results()[n-1]
		got.Failures, got.Again = "kept", "no"
		done := 0
		for _, call := range q.take() {
			switch {
			case call.Op == "Done":
				done++
			case call.Op == "Forget":
				got.Failures = "reset"
			case call.Limited:
				got.Failures, got.Again = "counted", "rate limiter"
			case call.After > 0:
				got.Again, got.Min, got.Max = "after", call.After, call.After
			default:
				got.Again = "at once"
			}
		}
		if done != 1 {
			t.Errorf("Done was called %d times for one Get, want 1", done)
		}
		lines := logs.Having("class")
		if len(lines) != n {
			t.Fatalf("%d calls logged %d lines, want one each: %v", n, len(lines), lines)
		}
		last := lines[n-1]
		got.Log = fmt.Sprintf("V(%d)", last.Level)
		if last.Level < 0 {
			got.Log = "error"
		}
		if last.Values["key"] != "a" || last.Values["controller"] != "test" || last.Values["attempts"] != n && n > 1 {
			t.Errorf("log values %v, want key a, controller test, attempts %d", last.Values, n)
		}
		r.stop()
	})
	return got
}

// check compares, with the delay of got inside the range of want.
func (want outcome) check(t *testing.T, got outcome) {
	t.Helper()
	if got.Min >= want.Min && got.Max <= want.Max {
		got.Min, got.Max = want.Min, want.Max
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("outcome (-want +got):\n%s", diff)
	}
}

func returning(res reconcile.Result, err error) reconcile.Func[string] {
	return func(context.Context, string) (reconcile.Result, error) { return res, err }
}

// table has the rows of the table in the comment of Result, in its order.
var table = []struct {
	doc    string // columns result to log, as in the package comment
	err    error
	nth    int // call since the last success that is observed; 0 means the first
	panics bool
	// Without RequeueAfter.
	again    string
	min, max time.Duration
	// With RequeueAfter of 40s.
	afterMin, afterMax time.Duration
}{
	{doc: "success|nil, RequeueAfter 0|reset|no|is requeue|V(4)",
		again: "no"},
	{doc: "requeue|nil, RequeueAfter not 0|reset|RequeueAfter|RequeueAfter|V(4)",
		afterMin: 40 * time.Second, afterMax: 40 * time.Second},
	{doc: "conflict|API conflict, first 5|kept|gate, or soon|RequeueAfter|V(4)", err: errConflict, nth: 5,
		again: "after", min: 50 * time.Millisecond, max: 250 * time.Millisecond, afterMin: 40 * time.Second, afterMax: 40 * time.Second},
	{doc: "conflict|API conflict, others|counted|rate limiter|RequeueAfter|error", err: errConflict, nth: 6,
		again: "rate limiter", afterMin: 40 * time.Second, afterMax: 40 * time.Second},
	{doc: "server_delay|API error with Retry-After|kept|1x..1.2x|the longer|error", err: errDelay,
		again: "after", min: 10 * time.Second, max: 12 * time.Second, afterMin: 40 * time.Second, afterMax: 40 * time.Second},
	{doc: "stale|Stale() bool is true, first 5|kept|gate, or soon|RequeueAfter|V(4)", err: errStale, nth: 5,
		again: "after", min: 1600 * time.Millisecond, max: 2400 * time.Millisecond, afterMin: 40 * time.Second, afterMax: 40 * time.Second},
	{doc: "stale|Stale() bool is true, others|kept|gate, or soon|RequeueAfter|error", err: errStale, nth: 7,
		again: "after", min: 5 * time.Second, max: 7500 * time.Millisecond, afterMin: 40 * time.Second, afterMax: 40 * time.Second},
	{doc: "terminal|ErrTerminal|reset|no|RequeueAfter|error", err: errInvalid,
		again: "no", afterMin: 40 * time.Second, afterMax: 40 * time.Second},
	{doc: "not_found|API not found|counted|rate limiter|RequeueAfter|error", err: errNotFound,
		again: "rate limiter", afterMin: 40 * time.Second, afterMax: 40 * time.Second},
	{doc: "rejected|API rejection, 1st of each 10|kept|1s to 15m|RequeueAfter|error", err: errRejected, nth: 11,
		again: "after", min: 10 * time.Minute, max: 15 * time.Minute, afterMin: 40 * time.Second, afterMax: 40 * time.Second},
	{doc: "rejected|API rejection, others|kept|1s to 15m|RequeueAfter|V(4)", err: errRejected, nth: 10,
		again: "after", min: 512 * time.Second, max: 768 * time.Second, afterMin: 40 * time.Second, afterMax: 40 * time.Second},
	{doc: "forbidden|API forbidden, 1st of each 10|kept|1s to 15m|RequeueAfter|error", err: errForbidden,
		again: "after", min: time.Second, max: 1500 * time.Millisecond, afterMin: 40 * time.Second, afterMax: 40 * time.Second},
	{doc: "forbidden|API forbidden, others|kept|1s to 15m|RequeueAfter|V(4)", err: errForbidden, nth: 2,
		again: "after", min: 2 * time.Second, max: 3 * time.Second, afterMin: 40 * time.Second, afterMax: 40 * time.Second},
	{doc: "timeout|deadline exceeded|counted|rate limiter|RequeueAfter|error", err: errDeadline,
		again: "rate limiter", afterMin: 40 * time.Second, afterMax: 40 * time.Second},
	{doc: "panic|Func panicked|counted|rate limiter|RequeueAfter|error", panics: true,
		again: "rate limiter"},
	{doc: "cancelled|any error of a call that Run ended|kept|at once|at once|V(4)"}, // TestCancelledByStop
	{doc: "error|any other error|counted|rate limiter|RequeueAfter|error", err: errPlain,
		again: "rate limiter", afterMin: 40 * time.Second, afterMax: 40 * time.Second},
}

// TestTable runs every row of the documented table, without and with
// RequeueAfter.
//
// Proves R1, R3.
func TestTable(t *testing.T) {
	for _, tt := range table {
		columns := strings.Split(tt.doc, "|")
		want := outcome{Result: columns[0], Failures: columns[2], Log: columns[5]}
		nth := max(tt.nth, 1)
		fn := func(after time.Duration) reconcile.Func[string] {
			if tt.panics {
				return func(context.Context, string) (reconcile.Result, error) { panic(errPanicValue) }
			}
			return returning(reconcile.Result{RequeueAfter: after}, tt.err)
		}
		if tt.again != "" {
			t.Run(columns[0]+"/"+columns[1], func(t *testing.T) {
				want := want
				want.Again, want.Min, want.Max = tt.again, tt.min, tt.max
				want.check(t, observe(t, nth, fn(0)))
				if columns[0] == "success" {
					want.Result, want.Again = "requeue", "at once"
				}
				want.check(t, observe(t, nth, fn(-time.Hour)))
			})
		}
		if tt.afterMin != 0 {
			t.Run(columns[0]+"/"+columns[1]+"/RequeueAfter", func(t *testing.T) {
				want := want
				if want.Failures == "counted" {
					want.Failures = "kept"
				}
				want.Again, want.Min, want.Max = "after", tt.afterMin, tt.afterMax
				want.check(t, observe(t, nth, fn(40*time.Second)))
			})
		}
	}
}

type waiting time.Duration

func (waiting) Error() string          { return "it goes on elsewhere" }
func (w waiting) Waits() time.Duration { return time.Duration(w) }

// A WaitingError runs the key again after its time, and is no failure. Joined to one, it leaves the class to it, but
// not the end of the retries.
func TestWaiting(t *testing.T) {
	t.Parallel()
	want := outcome{Result: "requeue", Failures: "reset", Again: "after", Min: time.Minute, Max: time.Minute, Log: "V(4)"}
	want.check(t, observe(t, 1, returning(result{RequeueAfter: time.Hour}, fmt.Errorf("bucket: %w", waiting(time.Minute)))))
	want.check(t, observe(t, 1, returning(result{}, errors.Join(waiting(time.Hour), waiting(time.Minute)))))
	failed := outcome{Result: "error", Failures: "counted", Again: "rate limiter", Log: "error"}
	failed.check(t, observe(t, 1, returning(result{}, errors.Join(waiting(time.Minute), errPlain))))
	failed.check(t, observe(t, 1, returning(result{}, waiting(0))))
	failed.check(t, observe(t, 1, returning(result{}, errors.Join(errInvalid, waiting(time.Minute)))))
	for _, err := range []error{waiting(time.Minute), fmt.Errorf("bucket: %w", waiting(time.Minute)), errors.Join(waiting(time.Hour), waiting(time.Minute))} {
		if got := reconcile.Class(err); got != "requeue" {
			t.Errorf("Class of %q = %s, want requeue", err, got)
		}
	}
	if got := reconcile.Class(errors.Join(waiting(time.Minute), reconcile.ErrTerminal)); got != "error" {
		t.Errorf("Class of a wait and a terminal error = %s, want error", got)
	}
	race := outcome{Result: "conflict", Failures: "kept", Again: "after", Min: 50 * time.Millisecond, Max: 250 * time.Millisecond, Log: "V(4)"}
	race.check(t, observe(t, 1, returning(result{}, errors.Join(waiting(time.Minute), fmt.Errorf("status: %w", errConflict)))))
	race.check(t, observe(t, 1, returning(result{}, errors.Join(errConflict, waiting(time.Minute)))))
	refused := outcome{Result: "rejected", Failures: "kept", Again: "after", Min: time.Second, Max: 1500 * time.Millisecond, Log: "error"}
	refused.check(t, observe(t, 1, returning(result{}, errors.Join(waiting(time.Minute), errRejected))))
}

// A WaitingError that Classify returns is no failure either.
func TestClassifyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics, logs := &counts{}, newLogs()
		var began []time.Time
		r := start(t, logs.Context(t.Context()), &controller{
			Name: "x", Queue: newTestQueue("a"), Metrics: metrics,
			Reconcile: func(context.Context, string) (reconcile.Result, error) {
				began = append(began, time.Now())
				return reconcile.Result{}, errPlain
			},
			Classify: func(error) error { return fmt.Errorf("later: %w", waiting(30*time.Second)) },
		})
		time.Sleep(time.Minute - time.Second)
		synctest.Wait()
		r.stop()
		if got := metrics.results(); len(got) != 2 || got[0] != "requeue" || got[1] != "requeue" {
			t.Fatalf("results %q, want two of requeue", got)
		}
		if got := began[1].Sub(began[0]); got != 30*time.Second {
			t.Errorf("the second call was %v after the first, want 30s", got)
		}
		for _, line := range logs.Having("class") {
			if line.Level != 4 {
				t.Errorf("a line of a call is loud: %v", line)
			}
		}
	})
}

// TestRejections: a request that the API server rejects, and would reject again, is
// retried less and less often, with one line of log at first, or later if its namespace is being deleted, and its class is known to
// errors.Is.
//
// Proves R10.
func TestRejections(t *testing.T) {
	terminating := func() error {
		err := apierrors.NewForbidden(configMaps, "a", errors.New("the namespace is being terminated"))
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: "NamespaceTerminating", Field: "metadata.namespace"}}
		return err
	}
	kind := schema.GroupKind{Kind: "ConfigMap"}
	status := func(code int) error {
		return apierrors.NewGenericServerResponse(code, "POST", configMaps, "a", "", 0, false)
	}
	for _, tt := range []struct {
		name        string
		err         error
		want        string
		terminating bool
	}{
		{"400", apierrors.NewBadRequest("x"), "rejected", false},
		{"401", apierrors.NewUnauthorized("x"), "forbidden", false},
		{"403", errForbidden, "forbidden", false},
		{"403 of a namespace that is being deleted", terminating(), "rejected", true},
		{"403 of a full quota", errQuota, "rejected", false},
		{"403 of PodSecurity", apierrors.NewForbidden(configMaps, "a", errors.New(`violates PodSecurity "restricted:latest": hostPort`)), "rejected", false},
		{"403 of a webhook", &apierrors.StatusError{ErrStatus: metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: `admission webhook "a.example.com" denied the request: no`}}, "rejected", false},
		{"405", apierrors.NewMethodNotSupported(configMaps, "patch"), "rejected", false},
		{"406", status(406), "rejected", false},
		{"409 AlreadyExists", apierrors.NewAlreadyExists(configMaps, "a"), "rejected", false},
		{"413", apierrors.NewRequestEntityTooLargeError("x"), "rejected", false},
		{"415", status(415), "rejected", false},
		{"422", apierrors.NewInvalid(kind, "a", nil), "rejected", false},
		{"marked", fmt.Errorf("size: %w", reconcile.ErrRejected), "rejected", false},
		{"a method", rejectedError{apierrors.NewInternalError(errors.New("x"))}, "rejected", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				logs, calls := newLogs(), atomic.Int64{}
				r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: newTestQueue("a"),
					Reconcile: func(context.Context, string) (reconcile.Result, error) {
						calls.Add(1)
						return reconcile.Result{}, fmt.Errorf("step: %w", tt.err)
					},
					Hook: func(ctx context.Context, _ string) (context.Context, func(string, error)) {
						return ctx, func(result string, err error) {
							if result != tt.want || !errors.Is(err, reconcile.ErrRejected) || !errors.Is(err, tt.err) || err.Error() != "step: "+tt.err.Error() {
								t.Errorf("result %s with %v, want %s with ErrRejected", result, err, tt.want)
							}
						}
					},
				})
				time.Sleep(15 * time.Minute)
				synctest.Wait()
				if got := calls.Load(); got > 10 {
					t.Errorf("%d calls in the first 15min", got)
				}
				loud := func() (n int) {
					for _, line := range logs.Having("class") {
						if line.Level < 0 {
							n++
						}
					}
					return n
				}
				want := 1
				if tt.terminating {
					want = 0
				}
				// The 10th call is near the end of the 15min.
				if got := loud(); got != want && (!tt.terminating || calls.Load() < 10) {
					t.Errorf("%d errors in the log in the first 15min, want %d", got, want)
				}
				time.Sleep(45 * time.Minute)
				synctest.Wait()
				if got := calls.Load(); got < 11 || got > 15 {
					t.Errorf("%d calls in the first hour, want 11 to 15", got)
				}
				if got := loud(); tt.terminating && got != 1 {
					t.Errorf("%d errors in the log in the first hour, want 1: a namespace that is stuck", got)
				}
				r.stop()
			})
		})
	}
}

// TestHookKnowsTheClass: an error that is terminal by its method is so by errors.Is too;
// others are not changed.
func TestHookKnowsTheClass(t *testing.T) {
	for _, tt := range []struct {
		err                error
		terminal, rejected bool
	}{
		{err: terminalError(true), terminal: true},
		{err: errInvalid, terminal: true},
		{err: errPlain},
		{err: errConflict},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := start(t, t.Context(), &controller{Name: "x", Queue: newTestQueue("a"), Reconcile: returning(reconcile.Result{}, tt.err),
				Hook: func(ctx context.Context, _ string) (context.Context, func(string, error)) {
					return ctx, func(_ string, err error) {
						if errors.Is(err, reconcile.ErrTerminal) != tt.terminal || errors.Is(err, reconcile.ErrRejected) != tt.rejected || !errors.Is(err, tt.err) {
							t.Errorf("%v: terminal %t, rejected %t", err, errors.Is(err, reconcile.ErrTerminal), errors.Is(err, reconcile.ErrRejected))
						}
					}
				},
			})
			synctest.Wait()
			r.stop()
		})
	}
}

// TestTableIsDocumented compares the table of the comment of Result with the rows
// that TestTable runs.
//
// Proves R1.
func TestTableIsDocumented(t *testing.T) {
	source, err := os.ReadFile("reconcile.go")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	columns := regexp.MustCompile(` {2,}`)
	for _, text := range strings.Split(string(source), "\n") {
		text, ok := strings.CutPrefix(text, "//\t")
		if fields := columns.Split(text, -1); ok && len(fields) == 6 {
			got = append(got, strings.Join(fields, "|"))
		}
	}
	want := []string{"result|returned|failures|runs again|with RequeueAfter > 0|log"}
	for _, tt := range table {
		want = append(want, tt.doc)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("table in the comment of Result (-tested +documented):\n%s", diff)
	}
}

// TestClasses shows which class an error has that could have several.
func TestClasses(t *testing.T) {
	wrapped := func(err error) error { return fmt.Errorf("step: %w", err) }
	tests := []struct {
		name string
		err  error
		want string
	}{
		{"wrapped conflict", wrapped(errConflict), "conflict"},
		{"conflict of server-side apply", errApply, "error"},
		{"overload without a delay", errNoDelay, "error"},
		{"server timeout that suggests no seconds", apierrors.NewServerTimeout(configMaps, "get", 0), "server_delay"},
		{"conflict with a delay", apierrors.NewGenerateNameConflict(configMaps, "a", 1), "server_delay"},
		{"already exists", apierrors.NewAlreadyExists(configMaps, "a"), "rejected"},
		{"a failed test of a JSON patch", apierrors.NewGenericServerResponse(422, "PATCH", schema.GroupResource{}, "", "", 0, false), "conflict"},
		{"API error marked rejected", fmt.Errorf("%w: %w", reconcile.ErrRejected, errConflict), "rejected"},
		{"API error with a delay marked rejected", fmt.Errorf("%w: %w", reconcile.ErrRejected, errDelay), "rejected"},
		{"conflict with a delay marked rejected", rejectedError{apierrors.NewGenerateNameConflict(configMaps, "a", 1)}, "rejected"},
		{"terminal before rejected", fmt.Errorf("%w: %w", reconcile.ErrRejected, reconcile.ErrTerminal), "terminal"},
		{"Stale is false", errStaleNot, "error"},
		{"wrapped stale", wrapped(errStale), "stale"},
		{"cancellation that is not Run's", context.Canceled, "error"},
		{"returned PanicError", wrapped(&reconcile.PanicError{Value: 1}), "panic"},
		{"PanicError of a conflict", &reconcile.PanicError{Value: errConflict}, "panic"},

		{"API error marked terminal", fmt.Errorf("%w: %w", reconcile.ErrTerminal, errConflict), "terminal"},
		{"API error marked terminal behind", fmt.Errorf("%w (%w)", errDelay, reconcile.ErrTerminal), "terminal"},
		{"join marked terminal", fmt.Errorf("%w: %w", reconcile.ErrTerminal, errors.Join(errPlain, errConflict)), "terminal"},

		{"error of a package that imports none", terminalError(true), "terminal"},
		{"API error with it", fmt.Errorf("%w: %w", errConflict, terminalError(true)), "terminal"},
		{"Terminal is false", terminalError(false), "error"},

		{"stale that wraps a conflict", fmt.Errorf("%w: %w", errConflict, errStale), "stale"},
		{"API error after a deadline", fmt.Errorf("%w: %w", errDeadline, errNotFound), "not_found"},
		{"two API errors", fmt.Errorf("%w: %w", errNotFound, errForbidden), "not_found"},
		{"two API errors turned round", fmt.Errorf("%w: %w", errForbidden, errNotFound), "forbidden"},

		{"one joined", errors.Join(errConflict), "conflict"},
		{"joined panic, delay", errors.Join(errDelay, &reconcile.PanicError{}), "panic"},
		{"joined delay, plain", errors.Join(errPlain, errDelay), "server_delay"},
		{"joined plain, timeout", errors.Join(errDeadline, errPlain), "error"},
		{"joined timeout, not found", errors.Join(errNotFound, errDeadline), "timeout"},
		{"joined not found, forbidden", errors.Join(errForbidden, errNotFound), "not_found"},
		{"joined not found, rejected", errors.Join(errRejected, errNotFound), "not_found"},
		{"joined rejected, forbidden", errors.Join(errForbidden, errRejected), "rejected"},
		{"joined forbidden, conflict", errors.Join(errConflict, errForbidden), "forbidden"},
		{"joined conflict, stale", errors.Join(errStale, errConflict), "conflict"},
		{"joined stale, terminal", errors.Join(errInvalid, errStale), "stale"},
		{"joined terminal only", errors.Join(errInvalid, reconcile.ErrTerminal), "terminal"},
		{"joined terminal, plain", errors.Join(errInvalid, errPlain), "error"},
		{"wrapped join", wrapped(errors.Join(errInvalid, wrapped(errors.Join(errConflict, errStale)))), "conflict"},
		{"aggregate", utilerrors.NewAggregate([]error{errInvalid, errConflict}), "conflict"},
		{"wrapped aggregate in a join", errors.Join(errStale, wrapped(utilerrors.NewAggregate([]error{errForbidden, errStale}))), "forbidden"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := observe(t, 1, returning(reconcile.Result{}, tt.err))
			if got.Result != tt.want {
				t.Errorf("class of %q = %s, want %s", tt.err, got.Result, tt.want)
			}
		})
	}
}

// TestServerDelayBounds: a server can ask for neither no delay nor for days, and
// the longest delay of a join counts.
func TestServerDelayBounds(t *testing.T) {
	tests := []struct {
		name     string
		res      reconcile.Result
		err      error
		min, max time.Duration
	}{
		{"no seconds", result{}, apierrors.NewServerTimeout(configMaps, "get", 0), time.Second, 1200 * time.Millisecond},
		{"a day", result{}, apierrors.NewTooManyRequests("slow down", 86400), 5 * time.Minute, 6 * time.Minute},
		{"the longest of a join", result{}, errors.Join(apierrors.NewTooManyRequests("x", 2), errPlain, errDelay), 10 * time.Second, 12 * time.Second},
		{"RequeueAfter that is shorter", result{RequeueAfter: time.Second}, errDelay, 10 * time.Second, 12 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := outcome{Result: "server_delay", Failures: "kept", Again: "after", Min: tt.min, Max: tt.max, Log: "error"}
			want.check(t, observe(t, 1, returning(tt.res, tt.err)))
		})
	}
}

// TestDelaysAreJittered: keys that failed together do not return together.
func TestDelaysAreJittered(t *testing.T) {
	for _, err := range []error{errConflict, errDelay, errStale, errForbidden} {
		delays := map[time.Duration]bool{}
		for range 5 {
			delays[observe(t, 1, returning(reconcile.Result{}, err)).Min] = true
		}
		if len(delays) < 2 {
			t.Errorf("delay after %q is always %v, want it random", err, delays)
		}
	}
}

// TestStaleDelayGrows: 100ms, 200ms, ... 5s, and from the start again after a success.
func TestStaleDelayGrows(t *testing.T) {
	want := []time.Duration{100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000}
	for i, ms := range want {
		low := ms * time.Millisecond
		want := outcome{Result: "stale", Failures: "kept", Again: "after", Min: low, Max: low + low/2, Log: "V(4)"}
		if i+1 > 5 {
			want.Log = "error"
		}
		want.check(t, observe(t, i+1, returning(reconcile.Result{}, errStale)))
	}
}

// TestConflictsAndStaleShareACount: a stale result between conflicts does not start their
// count anew.
//
// Proves R3.
func TestConflictsAndStaleShareACount(t *testing.T) {
	calls := 0
	got := observe(t, 6, func(context.Context, string) (reconcile.Result, error) {
		if calls++; calls == 3 {
			return reconcile.Result{}, errStale
		}
		return reconcile.Result{}, errConflict
	})
	want := outcome{Result: "conflict", Failures: "counted", Again: "rate limiter", Log: "error"}
	want.check(t, got)
}

// rejectedError is classed by its method, as the errors of other packages are.
type rejectedError struct{ error }

func (rejectedError) Rejected() bool  { return true }
func (e rejectedError) Unwrap() error { return e.error }
