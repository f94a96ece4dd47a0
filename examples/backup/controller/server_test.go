package controller_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/crd"
	v1 "github.com/controllerkit/controllerkit/examples/backup/api/v1"
	"github.com/controllerkit/controllerkit/examples/backup/controller"
	"github.com/controllerkit/controllerkit/examples/backup/store"
	"github.com/controllerkit/controllerkit/internal/lab"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
)

// limit bounds each wait. It only determines how long a failing test runs.
const limit = 2 * time.Minute

// begin is after the creation of each Backup, and half an hour after the first time of an hourly one.
var begin = time.Date(2100, 1, 1, 0, 30, 0, 0, time.UTC)

func TestMain(m *testing.M) { testserver.Main(m) }

// clock is the time of an operator.
type clock struct{ nanoseconds atomic.Int64 }

func (c *clock) now() time.Time               { return begin.Add(time.Duration(c.nanoseconds.Load())) }
func (c *clock) advance(passed time.Duration) { c.nanoseconds.Add(int64(passed)) }

// world is an operator of backups with its settings, its store and its clock.
type world struct {
	lab.Signal // of each change in the cluster, and of each line of log
	t          *testing.T
	admin      *rest.Config
	kube       kubernetes.Interface
	backups    *crd.Client[*v1.Backup]
	system     string // the namespace of the settings
	namespaces []string
	service    *store.Server
	handler    func(http.Handler) http.Handler // wraps the service; set it before start
	level      *slog.LevelVar
	clock      clock
	logs       testlog.Logs
}

var installed sync.Mutex // of the CustomResourceDefinition, which two tests cannot install at once

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		t: t, admin: testserver.Config(t), system: testserver.Namespace(t), namespaces: []string{testserver.Namespace(t), testserver.Namespace(t)},
		service: new(store.Server), handler: func(h http.Handler) http.Handler { return h }, level: new(slog.LevelVar), logs: testlog.New(),
	}
	w.logs.Hook = func(string) { w.Notify() }
	installed.Lock()
	defer installed.Unlock()
	if err := lab.Install(t.Context(), w.admin, os.DirFS("../config"), "crd.yaml"); err != nil {
		t.Fatal(err)
	}
	w.kube = kubernetes.NewForConfigOrDie(w.admin)
	var err error
	if w.backups, err = crd.New[*v1.Backup](w.admin, v1.GroupVersion.WithKind("Backup"), "backups"); err != nil {
		t.Fatal(err)
	}

	// Conditions read the API server, and these informers say when to read again.
	factory := informers.NewSharedInformerFactory(w.kube, 0)
	source := w.backups.Informer(0, nil).Informer()
	for _, informer := range []cache.SharedIndexInformer{source, factory.Batch().V1().Jobs().Informer(), factory.Events().V1().Events().Informer()} {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { w.Notify() }, UpdateFunc: func(any, any) { w.Notify() }, DeleteFunc: func(any) { w.Notify() },
		}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context())) // which ends before Cleanup
	var running sync.WaitGroup
	running.Go(func() { source.RunWithContext(ctx) })
	factory.StartWithContext(ctx)
	t.Cleanup(func() {
		stop()
		running.Wait()
		factory.Shutdown()
	})
	return w
}

// operator returns the operator with the rights of a configuration.
func (w *world) operator(config *rest.Config, options operator.Options) *operator.Operator {
	w.t.Helper()
	server := httptest.NewServer(w.handler(w.service))
	w.t.Cleanup(server.Close)
	client, err := store.NewClient(server.URL)
	if err != nil {
		w.t.Fatal(err)
	}
	options.Name = name
	op, err := controller.New(config, controller.Options{
		Operator: options, Settings: types.NamespacedName{Namespace: w.system, Name: settingsName},
		Level: w.level, Store: client, Now: w.clock.now,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return op
}

// start runs the operator until the test ends or stop is called.
func (w *world) start(config *rest.Config) (stop func()) {
	w.t.Helper()
	op := w.operator(config, operator.Options{})
	ctx, cancel := context.WithCancel(w.logs.Context(w.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- op.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("Run() = %v", err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

func (w *world) await(cond func() error) {
	w.t.Helper()
	if err := w.Await(w.t.Context(), limit, cond); err != nil {
		w.t.Fatal(err)
	}
}

// set writes the settings.
func (w *world) set(data map[string]string) {
	w.t.Helper()
	configMaps := w.kube.CoreV1().ConfigMaps(w.system)
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: settingsName}, Data: data}
	_, err := configMaps.Update(w.t.Context(), settings, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = configMaps.Create(w.t.Context(), settings, metav1.CreateOptions{})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// create creates an hourly backup.
func (w *world) create(namespace, backup string, retention int32) *v1.Backup {
	w.t.Helper()
	b, err := w.backups.Namespace(namespace).Create(w.t.Context(), newBackup(namespace, backup, retention), metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

func newBackup(namespace, backup string, retention int32) *v1.Backup {
	return &v1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: backup},
		Spec:       v1.BackupSpec{Interval: metav1.Duration{Duration: time.Hour}, Retention: retention, Claim: "data", Image: "example.com/copy:1"},
	}
}

// pass lets time pass, and wakes a backup as its timer would.
func (w *world) pass(b *v1.Backup, time time.Duration) {
	w.t.Helper()
	w.clock.advance(time)
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"woken":%q}}}`, w.clock.now())
	if _, err := w.backups.Namespace(b.Namespace).Patch(w.t.Context(), b.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// hour returns the name of a backup's Job of the hour.
func hour(b *v1.Backup, n int) string {
	return fmt.Sprintf("%s-%d", b.Name, begin.Truncate(time.Hour).Add(time.Duration(n)*time.Hour).Unix())
}

// awaitJobs waits until the backup has the Jobs of these hours and no others.
func (w *world) awaitJobs(b *v1.Backup, hours ...int) {
	w.t.Helper()
	var want []string
	for _, n := range hours {
		want = append(want, hour(b, n))
	}
	w.await(func() error {
		list, err := w.kube.BatchV1().Jobs(b.Namespace).List(w.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var got []string
		for _, job := range list.Items {
			if metav1.IsControlledBy(&job, b) && job.DeletionTimestamp == nil {
				got = append(got, job.Name)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("Jobs %q, want %q", got, want)
		}
		return nil
	})
}

// finish does what the controller of Jobs does at the end of a Job.
func (w *world) finish(b *v1.Backup, n int, failure string) {
	w.t.Helper()
	jobs := w.kube.BatchV1().Jobs(b.Namespace)
	job, err := jobs.Get(w.t.Context(), hour(b, n), metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	finishJob(job, failure)
	if _, err := jobs.UpdateStatus(w.t.Context(), job, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// finishJob sets the status that a Job has in the end: failed if failure is not empty.
func finishJob(job *batchv1.Job, failure string) {
	now := metav1.Now()
	job.Status.StartTime = &now
	first, last := batchv1.JobSuccessCriteriaMet, batchv1.JobComplete
	if failure != "" {
		first, last = batchv1.JobFailureTarget, batchv1.JobFailed
		job.Status.Failed = 1
	} else {
		job.Status.CompletionTime, job.Status.Succeeded = &now, 1
	}
	for _, condition := range []batchv1.JobConditionType{first, last} {
		job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: condition, Status: corev1.ConditionTrue, Reason: "Test", Message: failure, LastTransitionTime: now})
	}
}

// awaitReady waits until the condition Ready has a reason, and the status the snapshots of these hours.
func (w *world) awaitReady(b *v1.Backup, reason string, hours ...int) *v1.Backup {
	w.t.Helper()
	var got *v1.Backup
	w.await(func() (err error) {
		if got, err = w.backups.Namespace(b.Namespace).Get(w.t.Context(), b.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		ready := meta.FindStatusCondition(got.Status.Conditions, "Ready")
		if ready == nil || ready.Reason != reason || (ready.Status == metav1.ConditionTrue) == (reason == "JobFailed") {
			return fmt.Errorf("condition Ready is %+v, want the reason %s", ready, reason)
		}
		var times, stored []int
		for _, s := range got.Status.Snapshots {
			times = append(times, int(s.Time.Sub(begin.Truncate(time.Hour)).Hours()))
		}
		for _, s := range w.service.Snapshots(string(b.UID)) {
			stored = append(stored, int(s.Time.Sub(begin.Truncate(time.Hour)).Hours()))
		}
		slices.Reverse(stored)
		if !slices.Equal(times, hours) || !slices.Equal(stored, hours) {
			return fmt.Errorf("the status has the snapshots %v, the store %v, want %v", times, stored, hours)
		}
		return nil
	})
	return got
}

// delete deletes a backup and waits until it is gone.
func (w *world) delete(b *v1.Backup) {
	w.t.Helper()
	backups := w.backups.Namespace(b.Namespace)
	if err := backups.Delete(w.t.Context(), b.Name, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.await(func() error {
		if _, err := backups.Get(w.t.Context(), b.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the backup exists, error %v", err)
		}
		return nil
	})
}

// TestServerLife runs the operator with the rights in config/rbac.yaml: a Job for each interval, the
// newest of the missed ones, a failure, the retention, and the deletion.
func TestServerLife(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := lab.Install(t.Context(), w.admin, os.DirFS("../config"), "rbac.yaml"); err != nil {
		t.Fatal(err)
	}
	w.system = systemNamespace
	w.set(map[string]string{"namespaces": w.namespaces[0]})
	limited := rest.CopyConfig(w.admin)
	limited.Impersonate.UserName = "system:serviceaccount:" + systemNamespace + ":" + name
	stop := w.start(limited)

	b := w.create(w.namespaces[0], "nightly", 2)
	w.awaitJobs(b, 0)
	w.awaitReady(b, "Scheduled")
	w.finish(b, 0, "")
	got := w.awaitReady(b, "JobComplete", 0)
	if next := begin.Add(30 * time.Minute); !got.Status.NextTime.Time.Equal(next) || !got.Status.LastTime.Time.Equal(next.Add(-time.Hour)) {
		t.Errorf("last time %v, next time %v, want the hours around %v", got.Status.LastTime, got.Status.NextTime, begin)
	}

	// A failed Job is in the condition, and the next interval is tried.
	w.pass(b, time.Hour)
	w.awaitJobs(b, 0, 1)
	w.finish(b, 1, "no space left")
	got = w.awaitReady(b, "JobFailed", 0)
	if message := meta.FindStatusCondition(got.Status.Conditions, "Ready").Message; !strings.Contains(message, hour(b, 1)+" failed: no space left") {
		t.Errorf("the message is %q, want the Job and its message", message)
	}
	w.pass(b, time.Hour)
	w.awaitJobs(b, 0, 1, 2)
	w.finish(b, 2, "")
	w.awaitReady(b, "JobComplete", 2, 0)

	// After a downtime of three intervals only the newest one is made up for, and the retention
	// deletes the oldest Job and its snapshot.
	stop()
	w.clock.advance(3 * time.Hour)
	w.start(limited)
	w.awaitJobs(b, 0, 1, 2, 5)
	w.finish(b, 5, "")
	w.awaitReady(b, "JobComplete", 5, 2)
	w.awaitJobs(b, 1, 2, 5)

	// A deleted Job of the present interval does not come back.
	if err := w.kube.BatchV1().Jobs(b.Namespace).Delete(t.Context(), hour(b, 5), metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}); err != nil {
		t.Fatal(err)
	}
	w.pass(b, time.Hour)
	w.awaitJobs(b, 1, 2, 6)

	// The cleanup waits for the store.
	w.service.Fail(http.StatusServiceUnavailable)
	if err := w.backups.Namespace(b.Namespace).Delete(t.Context(), b.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.await(func() error {
		for _, line := range w.logs.Find("Reconcile failed") {
			if strings.Contains(line.Err.Error(), "503") {
				return nil
			}
		}
		return errors.New("no failure is logged")
	})
	if _, err := w.backups.Namespace(b.Namespace).Get(t.Context(), b.Name, metav1.GetOptions{}); err != nil || len(w.service.Snapshots("")) != 2 {
		t.Errorf("snapshots = %v, error %v, want the backup and its snapshots kept while the store fails", w.service.Snapshots(""), err)
	}
	w.service.Fail(0)
	w.await(func() error {
		if _, err := w.backups.Namespace(b.Namespace).Get(t.Context(), b.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the backup exists, error %v", err)
		}
		return nil
	})
	if left := w.service.Snapshots(""); len(left) > 0 {
		t.Errorf("snapshots %v are left", left)
	}
}

// TestServerNamespaces: the operator follows the namespaces of the settings while it runs.
func TestServerNamespaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, second := w.namespaces[0], w.namespaces[1]
	w.set(map[string]string{"namespaces": first})
	w.start(w.admin)
	a, b := w.create(first, "a", 1), w.create(second, "b", 1)
	w.awaitJobs(a, 0)
	w.set(map[string]string{"namespaces": first + " " + second})
	w.awaitJobs(b, 0)
	w.set(map[string]string{"namespaces": second})
	w.await(func() error { // a call that the settings woke before reads the clock
		for _, line := range w.logs.Find("Reconciled") {
			if fmt.Sprint(line.Values["class"]) == "success" && fmt.Sprint(line.Values["key"]) == first+"/a" {
				return nil
			}
		}
		return errors.New("no call has found the Backup absent")
	})
	w.pass(a, time.Hour)
	w.pass(b, 0)
	w.awaitJobs(b, 0, 1)
	w.awaitJobs(a, 0) // which is not watched any more

	// When its namespace comes back, the newest interval is made up for.
	w.pass(a, time.Hour)
	w.set(map[string]string{"namespaces": first + " " + second})
	w.awaitJobs(a, 0, 2)
	w.delete(a)
}

// TestServerSettings changes the settings of a running operator.
func TestServerSettings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	namespaces := w.namespaces[0]
	// Without valid settings the operator does not start, and the reason is named.
	w.set(map[string]string{"namespaces": namespaces, "workers": "many"})
	op := w.operator(w.admin, operator.Options{})
	op.Informers.Timeout = 3 * time.Second
	if err := op.Run(w.logs.Context(t.Context())); err == nil || !strings.Contains(err.Error(), `workers is "many": use a number from 1 to 32`) {
		t.Errorf("Run with invalid settings = %v, want the setting", err)
	}

	// The retention of the settings is for backups without one.
	w.set(map[string]string{"namespaces": namespaces, "retention": "2"})
	w.start(w.admin)
	b := w.create(namespaces, "plain", 0)
	var all []int
	for n := range 2 {
		w.awaitJobs(b, append(all, n)...)
		all = append(all, n)
		w.finish(b, n, "")
		w.pass(b, time.Hour)
	}
	w.awaitJobs(b, 0, 1, 2)
	w.awaitReady(b, "JobComplete", 1, 0)
	w.set(map[string]string{"namespaces": namespaces, "retention": "1", "logLevel": "DEBUG"})
	w.awaitReady(b, "JobComplete", 1)
	w.awaitJobs(b, 1, 2)
	if w.level.Level() != slog.LevelDebug {
		t.Errorf("the level is %v, want DEBUG", w.level.Level())
	}

	// A bad setting is named in the log and in an Event, and nothing of it takes effect.
	w.set(map[string]string{"namespaces": namespaces, "retention": "0", "logLevel": "LOUD", "worker": "1"})
	const named = `logLevel is "LOUD": use DEBUG, INFO, WARN or ERROR`
	w.await(func() error {
		events, err := w.kube.EventsV1().Events(w.system).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, event := range events.Items {
			if event.Reason == "InvalidSettings" && strings.Contains(event.Note, named) && strings.Contains(event.Note, "retention is") && strings.Contains(event.Note, "worker is") {
				return nil
			}
		}
		return fmt.Errorf("no Event names the settings: %v", events.Items)
	})
	w.await(func() error {
		for _, line := range w.logs.Find("The selection stays as it was") {
			if line.Err != nil && strings.Contains(line.Err.Error(), named) {
				return nil
			}
		}
		return errors.New("no line names the setting")
	})
	w.finish(b, 2, "")
	w.awaitReady(b, "JobComplete", 2)
	if w.level.Level() != slog.LevelDebug {
		t.Errorf("the level is %v, want that of the last valid settings", w.level.Level())
	}

	// So it is if the settings are deleted, and the next valid ones take effect.
	if err := w.kube.CoreV1().ConfigMaps(w.system).Delete(t.Context(), settingsName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.pass(b, time.Hour)
	w.awaitJobs(b, 2, 3)
	w.set(map[string]string{"namespaces": namespaces, "retention": "2", "logLevel": "ERROR"})
	w.await(func() error {
		if w.level.Level() != slog.LevelError {
			return fmt.Errorf("the level is %v, want ERROR", w.level.Level())
		}
		return nil
	})
}

// TestServerWorkers: the setting workers bounds how many backups are reconciled at once.
func TestServerWorkers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var mu sync.Mutex // guards the variables below
	inside, most := 0, 0
	proceed := make(chan struct{})
	w.handler = func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			mu.Lock()
			inside++
			most = max(most, inside)
			blocked := proceed
			mu.Unlock()
			w.Notify()
			select {
			case <-blocked:
			case <-r.Context().Done():
			}
			mu.Lock()
			inside--
			mu.Unlock()
			h.ServeHTTP(rw, r)
		})
	}
	counted := func(want int) {
		t.Helper()
		w.await(func() error {
			mu.Lock()
			defer mu.Unlock()
			if inside != want || most > want {
				return fmt.Errorf("%d calls at once, %d at most, want %d", inside, most, want)
			}
			return nil
		})
	}
	w.set(map[string]string{"namespaces": w.namespaces[0], "workers": "1"})
	var all []*v1.Backup
	for n := range 5 {
		all = append(all, w.create(w.namespaces[0], fmt.Sprintf("b%d", n), 1))
	}
	w.start(w.admin)
	counted(1)
	w.set(map[string]string{"namespaces": w.namespaces[0], "workers": "3"})
	counted(3)

	// A lower limit lets the calls finish.
	w.set(map[string]string{"namespaces": w.namespaces[0], "workers": "2", "logLevel": "WARN"})
	w.await(func() error {
		if w.level.Level() != slog.LevelWarn {
			return errors.New("the settings are not in effect")
		}
		return nil
	})
	mu.Lock()
	most = 0
	close(proceed)
	proceed = make(chan struct{})
	mu.Unlock()
	counted(2)
	mu.Lock()
	close(proceed)
	mu.Unlock()
	for _, b := range all {
		w.awaitJobs(b, 0)
	}
}
