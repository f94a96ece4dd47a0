package elections

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/controllerkit/controllerkit/leader"
)

// A Candidate is the configuration of an elector.
type Candidate struct {
	Config                                                *rest.Config // the replica's connection
	Namespace, Name, Identity                             string
	LeaseDuration, RenewDeadline, RetryPeriod, DrainLimit time.Duration
}

// A Hold is lead's view of its leadership, in addition to its context.
type Hold struct {
	Check func() error // nil: the elector has no check but the context
	Term  int64        // -1: unknown
}

// Lead is the work. It returns errQuit if it ends by itself.
type Lead func(ctx context.Context, h Hold) error

// A Replica runs an elector until ctx is done, or lead has quit, and until lead
// has returned.
type Replica func(ctx context.Context, c Candidate, lead Lead) error

// Controllerkit runs the Elector of package leader.
func Controllerkit(ctx context.Context, c Candidate, lead Lead) error {
	client, err := coordinationv1client.NewForConfig(c.Config)
	if err != nil {
		return err
	}
	e := &leader.Elector{
		Leases: client.Leases(c.Namespace), Namespace: c.Namespace, Name: c.Name, Identity: c.Identity,
		LeaseDuration: c.LeaseDuration, RenewDeadline: c.RenewDeadline, RetryPeriod: c.RetryPeriod,
		StartTimeout: time.Hour, DrainTimeout: c.DrainLimit,
	}
	var working sync.WaitGroup // Run does not wait for a lead that returns too late
	defer working.Wait()
	return e.Run(ctx, func(ctx context.Context) error {
		working.Add(1)
		defer working.Done()
		term, _ := leader.TermFrom(ctx)
		return lead(ctx, Hold{Check: func() error { return term.Check(ctx) }, Term: term.Number})
	})
}

// ClientGo runs client-go's elector, with or without ReleaseOnCancel, and with the
// request timeout of its NewFromKubeconfig. After a loss of the Lease, and after its
// work has returned, it starts again, as a restarted process does.
func ClientGo(release bool) Replica {
	return func(ctx context.Context, c Candidate, lead Lead) error {
		config := rest.CopyConfig(c.Config)
		config.Timeout = max(time.Second, c.RenewDeadline/2)
		client, err := coordinationv1client.NewForConfig(config)
		if err != nil {
			return err
		}
		for ctx.Err() == nil {
			run, cancel := context.WithCancel(ctx)
			lock := &lock{Interface: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name},
				Client:     client,
				LockConfig: resourcelock.ResourceLockConfig{Identity: c.Identity},
			}}
			led := make(chan error, 1)
			elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
				Lock:          lock,
				LeaseDuration: c.LeaseDuration, RenewDeadline: c.RenewDeadline, RetryPeriod: c.RetryPeriod,
				ReleaseOnCancel: release,
				Callbacks: leaderelection.LeaderCallbacks{
					OnStartedLeading: func(ctx context.Context) {
						led <- lead(ctx, Hold{Term: -1})
						cancel()
					},
					OnStoppedLeading: func() {},
				},
			})
			if err != nil {
				cancel()
				return err
			}
			elector.Run(run)
			if lock.acquired {
				// Run neither waits for lead nor reports that it has begun.
				err = <-led
			}
			cancel()
			if err != nil && ctx.Err() == nil {
				return err
			}
		}
		return nil
	}
}

// A lock knows whether its elector has acquired the Lease.
type lock struct {
	resourcelock.Interface
	acquired bool
}

// RecordEvent is called by the goroutine of Run.
func (l *lock) RecordEvent(event string) {
	if event == "became leader" {
		l.acquired = true
	}
}
