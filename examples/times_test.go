package examples_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/recorder"
	"github.com/controllerkit/controllerkit/shutdown"
)

// The usual parts of a process stop in order with all durations 0, also when a call uses
// all of its time: a call finishes within the grace period of its controller, the elector
// waits for it and releases the Lease, no part is late, and everything ends before the
// kubelet kills the Pod.
func TestDefaultTimesCompose(t *testing.T) {
	const podGracePeriod = 30 * time.Second // the default terminationGracePeriodSeconds
	for _, tc := range []struct {
		name   string
		call   time.Duration // how long the call takes, if its context is not cancelled
		drains bool          // whether it takes a second longer when it is cancelled
		ends   bool          // in its time
		recs   bool          // with a recorder: four parts, not three
	}{
		{name: "short", call: time.Second, ends: true},
		{name: "nearly all", call: 19900 * time.Millisecond, ends: true},
		{name: "nearly all, four parts", call: 19900 * time.Millisecond, ends: true, recs: true},
		{name: "too long", call: time.Hour, recs: true},
		{name: "too long, and slow to end", call: time.Hour, drains: true, recs: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				client := fake.NewClientset()
				factory := informers.NewSharedInformerFactory(client, 0)
				var set informer.Set
				set.Add("configmaps", factory.Core().V1().ConfigMaps().Informer())
				q := queue.New(queue.Config[types.NamespacedName]{Name: "x"})
				q.Add(types.NamespacedName{Name: "a"})
				events := &recorder.Recorder{
					Client:     func(namespace string) recorder.Client { return client.EventsV1().Events(namespace) },
					Controller: "example.com/x",
				}
				var stopped time.Time
				var cancelled error
				c := &reconcile.Controller[types.NamespacedName]{
					Name: "x", Queue: q,
					Reconcile: func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
						stopped = time.Now()
						stop() // SIGTERM arrives during the call
						select {
						case <-time.After(tc.call):
						case <-ctx.Done():
							cancelled = ctx.Err()
							if tc.drains {
								time.Sleep(time.Second)
							}
						}
						if tc.recs {
							about := corev1.ObjectReference{Kind: "ConfigMap", Namespace: "ns", Name: key.Name}
							events.Event(about, corev1.ObjectReference{}, corev1.EventTypeNormal, "Done", "Reconcile", "done")
						}
						return reconcile.Result{}, cancelled
					},
				}
				e := &leader.Elector{Leases: client.CoordinationV1().Leases("ns"), Namespace: "ns", Name: "x"}
				var g shutdown.Group
				g.Add("http", func(ctx context.Context) error { <-ctx.Done(); return nil })
				g.Add("informers", set.Run)
				if tc.recs {
					g.Add("events", events.Run)
				}
				g.Add("controller", func(ctx context.Context) error { return e.Run(ctx, c.Run) })
				if err := g.Run(ctx); err != nil {
					t.Errorf("Run() = %v, want no part late", err)
				}
				if took := time.Since(stopped); took > podGracePeriod-time.Second {
					t.Errorf("the stop took %v, want less than the Pod's %v", took, podGracePeriod)
				}
				if (cancelled == nil) != tc.ends {
					t.Errorf("the call was cancelled: %v, want %v", cancelled != nil, !tc.ends)
				}
				lease, err := client.CoordinationV1().Leases("ns").Get(t.Context(), "x", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if holder := lease.Spec.HolderIdentity; holder != nil && *holder != "" {
					t.Errorf("the Lease is held by %q, want it released", *holder)
				}
				if tc.recs && events.Counts().Written != 1 {
					t.Errorf("events = %+v, want the one of the last call written", events.Counts())
				}
			})
		})
	}
}
