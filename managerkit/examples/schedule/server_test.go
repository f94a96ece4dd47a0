package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit/examples/schedule/after"
	v1 "github.com/controllerkit/controllerkit/managerkit/examples/schedule/api/v1"
	"github.com/controllerkit/controllerkit/managerkit/examples/schedule/before"
)

// A version makes the manager of a version of the operator.
type version func(*rest.Config, ctrl.Options, func() time.Time) (ctrl.Manager, error)

// install installs the definition once for the server.
var install sync.Once

// keep is a test whose cleanups are left out: the definition lasts as long as the server.
type keep struct{ testing.TB }

func (keep) Cleanup(func()) {}

func installSchedules(t *testing.T) {
	t.Helper()
	install.Do(func() {
		text, err := os.ReadFile("config/crd.yaml")
		definition := map[string]any{}
		if err := errors.Join(err, yaml.Unmarshal(text, &definition)); err != nil {
			t.Fatal(err)
		}
		testserver.InstallCRD(keep{t}, definition)
	})
}

// A world is a namespace as the API server has it, and the programs that run in it.
type world struct {
	t         *testing.T
	namespace string
	client    client.Client
	cache     cache.Cache
	events    chan struct{}
	clock     clock
	runs      atomic.Int64 // reconciles of any program
}

func newWorld(t *testing.T) *world {
	t.Helper()
	installSchedules(t)
	w := &world{t: t, namespace: testserver.Namespace(t), events: make(chan struct{}, 1)}
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	if w.client, err = newClient(testserver.Config(t)); err != nil {
		t.Fatal(err)
	}
	if w.cache, err = cache.New(testserver.Config(t), cache.Options{Scheme: scheme, DefaultNamespaces: map[string]cache.Config{w.namespace: {}}}); err != nil {
		t.Fatal(err)
	}
	w.start(w.cache.Start)
	note := func(any) { w.note() }
	for _, kind := range []client.Object{&v1.Schedule{}, &batchv1.Job{}, &coordinationv1.Lease{}} {
		informer, err := w.cache.GetInformer(t.Context(), kind)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: note, UpdateFunc: func(_, _ any) { w.note() }, DeleteFunc: note}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// note makes await look again.
func (w *world) note() {
	select {
	case w.events <- struct{}{}:
	default:
	}
}

// now is the clock of the reconcilers, which they read once in each run.
func (w *world) now() time.Time {
	w.runs.Add(1)
	w.note()
	return w.clock.now()
}

// await returns when the state is as wanted. Its condition is checked after each event.
func (w *world) await(state func() error) {
	w.t.Helper()
	late := time.After(time.Minute)
	for {
		err := state()
		if err == nil {
			return
		}
		select {
		case <-w.events:
		case <-late:
			w.t.Fatalf("after a minute: %v", err)
		}
	}
}

// start runs a program until the returned function is called, or the test ends.
func (w *world) start(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("Start() = %v, want nil", err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

// options are those of a program in this world.
func (w *world) options() ctrl.Options {
	scheme, err := newScheme()
	if err != nil {
		w.t.Fatal(err)
	}
	return ctrl.Options{
		Scheme:     scheme,
		Logger:     logr.Discard(),
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
		Cache:      cache.Options{DefaultNamespaces: map[string]cache.Config{w.namespace: {}}},
	}
}

// run runs a version until the test ends. All its requests about Schedules and Jobs count, except
// those that fill its cache.
func (w *world) run(newManager version) (process *fault.Incarnation, requests *atomic.Int64) {
	w.t.Helper()
	requests = &atomic.Int64{}
	process, err := fault.New(testserver.Config(w.t), func(op *fault.Op) fault.Fault {
		if !op.IsReflector() && (op.Resource == "schedules.jobs.example.com" || op.Resource == "jobs.batch") {
			requests.Add(1)
		}
		return fault.Fault{}
	}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(process.Kill)
	mgr, err := newManager(process.Config(), w.options(), w.now)
	if err != nil {
		w.t.Fatal(err)
	}
	w.start(mgr.Start)
	for _, kind := range []client.Object{&v1.Schedule{}, &batchv1.Job{}} {
		if _, err := mgr.GetCache().GetInformer(w.t.Context(), kind); err != nil { // returns when it has synced
			w.t.Fatal(err)
		}
	}
	return process, requests
}

// create creates Schedules of each minute.
func (w *world) create(n int) (names []string) {
	w.t.Helper()
	for i := range n {
		s := newSchedule(w.namespace, fmt.Sprintf("report-%03d", i))
		names = append(names, s.Name)
		if err := w.client.Create(w.t.Context(), s); err != nil {
			w.t.Fatal(err)
		}
	}
	return names
}

// minute sets the clock, and shows it to the controller.
func (w *world) minute(n int64, names ...string) {
	w.t.Helper()
	w.clock.minutes.Store(n)
	for _, name := range names {
		if err := setMinute(w.t.Context(), w.client, w.namespace, name, n); err != nil {
			w.t.Fatal(err)
		}
	}
}

// jobs returns the Jobs of each Schedule.
func (w *world) jobs() map[string][]*batchv1.Job {
	var list batchv1.JobList
	if err := w.cache.List(w.t.Context(), &list); err != nil {
		w.t.Fatal(err)
	}
	of := map[string][]*batchv1.Job{}
	for i := range list.Items {
		owner := metav1.GetControllerOf(&list.Items[i]).Name
		of[owner] = append(of[owner], &list.Items[i])
	}
	return of
}

// seen returns nil if the status of each Schedule has its running Jobs, and at least one.
func (w *world) seen() error {
	var list v1.ScheduleList
	if err := w.cache.List(w.t.Context(), &list); err != nil {
		return err
	}
	jobs, late := w.jobs(), 0
	for _, s := range list.Items {
		var active []string
		for _, job := range jobs[s.Name] {
			if running(job) {
				active = append(active, job.Name)
			}
		}
		slices.Sort(active)
		if len(active) == 0 || !slices.Equal(active, s.Status.Active) {
			late++
		}
	}
	if late > 0 || len(list.Items) == 0 {
		return fmt.Errorf("the status of %d of %d Schedules does not have its Jobs", late, len(list.Items))
	}
	return nil
}

// TestServerLife: a Schedule makes one Job after the other, keeps one of each result, and shows
// them in its status, in both versions.
func TestServerLife(t *testing.T) {
	for name, newManager := range map[string]version{"before": before.NewManager, "after": after.NewManager} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.run(newManager)
			w.create(1)
			const name = "report-000"
			for minute := range 4 {
				if minute > 0 {
					if err := finish(t.Context(), w.client, w.namespace, jobName(name, minute-1), minute != 2); err != nil {
						t.Fatal(err)
					}
					w.minute(int64(minute), name)
				}
				w.await(func() error {
					s := &v1.Schedule{}
					if err := w.cache.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, s); err != nil {
						return err
					}
					var names []string
					for _, job := range w.jobs()[name] {
						names = append(names, job.Name)
					}
					slices.Sort(names)
					// The Job of minute 1 fails, and so it outlives that of minute 0.
					want := [][]int{{0}, {0, 1}, {0, 1, 2}, {1, 2, 3}}[minute]
					var wanted []string
					for _, n := range want {
						wanted = append(wanted, jobName(name, n))
					}
					if !slices.Equal(names, wanted) || !slices.Equal(s.Status.Active, wanted[len(wanted)-1:]) {
						return fmt.Errorf("minute %d: the Jobs are %q and %q are active, want %q", minute, names, s.Status.Active, wanted)
					}
					if at := s.Status.LastTime; at == nil || !at.Equal(&metav1.Time{Time: w.clock.now()}) || !meta.IsStatusConditionTrue(s.Status.Conditions, "Ready") {
						return fmt.Errorf("minute %d: the status is %+v", minute, s.Status)
					}
					return nil
				})
			}
			for _, change := range []struct{ patch, reason string }{
				{`{"spec":{"suspend":true}}`, "Suspended"},
				{`{"spec":{"cron":"61 * * * *"}}`, "InvalidCron"},
			} {
				s := newSchedule(w.namespace, name)
				if err := w.client.Patch(t.Context(), s, client.RawPatch("application/merge-patch+json", []byte(change.patch))); err != nil {
					t.Fatal(err)
				}
				w.await(func() error {
					if err := w.cache.Get(t.Context(), client.ObjectKeyFromObject(s), s); err != nil {
						return err
					}
					ready := meta.FindStatusCondition(s.Status.Conditions, "Ready")
					if ready == nil || ready.Status != metav1.ConditionFalse || ready.Reason != change.reason || ready.ObservedGeneration != s.Generation {
						return fmt.Errorf("after %s the condition is %+v", change.patch, ready)
					}
					return nil
				})
			}
		})
	}
}

// reconciled returns the reconciles with a result that the metric of controller-runtime has counted.
func reconciled(t *testing.T, result string) int {
	t.Helper()
	families, err := metrics.Registry.(prometheus.Gatherer).Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := 0.0
	for _, family := range families {
		if family.GetName() != "controller_runtime_reconcile_total" {
			continue
		}
		for _, m := range family.Metric {
			if slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetName() == "result" && l.GetValue() == result }) {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return int(n)
}

// lateness is the time by which the events of the Jobs are late in lateWatch.
const lateness = 5 * time.Second

// lateWatch creates Schedules while the events of their Jobs are late, and lets a minute pass.
func lateWatch(t *testing.T, newManager version, schedules int) (failed, wrong, requests int) {
	w := newWorld(t)
	process, sent := w.run(newManager)
	failed = -reconciled(t, "error")
	release := process.Hold("jobs.batch")
	defer release()
	names := w.create(schedules)
	w.await(func() error {
		if n := len(w.jobs()); n < schedules {
			return fmt.Errorf("%d of %d Schedules have a Job", n, schedules)
		}
		return nil
	})
	w.minute(1, names...)
	late := time.NewTimer(lateness)
	<-late.C
	release()
	w.await(w.seen)
	for _, jobs := range w.jobs() {
		if len(jobs) > 1 {
			wrong++
		}
	}
	return failed + reconciled(t, "error"), wrong, int(sent.Load())
}

// quietPeriod is the time without an event after which a create is done.
const quietPeriod = time.Second

// creates creates Schedules, one after the other, and returns the medians of what each caused.
func creates(t *testing.T, newManager version, n int) (reconciles, requests int) {
	w := newWorld(t)
	_, sent := w.run(newManager)
	var runs, counts []int
	for i := range n {
		ran, before := w.runs.Load(), sent.Load()
		if err := w.client.Create(t.Context(), newSchedule(w.namespace, fmt.Sprint("report-", i))); err != nil {
			t.Fatal(err)
		}
		w.await(w.seen)
		for quiet := false; !quiet; {
			select {
			case <-w.events:
			case <-time.After(quietPeriod):
				quiet = true
			}
		}
		runs, counts = append(runs, int(w.runs.Load()-ran)), append(counts, int(sent.Load()-before))
	}
	t.Logf("creates: %v reconciles, %v requests", runs, counts)
	slices.Sort(runs)
	slices.Sort(counts)
	return runs[n/2], counts[n/2]
}

// handOvers measures, n times, the time from the stop of the leading manager to the first reconcile
// of the next one.
func handOvers(t *testing.T, newManager version, n int) (median time.Duration) {
	w := newWorld(t)
	w.create(1)
	reconcile := make(chan int, 100)
	start := func(replica int) (stop func()) {
		options := w.options()
		options.LeaderElection, options.LeaderElectionID, options.LeaderElectionNamespace = true, "schedules", w.namespace
		options.LeaderElectionReleaseOnCancel = true
		mgr, err := newManager(testserver.Config(t), options, func() time.Time {
			select {
			case reconcile <- replica:
			default:
			}
			return w.clock.now()
		})
		if err != nil {
			t.Fatal(err)
		}
		standing := make(chan struct{})
		if err := mgr.Add(always(func(ctx context.Context) error {
			close(standing)
			<-ctx.Done()
			return nil
		})); err != nil {
			t.Fatal(err)
		}
		stop = w.start(mgr.Start)
		<-standing
		return stop
	}
	from := func(replica int) time.Time {
		late := time.After(time.Minute)
		for {
			select {
			case from := <-reconcile:
				if from == replica {
					return time.Now()
				}
			case <-late:
				t.Fatal("no reconcile of the next leader after a minute")
			}
		}
	}
	stop := start(0)
	from(0)
	var took []time.Duration
	for i := 1; i <= n; i++ {
		lease := w.lease()
		next := start(i)
		w.await(func() error { // so that the standby knows the Lease
			if w.lease() == lease {
				return errors.New("the Lease was not renewed")
			}
			return nil
		})
		began := time.Now()
		stop()
		took, stop = append(took, from(i).Sub(began)), next
	}
	t.Logf("hand-overs: %v", took)
	slices.Sort(took)
	return took[n/2].Round(time.Millisecond)
}

// lease returns the version of the Lease.
func (w *world) lease() string {
	var list coordinationv1.LeaseList
	if err := w.cache.List(w.t.Context(), &list); err != nil {
		w.t.Fatal(err)
	}
	version := ""
	for _, lease := range list.Items {
		version = lease.ResourceVersion
	}
	return version
}

// always is a Runnable of standbys too.
type always func(context.Context) error

func (f always) Start(ctx context.Context) error { return f(ctx) }

func (always) NeedLeaderElection() bool { return false }

var _ manager.LeaderElectionRunnable = always(nil)

// TestServerGains prints the figures of docs/in-your-manager.md. It runs alone, because the metric
// of failed reconciles is of the process.
func TestServerGains(t *testing.T) {
	type gains struct {
		failed, wrong, late, reconciles, requests int
		handOver                                  time.Duration
	}
	const schedules, n = 150, 5
	measure := func(name string, newManager version) (g gains) {
		t.Run(name, func(t *testing.T) {
			g.failed, g.wrong, g.late = lateWatch(t, newManager, schedules)
			g.reconciles, g.requests = creates(t, newManager, n)
			g.handOver = handOvers(t, newManager, n)
		})
		return g
	}
	b, a := measure("before", before.NewManager), measure("after", after.NewManager)
	t.Logf("%d Schedules, events of Jobs late by %v: failed reconciles %d, %d", schedules, lateness, b.failed, a.failed)
	t.Logf("Schedules with two Jobs at once: %d, %d", b.wrong, a.wrong)
	t.Logf("requests meanwhile: %d, %d", b.late, a.late)
	t.Logf("reconciles for one create, median of %d: %d, %d", n, b.reconciles, a.reconciles)
	t.Logf("requests for one create, median of %d: %d, %d", n, b.requests, a.requests)
	t.Logf("hand-over to the first reconcile, median of %d: %v, %v", n, b.handOver, a.handOver)
	if b.wrong == 0 || b.failed == 0 {
		t.Errorf("the version before is right: %+v", b)
	}
	if a.failed > 0 || a.wrong > 0 || a.late >= b.late || a.requests > b.requests || a.handOver >= b.handOver {
		t.Errorf("the version after gains nothing: %+v, before: %+v", a, b)
	}
}
