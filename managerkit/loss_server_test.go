package managerkit_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/reconcile"
)

// startLoop runs a manager with a loop of Complete, whose fields are all zero, by Elect or by
// Run. r gets the client of the manager. stopping is closed when the manager stops its
// Runnables.
func startLoop(t *testing.T, by string, cfg *rest.Config, e *leader.Elector, ns string, r func(client.Client) crreconcile.Reconciler) (s *started, stopping <-chan struct{}) {
	t.Helper()
	cached, ended := settings(t, ns), make(chan struct{})
	build := func(options manager.Options) (manager.Manager, error) {
		options.Cache = cached
		mgr, err := manager.New(cfg, options)
		if err != nil {
			return nil, err
		}
		return mgr, errors.Join(
			managerkit.Complete(ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}), r(mgr.GetClient()), &reconcile.Controller[ctrl.Request]{}, controller.Options{}),
			mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
				<-ctx.Done()
				close(ended)
				return nil
			})),
		)
	}
	if by == "Run" {
		return begin(t, func(ctx context.Context) error {
			return managerkit.Run(ctx, e, func(options manager.Options) (manager.Manager, error) { return build(silence(options)) })
		}), ended
	}
	mgr, err := build(elected(t, e))
	if err != nil {
		t.Fatal(err)
	}
	return begin(t, mgr.Start), ended
}

// isLost reports whether leadership was lost, by the cause of a context that is done.
func isLost(ctx context.Context) bool {
	lost, ok := errors.AsType[interface {
		error
		LeadershipLost() bool
	}](context.Cause(ctx))
	return ok && lost.LeadershipLost()
}

// TestLossEndsCalls: the loss of the Lease ends the running calls of a loop with a cause that
// is LeadershipLost, also when they drain.
//
// Proves MK9.
func TestLossEndsCalls(t *testing.T) {
	for _, by := range []string{"Elect", "Run"} {
		for _, drains := range []bool{false, true} {
			name := map[bool]string{false: "running", true: "draining"}[drains]
			t.Run(by+"/"+name, func(t *testing.T) {
				t.Parallel()
				ns := testserver.Namespace(t)
				calls := make(blocked, 1)
				s, stopping := startLoop(t, by, testserver.Config(t), byWatch(t, ns), ns, func(client.Client) crreconcile.Reconciler { return calls })
				ctx := await(t, calls, "call")
				if drains {
					s.cancel()
					await(t, stopping, "stop of the Runnables")
					if ctx.Err() != nil {
						t.Errorf("the stop has ended the call: %v", context.Cause(ctx))
					}
				}
				take(t, leasesOf(t, testserver.Config(t), ns), "intruder")
				await(t, ctx.Done(), "end of the call's context")
				if !isLost(ctx) {
					t.Errorf("cause = %v, want one that is LeadershipLost", context.Cause(ctx))
				}
				_ = s.stop(t)
			})
		}
	}
}

// TestDefaultsDrain: with every duration at its default, a call that ends 14s after the process
// was told to stop ends undisturbed. Start returns nil, and the Lease is released.
//
// Proves MK5 and MK6.
func TestDefaultsDrain(t *testing.T) {
	for _, by := range []string{"Elect", "Run"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			ns := testserver.Namespace(t)
			leases := leasesOf(t, testserver.Config(t), ns)
			begun, stopped, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			var cancelled time.Time // set when stopped is closed
			r := crreconcile.Func(func(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
				close(begun)
				<-stopped
				select {
				case <-ctx.Done():
				case <-time.After(time.Until(cancelled.Add(14 * time.Second))):
				}
				ended <- context.Cause(ctx)
				return ctrl.Result{}, nil
			})
			s, stopping := startLoop(t, by, testserver.Config(t), &leader.Elector{Leases: leases, Namespace: ns, Name: electionName}, ns, func(client.Client) crreconcile.Reconciler { return r })
			await(t, begun, "call")
			cancelled = time.Now()
			s.cancel()
			await(t, stopping, "stop of the Runnables")
			close(stopped)
			if err := s.wait(t); err != nil {
				t.Errorf("Start() = %v, want nil", err)
			}
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("the call was cancelled: %v", err)
				}
			default:
				t.Error("Start returned before the call")
			}
			if holder := holderOf(t, leases); holder != "" {
				t.Errorf("the Lease is held by %q after Start has returned", holder)
			}
		})
	}
}

// TestStandbyIsWarm: the informers of a standby's loop list before it leads.
//
// Proves MK3.
func TestStandbyIsWarm(t *testing.T) {
	t.Parallel()
	ns := testserver.Namespace(t)
	works := make(chan struct{})
	startReplica(t, testserver.Config(t), elected(t, byWatch(t, ns)), func(ctx context.Context) error {
		close(works)
		<-ctx.Done()
		return nil
	})
	await(t, works, "leader")
	cfg, listed := testserver.Config(t), make(chan struct{}, 100)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return leaseTransport(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/configmaps") {
				select {
				case listed <- struct{}{}:
				default:
				}
			}
			return next.RoundTrip(r)
		})
	})
	startLoop(t, "Elect", cfg, byWatch(t, ns), ns, func(client.Client) crreconcile.Reconciler { return make(blocked) })
	await(t, listed, "list of a standby")
}

// TestGuardInManager: a manager whose configuration has leader.Guard writes with the contexts of
// its calls while it leads, and not after a loss, even if the context has lost its end. A
// context without a term writes nothing.
//
// Proves MK9.
func TestGuardInManager(t *testing.T) {
	for _, by := range []string{"Elect", "Run"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			ns := testserver.Namespace(t)
			cfg := testserver.Config(t)
			cfg.Wrap(leader.Guard)
			var c client.Client
			calls := make(blocked, 1)
			s, _ := startLoop(t, by, cfg, byWatch(t, ns), ns, func(own client.Client) crreconcile.Reconciler {
				c = own
				return calls
			})
			ctx := await(t, calls, "call")
			write := func(ctx context.Context) error {
				cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "settings"}}
				return c.Patch(ctx, cm, client.RawPatch(types.MergePatchType, []byte(`{"data":{"a":"b"}}`)), &client.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			}
			if err := write(ctx); err != nil {
				t.Errorf("write of the leader: %v", err)
			}
			if err := write(t.Context()); err == nil || !strings.Contains(err.Error(), "leader: ") {
				t.Errorf("write without a term: %v, want the error of Guard", err)
			}
			take(t, leasesOf(t, testserver.Config(t), ns), "intruder")
			await(t, ctx.Done(), "end of the call's context")
			if err := write(context.WithoutCancel(ctx)); !errors.Is(err, leader.ErrLost) {
				t.Errorf("write after the loss: %v, want ErrLost", err)
			}
			_ = s.stop(t)
		})
	}
}
