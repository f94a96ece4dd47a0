package controller_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/crd"
	v1 "github.com/controllerkit/controllerkit/examples/backup/api/v1"
	"github.com/controllerkit/controllerkit/examples/backup/controller"
	"github.com/controllerkit/controllerkit/examples/backup/store"
	"github.com/controllerkit/controllerkit/external"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/watcher"
)

const (
	// hourAnnotation of the backup is the hour of the run's clock, for Converged.
	hourAnnotation     = "test.example.com/hour"
	snapshotAnnotation = "backup.example.com/snapshot"
	exploredRetention  = 2

	// The service works for exploredWork on a creation whose response is lost.
	exploredWork, exploredVisibleAfter = 3 * time.Second, 8 * time.Second
)

// clocks are the clocks of the runs, by namespace. They are outside of the processes, which lose
// their memory.
type clocks struct{ byNamespace sync.Map }

func (c *clocks) of(namespace string) *clock {
	found, _ := c.byNamespace.LoadOrStore(namespace, &clock{})
	return found.(*clock)
}

// TestExplore runs the life of a backup many times, each time with a fault at another moment.
// By default it runs plans about the requests that must have no second effect. With EXPLORE_BUDGET, for
// example 10m, it runs plans with any fault at any request until that time has passed.
func TestExplore(t *testing.T) {
	t.Parallel()
	options := controllertest.Options{Config: testserver.Config(t), Parallel: 10, ConvergeTimeout: 90 * time.Second, KeepNamespaces: true}
	const (
		create    = "external create [uid backups.backup.example.com]"
		list      = "external list [uid backups.backup.example.com]"
		finalizer = "patch backups.backup.example.com nightly metadata.finalizers#1"
		intent    = "patch jobs.batch nightly-4102444800 metadata.annotations#1"
		id        = "patch jobs.batch nightly-4102444800 metadata.annotations#2"
		fields    = " metadata.annotations,metadata.labels,metadata.ownerReferences,spec.activeDeadlineSeconds,spec.backoffLimit,spec.template#1"
		first     = "apply jobs.batch nightly-4102444800" + fields
		second    = "apply jobs.batch nightly-4102448400" + fields
	)
	options.Plans = []string{
		"crash-after@" + finalizer, "user-delete(backups.backup.example.com/nightly)@" + finalizer,
		"crash-after@" + first, "lost-response@" + first, "hold(jobs.batch)@" + second,
		"crash-after@" + intent, "crash-after@" + create + "#1", "lost-response@" + create + "#2", "crash-before@" + id,
		"lost-response@" + create + "#1 + user-delete(backups.backup.example.com/nightly)@" + list + "#1",
	}
	if text := os.Getenv("EXPLORE_BUDGET"); text != "" {
		var err error
		if options.Budget, err = time.ParseDuration(text); err != nil {
			t.Fatalf("EXPLORE_BUDGET: %v", err)
		}
		options.Plans, options.Parallel = nil, 24
	}
	var all clocks
	var works sync.Map
	controllertest.Explore(t, controllertest.Scenario{
		Name: "backup",
		CRDs: []string{"../config/crd.yaml"},
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			op, err := controller.New(cfg, controller.Options{
				Operator: operator.Options{Name: name}, Settings: types.NamespacedName{Namespace: env.Namespace, Name: settingsName},
				Level: new(slog.LevelVar), Store: cloudStore{env.Cloud, &works}, VisibleAfter: exploredVisibleAfter, Now: all.of(env.Namespace).now,
			})
			if err != nil {
				return err
			}
			return op.Run(ctx)
		},
		World: finishJobs,
		Script: []controllertest.Step{
			step("create", func(ctx context.Context, _ kubernetes.Interface, backups *crd.Client[*v1.Backup], env *controllertest.Env) error {
				b := newBackup(env.Namespace, "nightly", exploredRetention)
				b.Annotations = map[string]string{hourAnnotation: "0"}
				_, err := backups.Create(ctx, b, metav1.CreateOptions{})
				return err
			}),
			all.hourPasses(1), // its Job fails
			all.hourPasses(2),
			all.hourPasses(3), // the retention deletes
			step("delete", func(ctx context.Context, _ kubernetes.Interface, backups *crd.Client[*v1.Backup], _ *controllertest.Env) error {
				return backups.Delete(ctx, "nightly", metav1.DeleteOptions{})
			}),
		},
		Converged: asScheduled,
		Invariants: []controllertest.Invariant{
			{Name: "an interval has one Job", Check: oneJob},
			{Name: "a Job has one snapshot", Check: oneSnapshot},
			{Name: "each snapshot has a backup with the finalizer", Check: snapshotHeld},
			{Name: "the newest recorded snapshot exists", Check: newestKept},
		},
		Mask: func(obj *unstructured.Unstructured) { // the ids and tokens differ
			annotations := obj.GetAnnotations()
			delete(annotations, snapshotAnnotation)
			obj.SetAnnotations(annotations)
			snapshots, _, _ := unstructured.NestedSlice(obj.Object, "status", "snapshots")
			for _, s := range snapshots {
				delete(s.(map[string]any), "id")
			}
			if len(snapshots) > 0 {
				if err := unstructured.SetNestedSlice(obj.Object, snapshots, "status", "snapshots"); err != nil {
					t.Errorf("mask: %v", err)
				}
			}
		},
		UserObjects: []string{"backups.backup.example.com/nightly"},
	}, options)
}

func step(name string, do func(context.Context, kubernetes.Interface, *crd.Client[*v1.Backup], *controllertest.Env) error) controllertest.Step {
	return controllertest.Step{Name: name, Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		kube, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return err
		}
		backups, err := crd.New[*v1.Backup](cfg, v1.GroupVersion.WithKind("Backup"), "backups")
		if err != nil {
			return err
		}
		return do(ctx, kube, backups.Namespace(env.Namespace), env)
	}}
}

// hourPasses is the step into the hour n. It needs the Job of the hour before, because only the newest
// of several missed intervals gets one.
func (c *clocks) hourPasses(n int) controllertest.Step {
	return step(fmt.Sprintf("hour %d", n), func(ctx context.Context, kube kubernetes.Interface, backups *crd.Client[*v1.Backup], env *controllertest.Env) error {
		b, err := backups.Get(ctx, "nightly", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if _, err := kube.BatchV1().Jobs(env.Namespace).Get(ctx, hour(b, n-1), metav1.GetOptions{}); err != nil {
			return fmt.Errorf("the Job of the hour before: %v", err) // %v: a NotFound would count as an effect of a deleted backup
		}
		c.of(env.Namespace).nanoseconds.Store(int64(time.Duration(n) * time.Hour))
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"%d"}}}`, hourAnnotation, n)
		_, err = backups.Patch(ctx, "nightly", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	})
}

// finishJobs creates the settings, and does what the controller of Jobs does. The Job of hour 1 fails.
func finishJobs(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: settingsName}, Data: map[string]string{"namespaces": env.Namespace}}
	if _, err := kube.CoreV1().ConfigMaps(env.Namespace).Create(ctx, settings, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the settings: %w", err)
	}
	jobs := kube.BatchV1().Jobs(env.Namespace)
	w := &watcher.RetryWatcher[*batchv1.Job]{Source: watcher.Client[*batchv1.Job](jobs)}
	for event, err := range w.Events(ctx) {
		switch job := event.Object; {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("watch the Jobs: %w", err)
		case job == nil || job.DeletionTimestamp != nil || len(job.Status.Conditions) > 0:
			continue
		default:
			failure := ""
			if job.Annotations["backup.example.com/due"] == begin.Truncate(time.Hour).Add(time.Hour).Format(time.RFC3339) {
				failure = "no space left"
			}
			done := job.DeepCopy()
			finishJob(done, failure)
			if _, err := jobs.UpdateStatus(ctx, done, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && ctx.Err() == nil {
				return fmt.Errorf("finish Job %s: %w", job.Name, err) // after a conflict another event comes
			}
		}
	}
	return nil
}

// cloudStore is a store.Service whose calls pass through the faults of a plan. The service makes a
// second snapshot if it is asked twice, and works on if a response is lost.
type cloudStore struct {
	*cloud.Cloud
	works *sync.Map // the begin of each creation without a response, by token; outside of the processes
}

func (s cloudStore) Create(ctx context.Context, snapshot store.Snapshot) (store.Snapshot, error) {
	s.works.Store(snapshot.Token, time.Now())
	made, err := s.Cloud.Create(ctx, cloud.Resource{Name: snapshot.Owner, Token: snapshot.Token, Tags: map[string]string{"time": snapshot.Time.Format(time.RFC3339)}})
	if err == nil {
		s.works.Delete(snapshot.Token)
	}
	snapshot.ID = made.ID
	return snapshot, err
}

func (s cloudStore) List(ctx context.Context, owner string) ([]store.Snapshot, error) {
	list, err := s.Cloud.List(ctx, owner)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(r cloud.Resource) bool {
		begun, works := s.works.Load(r.Token)
		return works && time.Since(begun.(time.Time)) < exploredWork
	})
	return snapshotsOf(list)
}

func (s cloudStore) Delete(ctx context.Context, id string) error {
	if err := s.Cloud.Delete(ctx, id); !errors.Is(err, cloud.ErrNotFound) {
		return err
	}
	return nil
}

// snapshotsOf returns the snapshots that the cloud has.
func snapshotsOf(list []cloud.Resource) ([]store.Snapshot, error) {
	var all []store.Snapshot
	for _, r := range list {
		at, err := time.Parse(time.RFC3339, r.Tags["time"])
		if err != nil {
			return nil, fmt.Errorf("snapshot %s: %w", r.ID, err)
		}
		all = append(all, store.Snapshot{ID: r.ID, Owner: r.Name, Token: r.Token, Time: at})
	}
	return all, nil
}

// backup is the state of a run: the backup, or nil, its Jobs, the newest first, and the snapshots.
type backup struct {
	*v1.Backup
	jobs      []*batchv1.Job
	snapshots []store.Snapshot
}

func read(s *controllertest.State) (backup, error) {
	var b backup
	var err error
	if obj := s.Get("backups.backup.example.com", "nightly"); obj != nil {
		b.Backup = &v1.Backup{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, b.Backup); err != nil {
			return b, err
		}
	}
	for _, obj := range s.Objects("jobs.batch") {
		job := &batchv1.Job{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, job); err != nil {
			return b, err
		}
		b.jobs = append(b.jobs, job)
	}
	slices.Reverse(b.jobs) // their names have the order of their times
	b.snapshots, err = snapshotsOf(s.Cloud())
	return b, err
}

// complete returns the Jobs of the backup that have ended with success.
func (b backup) complete() (complete []*batchv1.Job) {
	for _, job := range b.jobs {
		if b.Backup != nil && metav1.IsControlledBy(job, b) && job.Status.Succeeded == 1 {
			complete = append(complete, job)
		}
	}
	return complete
}

// asScheduled returns nil if the Jobs, the snapshots and the status are those of the hour, or nothing
// is left of a backup that is gone.
func asScheduled(s *controllertest.State) error {
	b, err := read(s)
	switch {
	case err != nil:
		return err
	case b.Backup == nil && len(b.jobs)+len(b.snapshots) > 0:
		return fmt.Errorf("the backup is gone, and %d Jobs and the snapshots %v are left", len(b.jobs), b.snapshots)
	case b.Backup == nil:
		return nil
	case b.DeletionTimestamp != nil:
		return errors.New("the backup is being deleted")
	}
	n, err := strconv.Atoi(b.Annotations[hourAnnotation])
	if err != nil {
		return err
	}
	last := begin.Truncate(time.Hour).Add(time.Duration(n) * time.Hour)
	complete := b.complete()
	newest, reason := 0, "JobComplete"
	if n == 1 {
		newest, reason = 1, "JobFailed"
	}
	ready := meta.FindStatusCondition(b.Status.Conditions, "Ready")
	switch {
	case len(b.jobs) == 0 || b.jobs[0].Name != hour(b.Backup, n):
		return fmt.Errorf("the newest of %d Jobs is not that of hour %d", len(b.jobs), n)
	case len(b.jobs[0].Status.Conditions) == 0:
		return errors.New("the newest Job runs")
	case len(complete) > exploredRetention || len(b.snapshots) != len(complete) || len(b.Status.Snapshots) != len(complete):
		return fmt.Errorf("%d successful Jobs, %d snapshots, %d in the status", len(complete), len(b.snapshots), len(b.Status.Snapshots))
	case b.Status.LastTime == nil || !b.Status.LastTime.Time.Equal(last) || b.Status.NextTime == nil || !b.Status.NextTime.Time.Equal(last.Add(time.Hour)):
		return fmt.Errorf("last time %v, next time %v, want the hour %v", b.Status.LastTime, b.Status.NextTime, last)
	case ready == nil || ready.Reason != reason || ready.ObservedGeneration != b.Generation:
		return fmt.Errorf("condition Ready is %+v, want the reason %s of Job %d", ready, reason, newest)
	}
	for i, job := range complete {
		found := slices.IndexFunc(b.snapshots, func(s store.Snapshot) bool { return s.ID == external.ID(job, snapshotAnnotation) })
		if found < 0 || b.snapshots[found].ID != b.Status.Snapshots[i].ID || !b.snapshots[found].Time.Equal(b.Status.Snapshots[i].Time.Time) {
			return fmt.Errorf("Job %s has the snapshot %q, the status %v, the store %v", job.Name, external.ID(job, snapshotAnnotation), b.Status.Snapshots, b.snapshots)
		}
	}
	return nil
}

// oneJob finds two Jobs of one backup and one interval.
func oneJob(s *controllertest.State) error {
	b, err := read(s)
	if err != nil {
		return err
	}
	seen := map[string]string{}
	for _, job := range b.jobs {
		interval := string(metav1.GetControllerOf(job).UID) + " at " + job.Annotations["backup.example.com/due"]
		if other := seen[interval]; other != "" {
			return fmt.Errorf("the Jobs %s and %s are of backup %s", other, job.Name, interval)
		}
		seen[interval] = job.Name
	}
	return nil
}

// oneSnapshot finds two snapshots of one Job.
func oneSnapshot(s *controllertest.State) error {
	b, err := read(s)
	if err != nil {
		return err
	}
	seen := map[string]string{}
	for _, snapshot := range b.snapshots {
		job := snapshot.Owner + " at " + snapshot.Time.String()
		if other := seen[job]; other != "" {
			return fmt.Errorf("the snapshots %s and %s are of backup %s", other, snapshot.ID, job)
		}
		seen[job] = snapshot.ID
	}
	return nil
}

// snapshotHeld is about existing backups: asScheduled finds a snapshot without one.
func snapshotHeld(s *controllertest.State) error {
	b, err := read(s)
	if err != nil || b.Backup == nil {
		return err
	}
	for _, snapshot := range b.snapshots {
		if snapshot.Owner != string(b.UID) || !slices.Contains(b.Finalizers, controller.Finalizer) {
			return fmt.Errorf("no finalizer guarantees that snapshot %s is deleted", snapshot.ID)
		}
	}
	return nil
}

// newestKept finds a missing snapshot of the newest recorded Job.
func newestKept(s *controllertest.State) error {
	b, err := read(s)
	if err != nil || b.Backup == nil || b.DeletionTimestamp != nil {
		return err
	}
	for _, job := range b.complete() {
		id := external.ID(job, snapshotAnnotation)
		switch {
		case id == "":
			continue
		case !slices.ContainsFunc(b.snapshots, func(s store.Snapshot) bool { return s.ID == id }):
			return fmt.Errorf("the newest snapshot %s of Job %s is missing", id, job.Name)
		default:
			return nil
		}
	}
	return nil
}
