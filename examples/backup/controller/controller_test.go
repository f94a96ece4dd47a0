package controller_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applybatchv1 "k8s.io/client-go/applyconfigurations/batch/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/controllerkit/controllerkit"
	v1 "github.com/controllerkit/controllerkit/examples/backup/api/v1"
	"github.com/controllerkit/controllerkit/examples/backup/controller"
	"github.com/controllerkit/controllerkit/examples/backup/store"
	"github.com/controllerkit/controllerkit/external"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/operator"
)

// snapshots is a store.Service.
type snapshots struct {
	all   []store.Snapshot
	err   error         // of all calls
	late  time.Duration // if not 0, Create has no response, and the service works on for this time
	shown map[string]time.Time
}

func (s *snapshots) Create(_ context.Context, snapshot store.Snapshot) (store.Snapshot, error) {
	if s.err != nil {
		return store.Snapshot{}, s.err
	}
	snapshot.ID = fmt.Sprintf("snap-%d", len(s.all))
	s.all = append(s.all, snapshot)
	if s.late > 0 {
		s.shown = map[string]time.Time{snapshot.ID: time.Now().Add(s.late)}
		return store.Snapshot{}, context.DeadlineExceeded
	}
	return snapshot, nil
}

func (s *snapshots) List(_ context.Context, owner string) (owned []store.Snapshot, err error) {
	for _, snapshot := range s.all {
		if snapshot.Owner == owner && !time.Now().Before(s.shown[snapshot.ID]) {
			owned = append(owned, snapshot)
		}
	}
	return owned, s.err
}

// failing fails creations alone.
type failing struct {
	*snapshots
	err error
}

func (f *failing) Create(ctx context.Context, s store.Snapshot) (store.Snapshot, error) {
	if f.err != nil {
		return store.Snapshot{}, f.err
	}
	return f.snapshots.Create(ctx, s)
}

func (s *snapshots) Delete(_ context.Context, id string) error {
	if s.err != nil {
		return s.err
	}
	var kept []store.Snapshot
	for _, snapshot := range s.all {
		if snapshot.ID != id {
			kept = append(kept, snapshot)
		}
	}
	s.all = kept
	return nil
}

// fixture is a Reconciler with fakes.
type fixture struct {
	*controller.Reconciler
	store   *snapshots
	client  *fake.Clientset
	applied []string
	err     error // of Apply
}

func newFixture(jobs ...*batchv1.Job) *fixture {
	client := fake.NewClientset()
	f := &fixture{store: &snapshots{}, client: client}
	for _, job := range jobs {
		if err := client.Tracker().Add(job); err != nil {
			panic(err)
		}
	}
	f.Reconciler = &controller.Reconciler{
		Store:    f.store,
		Now:      func() time.Time { return begin },
		Settings: func(context.Context) (controller.Settings, error) { return controller.Settings{Retention: 1}, nil },
		Jobs: func(ctx context.Context, b *v1.Backup) (all []*batchv1.Job, err error) {
			list, err := client.BatchV1().Jobs(b.Namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, err
			}
			for i := range list.Items {
				all = append(all, &list.Items[i])
			}
			return all, nil
		},
		Apply: func(_ context.Context, children ...any) ([]operator.Child, error) {
			for _, child := range children {
				f.applied = append(f.applied, *child.(*applybatchv1.JobApplyConfiguration).Name)
			}
			return nil, f.err
		},
		JobClient: func(namespace string) controller.JobClient { return client.BatchV1().Jobs(namespace) },
	}
	return f
}

// ended returns a Job of the backup that was due in an hour.
func ended(b *v1.Backup, n int, failure string) *batchv1.Job {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
		Namespace: b.Namespace, Name: hour(b, n), UID: "job-uid", ResourceVersion: "1",
		Annotations: map[string]string{"backup.example.com/due": begin.Truncate(time.Hour).Add(time.Duration(n) * time.Hour).Format(time.RFC3339)},
	}}
	finishJob(job, failure)
	return job
}

func owned() *v1.Backup {
	b := newBackup("ns", "nightly", 0)
	b.UID, b.Generation = "backup-uid", 1
	return b
}

// TestReconcile calls the functions of the controller alone. The other tests run them in the operator
// on an API server.
func TestReconcile(t *testing.T) {
	b := owned()
	f := newFixture(ended(b, -1, ""))
	result, err := f.Reconcile(t.Context(), b)
	if err != nil || result.RequeueAfter != 30*time.Minute {
		t.Errorf("Reconcile() = %+v, %v, want the time until the next Job", result, err)
	}
	if diff := cmp.Diff([]string{hour(b, 0)}, f.applied); diff != "" {
		t.Errorf("Jobs (-want +got):\n%s", diff)
	}
	job, err := f.JobClient("ns").(interface {
		Get(ctx context.Context, name string, opts metav1.GetOptions) (*batchv1.Job, error)
	}).Get(t.Context(), hour(b, -1), metav1.GetOptions{})
	if err != nil || len(f.store.all) != 1 || external.ID(job, snapshotAnnotation) != f.store.all[0].ID || b.Status.Snapshots[0].ID != f.store.all[0].ID {
		t.Errorf("snapshots %v, Job %v, status %v, error %v, want one snapshot everywhere", f.store.all, job.Annotations, b.Status.Snapshots, err)
	}
	if ready := meta.FindStatusCondition(b.Status.Conditions, "Ready"); ready == nil || ready.Reason != "JobComplete" {
		t.Errorf("Ready is %+v, want JobComplete", ready)
	}

	// The Job of this hour is gone, and the status knows it.
	f.applied = nil
	if _, err := f.Reconcile(t.Context(), b); err != nil || len(f.applied) > 0 {
		t.Errorf("the second call applied %v, error %v, want no Job", f.applied, err)
	}
	b.DeletionTimestamp = new(metav1.Now())
	if err := f.Cleanup(t.Context(), b); err != nil || len(f.store.all) > 0 {
		t.Errorf("Cleanup() = %v, snapshots %v are left", err, f.store.all)
	}
}

// TestReconcileFailures: a failure of one step stops no other one, and no condition is set next to it.
func TestReconcileFailures(t *testing.T) {
	b := owned()
	f := newFixture(ended(b, -1, ""))
	f.store.err = errors.New("service is down")
	_, err := f.Reconcile(t.Context(), b)
	if !errors.Is(err, f.store.err) || len(f.applied) != 1 || b.Status.LastTime == nil || len(b.Status.Conditions) > 0 {
		t.Errorf("Reconcile() = %v with the Jobs %v and status %+v, want the error and the Job", err, f.applied, b.Status)
	}
	b.DeletionTimestamp = new(metav1.Now())
	if err := f.Cleanup(t.Context(), b); !errors.Is(err, f.store.err) {
		t.Errorf("Cleanup() = %v, want the error of the service", err)
	}

	b = owned()
	f = newFixture(ended(b, -1, ""))
	f.err = errors.New("quota")
	_, err = f.Reconcile(t.Context(), b)
	if !errors.Is(err, f.err) || !strings.Contains(err.Error(), "start the Job of 2100-01-01T00:00:00Z") || len(f.store.all) != 1 {
		t.Errorf("Reconcile() = %v with the snapshots %v, want the error and the snapshot", err, f.store.all)
	}
	if b.Status.LastTime != nil {
		t.Errorf("the last time is %v, want none before the Job exists", b.Status.LastTime)
	}
}

// TestFailingCreation: while the store rejects creations, each call returns an error, also those that only wait until the store
// shows what an earlier one made. So Ready is not true. The wait ends at the next Job at the latest.
func TestFailingCreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(ended(owned(), -1, ""))
		f.VisibleAfter = store.VisibleAfter
		service := &failing{f.store, errors.New("507")}
		f.Store = service
		end := time.Now().Add(2 * time.Minute)
		failures, waits := 0, 0
		for {
			b := owned()
			_, err := f.Reconcile(t.Context(), b)
			if err == nil {
				if len(f.store.all) != 1 || !meta.IsStatusConditionTrue(b.Status.Conditions, "Ready") {
					t.Errorf("snapshots %v, conditions %v without an error", f.store.all, b.Status.Conditions)
				}
				break
			}
			if len(b.Status.Conditions) > 0 {
				t.Errorf("the conditions are %v beside the error %v", b.Status.Conditions, err)
			}
			if wait := kube.Waits(err); wait > 0 {
				waits++
				time.Sleep(wait)
			} else {
				failures++
				time.Sleep(5 * time.Millisecond)
			}
			if !time.Now().Before(end) {
				service.err = nil
			}
		}
		if late := time.Since(end); failures < 4 || waits < 4 || late > store.VisibleAfter {
			t.Errorf("%d failures, %d waits, and the snapshot %v after the end", failures, waits, late)
		}

		f = newFixture(ended(owned(), -1, ""))
		f.VisibleAfter = 50 * time.Minute
		f.Store = &failing{f.store, errors.New("507")}
		_, _ = f.Reconcile(t.Context(), owned())
		if _, err := f.Reconcile(t.Context(), owned()); kube.Waits(err) != 30*time.Minute {
			t.Errorf("error %v waits %v, want the 30m until the next Job", err, kube.Waits(err))
		}
	})
}

// TestForeignSnapshots: a proxy drops the query of a list, so the response has the snapshots of all backups. None is deleted.
func TestForeignSnapshots(t *testing.T) {
	service := new(store.Server)
	deletions := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			deletions++
		}
		r.URL.RawQuery = ""
		service.ServeHTTP(w, r)
	}))
	defer server.Close()
	client, err := store.NewClient(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"a", "b", "c"} {
		if _, err := client.Create(t.Context(), store.Snapshot{Owner: "other-uid", Token: token, Time: begin}); err != nil {
			t.Fatal(err)
		}
	}
	b := owned()
	f := newFixture()
	f.Store = client
	if _, err := f.Reconcile(t.Context(), b); err == nil || !strings.Contains(err.Error(), `of the owner "other-uid"`) {
		t.Errorf("Reconcile() = %v, want an error with the owner", err)
	}
	b.DeletionTimestamp = new(metav1.Now())
	if err := f.Cleanup(t.Context(), b); err == nil || !strings.Contains(err.Error(), `of the owner "other-uid"`) {
		t.Errorf("Cleanup() = %v, want an error with the owner", err)
	}
	if deletions > 0 || len(service.Snapshots("")) != 3 {
		t.Errorf("%d deletions, and the snapshots %v are left", deletions, service.Snapshots(""))
	}
}

// TestWrongClock: a time far ahead, in the status or on a Job, keeps no Job from its time, and is not that of
// the newest Job or snapshot.
func TestWrongClock(t *testing.T) {
	b := owned()
	b.Status.LastTime = &metav1.Time{Time: begin.AddDate(1, 0, 0)}
	ahead := ended(b, 24, "")
	ahead.CreationTimestamp = metav1.Time{Time: begin.Add(-3 * time.Hour)}
	f := newFixture(ahead)
	if _, err := f.Reconcile(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if due := begin.Truncate(time.Hour); len(f.applied) != 1 || f.applied[0] != hour(b, 0) || !b.Status.LastTime.Time.Equal(due) {
		t.Errorf("the Jobs %v were applied, and the last time is %v; want the Job of %v", f.applied, b.Status.LastTime, due)
	}

	f = newFixture(ahead, ended(b, -1, ""), ended(b, 0, "quota"))
	if _, err := f.Reconcile(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if len(f.store.all) != 1 || !f.store.all[0].Time.Equal(begin.Truncate(time.Hour).Add(-time.Hour)) {
		t.Errorf("the snapshots are %v, want that of the last hour", f.store.all)
	}
	if ready := meta.FindStatusCondition(b.Status.Conditions, "Ready"); ready == nil || ready.Reason != "JobFailed" {
		t.Errorf("Ready is %+v, want JobFailed", ready)
	}

	f.store.all = append(f.store.all, store.Snapshot{ID: "wrong", Owner: string(b.UID), Time: begin.AddDate(1, 0, 0)})
	if _, err := f.Reconcile(t.Context(), b); err == nil || !strings.Contains(err.Error(), "snapshot wrong is ahead, 2101-01-01T00:30:00Z: set the clock") || len(f.store.all) != 2 {
		t.Errorf("Reconcile() = %v with the snapshots %v, want an error and both", err, f.store.all)
	}
}

// TestCleanupOfACreationWithoutResponse: the service works on after the backup is deleted.
func TestCleanupOfACreationWithoutResponse(t *testing.T) {
	for _, tt := range []struct {
		name    string
		deleted time.Duration // since the deletion of the backup, at the Create of a stale process
		gone    bool          // the garbage collector has deleted the Job before the cleanup
		orphan  bool          // the Job stays
	}{
		{name: "the Job exists"},
		{name: "the Job exists, the deletion is old", deleted: time.Hour},
		{name: "the Job is gone", gone: true},
		{name: "the Job stays", orphan: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := owned()
				f := newFixture(ended(b, -1, ""))
				f.VisibleAfter, f.store.late = store.VisibleAfter, 20*time.Second
				if _, err := f.Reconcile(t.Context(), b); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("Reconcile() = %v, want the error of Create", err)
				}
				b.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(-tt.deleted)}
				want := 0
				if tt.orphan {
					b.Finalizers, want = []string{metav1.FinalizerOrphanDependents}, 1
				}
				if tt.gone {
					if err := f.client.BatchV1().Jobs(b.Namespace).Delete(t.Context(), hour(b, -1), metav1.DeleteOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				begun := time.Now()
				for err := f.Cleanup(t.Context(), b); err != nil; err = f.Cleanup(t.Context(), b) {
					var waiting controllerkit.WaitingError
					if !errors.As(err, &waiting) {
						t.Fatalf("Cleanup() = %v, want a WaitingError", err)
					}
					time.Sleep(waiting.Waits())
				}
				if waited := time.Since(begun); waited > store.VisibleAfter {
					t.Errorf("Cleanup waited for %v, want at most %v", waited, store.VisibleAfter)
				}
				if left, err := f.Jobs(t.Context(), b); err != nil || len(left) != want || len(f.store.all) > 0 {
					t.Errorf("%d Jobs and the snapshots %v are left, error %v, want %d Jobs", len(left), f.store.all, err, want)
				}
			})
		})
	}
}
