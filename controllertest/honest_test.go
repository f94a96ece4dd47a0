package controllertest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// TestUnjudged: a plan whose script fails by the connection in every run is not judged, and is no
// finding. An exploration without another plan says so and fails.
//
// Proves X2.
func TestUnjudged(t *testing.T) {
	testserver.Needed(t)
	t.Parallel()
	s := (&copier{}).scenario()
	var calls atomic.Int64
	s.Script[0].Do = func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		if err := createsA(ctx, cfg, env); err != nil || calls.Add(1) <= 4 { // the runs without faults
			return err
		}
		return fmt.Errorf("read the response: %w", io.ErrUnexpectedEOF)
	}
	report := run(t, s, quick(t, dropped))
	if len(report.Unjudged) != 1 || !strings.HasPrefix(report.Unjudged[0], dropped+`: step "create a": a request of the user failed on its way: read the response: unexpected EOF`) || len(report.Failures) > 0 || len(report.Invalid) > 0 {
		t.Errorf("unjudged %q, invalid %q, failures %v", report.Unjudged, report.Invalid, report.Failures)
	}
	calls.Store(0)
	rec := record(t, func(tb testing.TB) { controllertest.Explore(tb, s, quick(t, dropped)) })
	if !strings.Contains(rec.errors(), "no plan could be judged: the faults of 0 of 1 plans did not happen, and 1 plans have no outcome") {
		t.Errorf("Explore reports %q", rec.errors())
	}
	s.Script[0].Do = func(context.Context, *rest.Config, *controllertest.Env) error { return io.ErrUnexpectedEOF }
	if _, err := controllertest.Run(t.Context(), s, quick(t, dropped)); err == nil || !strings.Contains(err.Error(), `no run without faults can be judged: step "create a"`) {
		t.Errorf("without faults the error is %v", err)
	}
}

// TestRaceWithoutFaults: runs without faults that end differently are reported with both outcomes.
//
// Proves X4.
func TestRaceWithoutFaults(t *testing.T) {
	testserver.Needed(t)
	t.Parallel()
	for _, first := range []int64{1, 3} {
		var calls atomic.Int64
		s := (&copier{}).scenario()
		s.Script[0].Do = func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			if calls.Add(1) == first {
				return errors.New("the slower one won")
			}
			return createsA(ctx, cfg, env)
		}
		o := quick(t)
		o.Confirm = 0
		rec := record(t, func(tb testing.TB) { controllertest.Explore(tb, s, o) })
		for _, part := range []string{`flaky, in 1 of 4 runs: health: step "create a": the slower one won`, "different outcomes, because of a race in the controller or the script: 1 of 4 have this one, and the others do not"} {
			if !strings.Contains(rec.errors(), part) {
				t.Errorf("run %d: Explore reports %q, want %q", first, rec.errors(), part)
			}
		}
	}
}

// TestBudgetIsABound: an exploration ends when its budget does, and says how many plans ran and
// which passed.
func TestBudgetIsABound(t *testing.T) {
	testserver.Needed(t)
	t.Parallel()
	// A plan with an error does not converge, which takes longer than the budget. On a busy machine the runs
	// without faults alone take more than 10s.
	s := (&copier{failed: func(context.Context, *copying) error { return errStop }}).scenario()
	o := quick(t)
	o.Budget, o.Parallel, o.QuietPeriod, o.ConvergeTimeout = 20*time.Second, 3, time.Second, 40*time.Second
	began := time.Now()
	report := run(t, s, o)
	if took := time.Since(began); took > o.Budget+10*time.Second {
		t.Errorf("the exploration took %v", took)
	}
	t.Logf("the exploration took %v, its plans %v", time.Since(began), report.Duration)
	want := fmt.Sprintf("%d of %d enumerated plans ran", report.Ran, report.Enumerated)
	if report.Complete || report.Ran == 0 || report.Ran >= report.Enumerated || !strings.Contains(report.String(), want) {
		t.Errorf("want %q in\n%s", want, report)
	}
	if len(report.Failures) > 0 || len(report.Passed) != report.Valid || !slices.IsSorted(report.Passed) {
		t.Errorf("%d valid plans, passed %q", report.Valid, report.Passed)
	}
}

// TestNeverValid: a plan that cannot happen is refused, with the cure.
//
// Proves X4.
func TestNeverValid(t *testing.T) {
	testserver.Needed(t)
	t.Parallel()
	s := (&copier{}).scenario()
	for plan, want := range map[string]string{
		"409@create configmaps a-copy#1":       "409 can never happen at \"create configmaps a-copy#1\": a conflict needs a write with a resourceVersion",
		"409@get configmaps a#1":               "a conflict needs a write",
		"503@external create a#1":              "an external call has no response of the API server",
		dropped + " + 409@external create a#1": "a conflict needs a write",
	} {
		if _, err := controllertest.Run(t.Context(), s, quick(t, plan)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v, want %q", plan, err, want)
		}
	}
	s.UserObjects = []string{"configmaps/a", "configmaps/b"}
	if _, err := controllertest.Run(t.Context(), s, quick(t, dropped)); err == nil || !strings.Contains(err.Error(), `Scenario.UserObjects has "configmaps/b", which the script does not create: use names of ["configmaps/a"]`) {
		t.Errorf("the error is %v", err)
	}
	s.UserObjects = nil
	again := dropped + " + slow@create configmaps a-copy#2"
	rec := record(t, func(tb testing.TB) { controllertest.Explore(tb, s, quick(t, again)) })
	if want := `the number after # counts from the fault before, so the next "create configmaps a-copy" after a fault is #1 again`; !strings.Contains(rec.errors(), want) {
		t.Errorf("Explore reports %q, want %q", rec.errors(), want)
	}
}

// TestObjectsOfEveryNamespace: a controller may write the objects that a cluster creates in each
// namespace. They come to rest, and are compared then.
//
// Proves X1.
func TestObjectsOfEveryNamespace(t *testing.T) {
	testserver.Needed(t)
	t.Parallel()
	root := func(f *following, data string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt", Namespace: f.namespace}, Data: map[string]string{"ca": data}}
	}
	var calls atomic.Int64
	follow := func(data func() string) controllertest.Scenario {
		f := follower{reconcile: func(ctx context.Context, f *following, _ *corev1.ConfigMap) error {
			_, err := f.kube.CoreV1().ConfigMaps(f.namespace).Create(ctx, root(f, data()), metav1.CreateOptions{})
			return ignoreExists(err)
		}}
		s := f.scenario()
		s.Converged = func(s *controllertest.State) error {
			if s.Get("configmaps", "a") != nil && s.Get("configmaps", "kube-root-ca.crt") == nil {
				return errors.New("the certificate is missing")
			}
			return nil
		}
		return s
	}
	const plan = "drop-request@create configmaps kube-root-ca.crt#1"
	report := run(t, follow(func() string { return "x" }), quick(t, plan))
	if report.Valid != 1 || len(report.Failures) > 0 {
		t.Errorf("%d valid plans, failures %v", report.Valid, report.Failures)
	}
	report = run(t, follow(func() string {
		if calls.Add(1) > 4 {
			return "y"
		}
		return "x"
	}), quick(t, plan))
	if len(report.Failures) != 1 || report.Failures[0].Findings[0].Field != ".data.ca" {
		t.Errorf("another certificate is no finding: %v", report.Failures)
	}
}

// TestConflictIsReal: under a conflict the API server rejects the write, and the controller gets the
// event of the write that came between. A controller that waits for that event is correct.
//
// Proves X1.
func TestConflictIsReal(t *testing.T) {
	testserver.Needed(t)
	t.Parallel()
	var conflicts, forged atomic.Int64
	f := follower{reconcile: func(ctx context.Context, f *following, a *corev1.ConfigMap) error {
		err := f.annotate(ctx, a, "noted", "yes")
		if apierrors.IsConflict(err) {
			conflicts.Add(1)
			if live, getErr := f.kube.CoreV1().ConfigMaps(f.namespace).Get(ctx, "a", metav1.GetOptions{}); getErr == nil && live.ResourceVersion == a.ResourceVersion {
				forged.Add(1)
			}
		}
		return ignoreConflict(err)
	}}
	s := f.scenario()
	s.Converged = func(s *controllertest.State) error {
		switch a := s.Get("configmaps", "a"); {
		case a == nil:
		case a.GetAnnotations()["noted"] == "":
			return errors.New("a is not noted")
		case len(a.GetAnnotations()) > 1:
			return fmt.Errorf("the kit has left %v", a.GetAnnotations())
		}
		return nil
	}
	report := run(t, s, quick(t, "409@update configmaps a metadata.annotations#1"))
	if report.Valid != 1 || len(report.Failures) > 0 || conflicts.Load() == 0 || forged.Load() > 0 {
		t.Errorf("%d valid plans, %d conflicts, %d without another writer, failures %v", report.Valid, conflicts.Load(), forged.Load(), report.Failures)
	}
}

// A keeper keeps a ClusterRole for the ConfigMap a, named by its uid, and deletes all other roles of
// that form, whose owners are gone. CSI controllers treat volumes so.
func keeper(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	objects := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(env.Namespace))
	all := informers.NewSharedInformerFactoryWithOptions(kube, 0)
	configMaps, roles := objects.Core().V1().ConfigMaps(), all.Rbac().V1().ClusterRoles()
	wake := make(chan struct{}, 1)
	trigger := func(any) {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: trigger, UpdateFunc: func(_, obj any) { trigger(obj) }, DeleteFunc: trigger}
	for _, informer := range []cache.SharedIndexInformer{configMaps.Informer(), roles.Informer()} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer objects.Shutdown()
	defer all.Shutdown()
	defer cancel()
	objects.StartWithContext(ctx)
	all.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), configMaps.Informer().HasSynced, roles.Informer().HasSynced) {
		return nil
	}
	keep := func() error {
		wanted := ""
		if a, err := configMaps.Lister().ConfigMaps(env.Namespace).Get("a"); err == nil {
			wanted = "kept-" + string(a.UID)
			if _, err := roles.Lister().Get(wanted); apierrors.IsNotFound(err) {
				if _, err := kube.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: wanted}}, metav1.CreateOptions{}); ignoreExists(err) != nil {
					return err
				}
			}
		}
		have, err := roles.Lister().List(labels.Everything())
		for _, role := range have {
			if strings.HasPrefix(role.Name, "kept-") && role.Name != wanted {
				err = errors.Join(err, kube.RbacV1().ClusterRoles().Delete(ctx, role.Name, metav1.DeleteOptions{}))
			}
		}
		return err
	}
	for {
		select {
		case <-wake:
		case <-ctx.Done():
			return nil
		}
		if err := keep(); err != nil {
			time.AfterFunc(100*time.Millisecond, func() { trigger(nil) })
		}
	}
}

// TestNamedByUID: runs side by side do not see each other's cluster-scoped objects, also if only the
// uid of an object is part of their names.
//
// Proves X1.
func TestNamedByUID(t *testing.T) {
	testserver.Needed(t)
	t.Parallel()
	s := controllertest.Scenario{
		Name: "keeper", Start: keeper, Script: []controllertest.Step{{Name: "create a", Do: createsA}},
		Converged: func(s *controllertest.State) error {
			if a, roles := s.Get("configmaps", "a"), s.Objects("clusterroles.rbac.authorization.k8s.io"); (a == nil) != (len(roles) == 0) || len(roles) > 1 {
				return fmt.Errorf("a is there: %t, roles: %d", a != nil, len(roles))
			}
			return nil
		},
	}
	o := quick(t)
	o.Faults = []controllertest.Kind{controllertest.DropRequest, controllertest.LostResponse, controllertest.CrashAfter, controllertest.CrashBefore, controllertest.UserRecreate, controllertest.InternalError}
	report := run(t, s, o)
	for _, f := range report.Failures {
		t.Error(f)
	}
	if report.Valid < 8 {
		t.Errorf("%d of %d plans are valid", report.Valid, report.Plans)
	}
}

// TestForeignWrite: a write of an object of another run at the same time ends the exploration with
// the cure.
//
// Proves X4.
func TestForeignWrite(t *testing.T) {
	testserver.Needed(t)
	t.Parallel()
	f := follower{reconcile: func(ctx context.Context, f *following, _ *corev1.ConfigMap) error {
		return f.kube.RbacV1().ClusterRoles().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "of=nobody"})
	}}
	report := run(t, f.scenario(), quick(t))
	if len(report.Failures) != 1 || !strings.Contains(report.Failures[0].String(), "a request deletes a collection of clusterroles.rbac.authorization.k8s.io, in which other runs have objects: delete single objects, or set Options.Parallel to 1") {
		t.Errorf("failures %v", report.Failures)
	}
}

// A limited is a recorder of a test with a deadline, as *testing.T has with the -timeout of go test.
type limited struct {
	*recorder
	end time.Time
}

func (l limited) Deadline() (time.Time, bool) { return l.end, true }

// TestTimeoutOfGoTest holds that an exploration ends before the deadline of its test, and names the
// cure.
//
// Proves X4.
func TestTimeoutOfGoTest(t *testing.T) {
	testserver.Needed(t)
	t.Parallel()
	s := (&copier{}).scenario()
	o := quick(t)
	o.QuietPeriod = time.Minute
	rec := record(t, func(tb testing.TB) {
		controllertest.Explore(limited{tb.(*recorder), time.Now().Add(4 * time.Second)}, s, o)
	})
	if want := "controllertest: copier: the -timeout of go test is nearly over: set a longer one, or Options.Budget"; rec.errors() != want {
		t.Errorf("Explore reports %q, want %q", rec.errors(), want)
	}
}

// TestStoppedReports holds that an exploration whose context ends reports the findings before, and
// the cause of the end.
//
// Proves X4.
func TestStoppedReports(t *testing.T) {
	testserver.Needed(t)
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var late atomic.Bool
	c := copier{failed: func(context.Context, *copying) error {
		if late.Swap(true) {
			cancel(errors.New("the machine is needed"))
		}
		return errStop
	}}
	o := quick(t, dropped, dropped)
	o.Parallel, o.ConvergeTimeout = 1, 5*time.Second
	rec := record(t, func(tb testing.TB) {
		tb.(*recorder).ctx = ctx
		controllertest.Explore(tb, c.scenario(), o)
	})
	for _, part := range []string{dropped + "\nliveness: ", "controllertest: copier: the machine is needed"} {
		if !strings.Contains(rec.errors(), part) {
			t.Errorf("Explore reports %q, want %q", rec.errors(), part)
		}
	}
	if !strings.Contains(rec.logs(), "1 of 2 enumerated plans ran") {
		t.Errorf("the log is\n%s", rec.logs())
	}
}

// TestOutageOfTheServer holds that a short outage of the API server costs no plan its outcome.
//
// Proves X2.
func TestOutageOfTheServer(t *testing.T) {
	testserver.Needed(t)
	t.Parallel()
	var created atomic.Int64
	o := quick(t, dropped)
	o.Config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Method == http.MethodPost && req.URL.Path == "/api/v1/namespaces" {
				if n := created.Add(1); n > 4 && n <= 9 { // after the runs without faults
					return nil, errors.New("refused by the test")
				}
			}
			return next.RoundTrip(req)
		})
	})
	if report := run(t, (&copier{}).scenario(), o); report.Valid != 1 || len(report.Unjudged) > 0 {
		t.Errorf("%d plans are valid, not judged: %q", report.Valid, report.Unjudged)
	}
}
