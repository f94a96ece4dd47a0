package recipes_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applybatchv1 "k8s.io/client-go/applyconfigurations/batch/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// A schedule starts a Job for a Widget at each multiple of spec.every.
type schedule struct {
	apply func(ctx context.Context, children ...any) ([]operator.Child, error)
}

func (s *schedule) register(op *operator.Operator) {
	c := operator.Kind(op, widgetVersion.WithResource("widgets"), operator.Reconciler[*Widget]{Reconcile: s.reconcile})
	operator.Children(c, batchv1.SchemeGroupVersion.WithResource("jobs"), applybatchv1.ExtractJob)
	s.apply = c.Apply
}

func (s *schedule) reconcile(ctx context.Context, w *Widget) (reconcile.Result, error) {
	every := w.Spec.Every.Duration
	if every < time.Minute {
		return reconcile.Result{}, fmt.Errorf("spec.every is %v, want at least 1m: %w", every, reconcile.ErrTerminal)
	}
	due := time.Now().Truncate(every) // the latest one: earlier runs that were missed are skipped
	last := w.CreationTimestamp.Time
	if w.Status.LastRun != nil {
		last = w.Status.LastRun.Time
	}
	if last.After(due.Add(every)) { // the clock of an earlier leader was wrong: else nothing runs until that time
		last = w.CreationTimestamp.Time
	}
	if due.After(last) {
		if _, err := s.apply(ctx, newJob(w, due)); err != nil {
			return reconcile.Result{}, err
		}
		w.Status.LastRun = &metav1.Time{Time: due}
	}
	return reconcile.Result{RequeueAfter: max(time.Until(due.Add(every)), time.Second)}, nil
}

// newJob returns the Job of a time. Two calls for one time make one Job, because it has one name.
func newJob(w *Widget, due time.Time) *applybatchv1.JobApplyConfiguration {
	pod := applycorev1.PodSpec().WithRestartPolicy("Never").
		WithContainers(applycorev1.Container().WithName("run").WithImage("example.com/backup:1"))
	return applybatchv1.Job(fmt.Sprintf("%s-%d", w.Name, due.Unix()/60), w.Namespace).
		WithSpec(applybatchv1.JobSpec().WithTTLSecondsAfterFinished(24 * 60 * 60).
			WithTemplate(applycorev1.PodTemplateSpec().WithSpec(pod)))
}

// TestSchedule: a day has a Job each hour. After an outage of some hours the latest one alone is made up for.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &Widget{ObjectMeta: metav1.ObjectMeta{Name: "w", CreationTimestamp: metav1.Now()}, Spec: WidgetSpec{Every: metav1.Duration{Duration: time.Hour}}}
		var runs []time.Time
		s := &schedule{apply: func(_ context.Context, children ...any) ([]operator.Child, error) {
			job := children[0].(*applybatchv1.JobApplyConfiguration)
			if want := fmt.Sprintf("w-%d", time.Now().Truncate(time.Hour).Unix()/60); *job.Name != want {
				t.Errorf("the Job of %v is %s, want %s", time.Now(), *job.Name, want)
			}
			runs = append(runs, time.Now())
			return nil, nil
		}}
		day := func() {
			t.Helper()
			c := &reconcile.Controller[types.NamespacedName]{
				Name: "schedule", Queue: queue.New(queue.Config[types.NamespacedName]{Name: "schedule"}),
				Reconcile: func(ctx context.Context, _ types.NamespacedName) (reconcile.Result, error) {
					return s.reconcile(ctx, w)
				},
			}
			c.Queue.Add(types.NamespacedName{Name: "w"})
			ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour-time.Minute)
			defer cancel()
			if err := c.Run(ctx); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(30 * time.Minute) // of the bubble: a Widget is not created on the hour
		day()
		if len(runs) != 24 {
			t.Errorf("a day had the runs %v, want 24", runs)
		}
		runs = nil
		time.Sleep(5 * time.Hour)
		day()
		if len(runs) != 25 { // one is for those that were missed
			t.Errorf("a day after an outage had the runs %v, want 25", runs)
		}
		runs = nil
		w.Status.LastRun = &metav1.Time{Time: time.Now().AddDate(1, 0, 0)} // of a leader with a wrong clock
		day()
		if len(runs) != 25 { // the Job of the first one exists
			t.Errorf("a day after a wrong clock had the runs %v, want 25", runs)
		}
	})
}

// testSchedule: after three missed runs and a crash between the Job and the status, there is one Job.
func testSchedule(t *testing.T) {
	namespace := testserver.Namespace(t)
	widgets := newWidgets(t, testserver.Config(t)).Namespace(namespace)
	w := &Widget{ObjectMeta: metav1.ObjectMeta{Name: "w"}, Spec: WidgetSpec{Every: metav1.Duration{Duration: 1000 * time.Hour}}}
	if _, err := widgets.Create(t.Context(), w, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	missed := time.Now().Add(-3500 * time.Hour).UTC().Format(time.RFC3339)
	patch(t, widgets, "w", `{"status":{"lastRun":"`+missed+`"}}`, "status")

	process := func(r *requests) (stop func()) {
		t.Helper()
		op, err := operator.New(r.wrap(testserver.Config(t)), operator.Options{Name: "schedule", Namespace: namespace})
		if err != nil {
			t.Fatal(err)
		}
		(&schedule{}).register(op)
		stop, _ = start(t, op)
		return stop
	}
	crashed := make(chan struct{}, 100)
	var jobs atomic.Int64
	stop := process(&requests{during: func(req *http.Request) error {
		switch {
		case req.Method == http.MethodPatch && strings.Contains(req.URL.Path, "/jobs/"):
			jobs.Add(1)
		case req.Method == http.MethodPatch && strings.HasSuffix(req.URL.Path, "/widgets/w/status"):
			crashed <- struct{}{}
			return errCrash
		}
		return nil
	}})
	receive(t, crashed)
	stop()
	if jobs.Load() == 0 {
		t.Error("the first process has made no Job")
	}
	_ = process(&requests{})
	await(t, widgets, "w", func(w *Widget) bool {
		return w.Status.LastRun != nil && time.Since(w.Status.LastRun.Time) < 1001*time.Hour
	})
	await(t, widgets, "w", func(w *Widget) bool { return strings.HasPrefix(ready(w), "True") }) // although the Job has not begun
	list, err := kubernetes.NewForConfigOrDie(testserver.Config(t)).BatchV1().Jobs(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("there are the Jobs %v, %v; want one", list, err)
	}
}
