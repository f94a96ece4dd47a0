// Package controller reconciles Backups.
package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applybatchv1 "k8s.io/client-go/applyconfigurations/batch/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/examples/backup/api/v1"
	"github.com/controllerkit/controllerkit/examples/backup/store"
	"github.com/controllerkit/controllerkit/external"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/preview"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/status"
)

const (
	// Finalizer keeps a Backup until its snapshots are deleted.
	Finalizer = "backup.example.com/snapshots"

	// snapshotAnnotation is on each successful Job, with the id of its snapshot.
	snapshotAnnotation = "backup.example.com/snapshot"

	maxWorkers   = 32
	maxRetention = 100 // as in the schema
)

// Reconciler creates the Jobs of a Backup, records their snapshots, and deletes old ones. Its functions
// are fields, so that a unit test can replace them.
type Reconciler struct {
	Store        store.Service
	VisibleAfter time.Duration
	Now          func() time.Time
	Settings     func(ctx context.Context) (Settings, error)
	Jobs         func(ctx context.Context, b *v1.Backup) ([]*batchv1.Job, error) // of the backup
	Apply        func(ctx context.Context, children ...any) ([]operator.Child, error)
	JobClient    func(namespace string) JobClient
}

// Reconcile reconciles one Backup. The failure of one step stops no other one. An error makes the
// condition Ready false; without one, Ready is about the newest finished Job.
func (r *Reconciler) Reconcile(ctx context.Context, b *v1.Backup) (reconcile.Result, error) {
	settings, err := r.Settings(ctx)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read the settings: %w", err)
	}
	jobs, err := r.Jobs(ctx, b)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read the Jobs: %w", err)
	}
	now := r.Now()
	limit := now.Add(b.Spec.Interval.Duration)
	runs, err := newestFirst(jobs, limit)
	untilNext, startErr := r.start(ctx, b, runs, now, limit)
	recordErr := r.record(ctx, b, runs, untilNext)
	retention := settings.Retention
	if b.Spec.Retention > 0 {
		retention = int(b.Spec.Retention)
	}
	retainErr := r.retain(ctx, b, runs, retention, limit)
	if err := errors.Join(err, startErr, recordErr, retainErr); err != nil {
		// RequeueAfter would replace the delay of the error, which is shorter.
		return reconcile.Result{}, err
	}
	if err := status.Set(&b.Status.Conditions, b.Generation, ready(runs)); err != nil {
		return reconcile.Result{}, fmt.Errorf("set the condition: %w", err)
	}
	return reconcile.Result{RequeueAfter: untilNext}, nil
}

// start creates the Job that is due, if there is one. It returns the time until the next one.
func (r *Reconciler) start(ctx context.Context, b *v1.Backup, runs []run, now, limit time.Time) (untilNext time.Duration, err error) {
	// The status knows the newest Job also after somebody has deleted it, and the Jobs also if the
	// process ended before it wrote the status. With a time after limit no Job would be due for as long.
	var last time.Time
	if t := b.Status.LastTime; t != nil && !t.After(limit) {
		last = t.Time
	}
	if len(runs) > 0 && runs[0].due.After(last) {
		last = runs[0].due
	}
	due, ok, next := schedule(b, last, now)
	if ok {
		// If the cache does not have the Job of an earlier process yet, Apply finds it.
		if _, err := r.Apply(ctx, job(b, due)); err != nil {
			return 0, fmt.Errorf("start the Job of %s: %w", due.Format(time.RFC3339), err)
		}
		last = due
	}
	if !last.IsZero() {
		b.Status.LastTime = &metav1.Time{Time: last}
	}
	b.Status.NextTime = &metav1.Time{Time: next}
	return next.Sub(now), nil
}

// record makes one snapshot for each successful Job. The error waits no longer than until the next Job.
func (r *Reconciler) record(ctx context.Context, b *v1.Backup, runs []run, untilNext time.Duration) error {
	var errs []error
	for _, run := range runs {
		c := finished(run.Job)
		if c == nil || c.Type != batchv1.JobComplete || run.DeletionTimestamp != nil {
			continue
		}
		_, err := external.Once(ctx, r.JobClient(b.Namespace), run.Job, r.snapshot(b, run))
		if w := controllerkit.WaitingError(nil); errors.As(err, &w) && w.Waits() > untilNext {
			err = sooner{err, untilNext}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("record the snapshot of Job %s: %w", run.Name, err))
		}
	}
	return errors.Join(errs...)
}

// snapshot describes the snapshot of a Job.
func (r *Reconciler) snapshot(b *v1.Backup, run run) external.Resource {
	find := func(ctx context.Context, match func(store.Snapshot) bool) (id string, found bool, err error) {
		snapshots, err := r.Store.List(ctx, string(b.UID))
		if i := slices.IndexFunc(snapshots, match); err == nil && i >= 0 {
			return snapshots[i].ID, true, nil
		}
		return "", false, err
	}
	return external.Resource{
		Annotation:   snapshotAnnotation,
		VisibleAfter: r.VisibleAfter,
		Find: func(ctx context.Context, token string) (id string, found bool, err error) {
			return find(ctx, func(s store.Snapshot) bool { return s.Token == token })
		},
		Create: func(ctx context.Context, token string) (id string, err error) {
			made, err := r.Store.Create(ctx, store.Snapshot{Owner: string(b.UID), Token: token, Time: run.due})
			return made.ID, err
		},
		Observe: func(ctx context.Context, id string) (external.State, error) {
			_, found, err := find(ctx, func(s store.Snapshot) bool { return s.ID == id })
			if !found {
				return external.Gone, err
			}
			return external.Current, nil
		},
		Delete: r.Store.Delete,
	}
}

// retain deletes Jobs and snapshots beyond the retention. The retention is at least 1, so the newest
// snapshot stays. While a snapshot has a time after limit, it is not known which one is the newest, and all stay.
func (r *Reconciler) retain(ctx context.Context, b *v1.Backup, runs []run, retention int, limit time.Time) error {
	var errs []error
	for _, old := range beyond(runs, retention) {
		if finished(old.Job).Type == batchv1.JobComplete && external.ID(old.Job, snapshotAnnotation) == "" {
			continue // until its snapshot is recorded
		}
		if err := finalizer.Delete(ctx, r.JobClient(b.Namespace), old.Job, metav1.DeletePropagationBackground); err != nil {
			errs = append(errs, fmt.Errorf("delete the old Job %s: %w", old.Name, err))
		}
	}
	snapshots, err := r.Store.List(ctx, string(b.UID))
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("list the snapshots: %w", err))...)
	}
	slices.SortFunc(snapshots, func(a, b store.Snapshot) int { return b.Time.Compare(a.Time) })
	b.Status.Snapshots = nil
	if len(snapshots) > 0 && snapshots[0].Time.After(limit) {
		first := snapshots[0]
		errs = append(errs, fmt.Errorf("no old snapshot is deleted, because the time of snapshot %s is ahead, %s: set the clock of this node, or delete the snapshot", first.ID, first.Time.Format(time.RFC3339)))
		retention = len(snapshots)
	}
	for i, s := range snapshots {
		if i < retention {
			b.Status.Snapshots = append(b.Status.Snapshots, v1.Snapshot{ID: s.ID, Time: metav1.Time{Time: s.Time}})
			continue
		}
		if preview.Skip(ctx, "delete the old snapshot %s", s.ID) {
			continue
		}
		if err := r.Store.Delete(ctx, s.ID); err != nil {
			errs = append(errs, fmt.Errorf("delete the old snapshot %s: %w", s.ID, err))
		}
	}
	return errors.Join(errs...)
}

// ready returns the condition Ready by the newest finished Job.
func ready(runs []run) metav1.Condition {
	for _, run := range runs {
		switch c := finished(run.Job); {
		case c == nil:
			continue
		case c.Type == batchv1.JobFailed:
			return status.False("Ready", "JobFailed", fmt.Sprintf("Job %s failed: %s", run.Name, c.Message))
		default:
			return status.True("Ready", "JobComplete", fmt.Sprintf("Job %s is complete", run.Name))
		}
	}
	return status.True("Ready", "Scheduled", "No Job has finished yet")
}

// Cleanup deletes the Jobs and the snapshots. It waits for a snapshot that the store may not show yet,
// because the creation had no response.
func (r *Reconciler) Cleanup(ctx context.Context, b *v1.Backup) error {
	jobs, err := r.Jobs(ctx, b)
	if err != nil {
		return fmt.Errorf("read the Jobs: %w", err)
	}
	var errs []error
	for _, job := range jobs {
		if err := r.retire(ctx, b, job); err != nil {
			errs = append(errs, fmt.Errorf("delete Job %s: %w", job.Name, err))
		}
	}
	// Other Jobs can be gone with their intents: a deletion in the foreground, or of the namespace,
	// removes them before this call.
	if wait := r.VisibleAfter - time.Since(b.DeletionTimestamp.Time); wait > 0 {
		errs = append(errs, unseen(wait))
	}
	snapshots, err := r.Store.List(ctx, string(b.UID))
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("list the snapshots: %w", err))...)
	}
	for _, s := range snapshots {
		if err := r.Store.Delete(ctx, s.ID); err != nil {
			errs = append(errs, fmt.Errorf("delete snapshot %s: %w", s.ID, err))
		}
	}
	return errors.Join(errs...)
}

// retire deletes a Job of a deleted backup, after its snapshot if the id is not stored. Then a process
// that has not seen the deletion of the backup cannot store an intent anymore, so it makes no snapshot.
func (r *Reconciler) retire(ctx context.Context, b *v1.Backup, job *batchv1.Job) error {
	jobs := r.JobClient(b.Namespace)
	if external.ID(job, snapshotAnnotation) == "" {
		if err := external.Delete(ctx, jobs, job, r.snapshot(b, run{Job: job})); err != nil {
			return err
		}
	}
	if finalizer.Has(b, metav1.FinalizerOrphanDependents) {
		return nil // the user deleted the backup with --cascade=orphan
	}
	return finalizer.Delete(ctx, jobs, job, metav1.DeletePropagationBackground)
}

// unseen is the error while the store may not show all snapshots yet. It is a controllerkit.WaitingError.
type unseen time.Duration

func (unseen) Error() string          { return "the store may not show all snapshots yet" }
func (u unseen) Waits() time.Duration { return time.Duration(u) }

// sooner is a controllerkit.WaitingError with a shorter time.
type sooner struct {
	error
	wait time.Duration
}

func (s sooner) Waits() time.Duration { return s.wait }
func (s sooner) Unwrap() error        { return s.error }

// job returns the Job that copies the claim. It has no time to finish after the next one is due.
func job(b *v1.Backup, due time.Time) *applybatchv1.JobApplyConfiguration {
	labels := map[string]string{"app.kubernetes.io/name": "backup", "app.kubernetes.io/instance": b.Name}
	container := applycorev1.Container().WithName("backup").WithImage(b.Spec.Image).
		WithVolumeMounts(applycorev1.VolumeMount().WithName("source").WithMountPath("/source").WithReadOnly(true))
	claim := applycorev1.PersistentVolumeClaimVolumeSource().WithClaimName(b.Spec.Claim).WithReadOnly(true)
	return applybatchv1.Job(jobName(b, due), b.Namespace).WithLabels(labels).
		WithAnnotations(map[string]string{dueAnnotation: due.Format(time.RFC3339)}).
		WithSpec(applybatchv1.JobSpec().
			WithBackoffLimit(2).
			WithActiveDeadlineSeconds(int64(b.Spec.Interval.Seconds())).
			WithTemplate(applycorev1.PodTemplateSpec().WithLabels(labels).
				WithSpec(applycorev1.PodSpec().
					WithRestartPolicy(corev1.RestartPolicyNever).
					WithContainers(container).
					WithVolumes(applycorev1.Volume().WithName("source").WithPersistentVolumeClaim(claim)))))
}
