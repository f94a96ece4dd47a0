package controller

import (
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/examples/backup/api/v1"
	"github.com/controllerkit/controllerkit/queue"
)

// Schedule is schedule.
func Schedule(b *v1.Backup, last, now time.Time) (due time.Time, ok bool, next time.Time) {
	return schedule(b, last, now)
}

// Beyond returns the names of the Jobs that the retention does not keep.
func Beyond(jobs []*batchv1.Job, retention int) (names []string, err error) {
	runs, err := newestFirst(jobs, time.Unix(1<<40, 0))
	for _, r := range beyond(runs, retention) {
		names = append(names, r.Name)
	}
	return names, err
}

// Limited returns a queue with the limit.
func Limited(limit *Limit) workqueue.TypedRateLimitingInterface[types.NamespacedName] {
	return limited{Queue: queue.New(queue.Config[types.NamespacedName]{}), limit: limit}
}
