package clustertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testserver"
)

// A trial is one random schedule of a package: some actors, with kube-apiservers of their
// own, that share an object or a collection while the cluster is disturbed.
type trial struct {
	ctx    context.Context
	seed   uint64
	name   string // of the object, or the value of the label trial of the collection
	steady kubernetes.Interface
	all    []kubernetes.Interface // the steady one, the disturbed one and the load balancer

	mu       sync.Mutex // guards the fields below
	problems []string
	counts   map[string]int
}

// found records a broken promise.
func (tr *trial) found(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.problems = append(tr.problems, fmt.Sprintf(format, args...))
}

func (tr *trial) count(what string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.counts[what]++
}

// random returns the choices of an actor. They do not depend on those of the others.
func (tr *trial) random(actor uint64) *rand.Rand { return rand.New(rand.NewPCG(tr.seed, actor)) }

// any returns one of the clients.
func (tr *trial) any(rng *rand.Rand) kubernetes.Interface { return tr.all[rng.IntN(len(tr.all))] }

// stale reads from the server's cache, which can be old.
func stale() metav1.GetOptions { return metav1.GetOptions{ResourceVersion: "0"} }

// brief bounds a request, so that an actor does not wait for the end of each fault.
func (tr *trial) brief() (context.Context, context.CancelFunc) {
	return context.WithTimeout(tr.ctx, 2*time.Second)
}

// until calls f until it returns nil: while the etcds elect a leader, requests fail.
func (tr *trial) until(what string, f func(context.Context) error) {
	var err error
	for range 60 {
		request, cancel := tr.brief()
		err = f(request)
		cancel()
		if err == nil || tr.ctx.Err() != nil {
			return
		}
		nap(tr.ctx, 200*time.Millisecond)
	}
	tr.found("%s: %v", what, err)
}

func nap(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// expected reports whether an error belongs to the faults or to a copy that is stale.
func expected(err error) bool {
	return err == nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsInternalError(err) ||
		apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || !isStatus(err)
}

func isStatus(err error) bool { return apierrors.ReasonForError(err) != metav1.StatusReasonUnknown }

// trials runs -schedules trials while the cluster is disturbed, and fails with those that
// found a broken promise. Each count must have happened.
func trials(t *testing.T, cluster *testserver.Cluster, run func(*trial), counts ...string) {
	first := *seed
	if first == 0 {
		first = rand.Uint64() >> 16
	}
	t.Logf("-seed %d -schedules %d", first, *schedules)
	all := []kubernetes.Interface{
		kubernetes.NewForConfigOrDie(cluster.ServerConfig(t, 0)), kubernetes.NewForConfigOrDie(cluster.ServerConfig(t, 1)), kubernetes.NewForConfigOrDie(cluster.Config()),
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sum := map[string]int{}
	var mu sync.Mutex
	var running sync.WaitGroup
	running.Go(func() {
		defer cancel()
		slots := make(chan struct{}, 12)
		var judged sync.WaitGroup
		for n := range *schedules {
			slots <- struct{}{}
			judged.Go(func() {
				defer func() { <-slots }()
				tr := &trial{ctx: t.Context(), seed: first + uint64(n), steady: all[0], all: all, counts: map[string]int{}}
				tr.name = fmt.Sprintf("%s-%d", map[bool]string{true: "t", false: "u"}[n%2 == 0], tr.seed)
				run(tr)
				mu.Lock()
				defer mu.Unlock()
				for what, n := range tr.counts {
					sum[what] += n
				}
				for _, p := range tr.problems {
					t.Errorf("-seed %d -schedules 1: %s", tr.seed, p)
				}
			})
		}
		judged.Wait()
	})
	faults := disturb(ctx, t, cluster, rand.New(rand.NewPCG(first, 3)), 2*time.Second)
	running.Wait()
	t.Logf("%v; faults: %v", sum, faults)
	for _, what := range counts {
		if sum[what] == 0 {
			t.Errorf("%q never happened: the schedules prove little", what)
		}
	}
}
