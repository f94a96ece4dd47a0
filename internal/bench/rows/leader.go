package rows

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/controllerkit/controllerkit/internal/bench"
	"github.com/controllerkit/controllerkit/internal/localserver"
	"github.com/controllerkit/controllerkit/leader"
)

// The code below is common to the rows about elections. They run on a real API server:
// bin/controlplane, or the cluster of KUBECONFIG if USE_EXISTING_CLUSTER is "true".

// An arena is an API server and a namespace for the work of a row.
type arena struct {
	config     *rest.Config
	kubeconfig string
	namespaces corev1client.NamespaceInterface
	namespace  string
	elections  atomic.Int64
	objects    int // of fillMaps
	stop       func()
}

// openArena starts an API server with the arguments. With arguments it is always a new one.
func openArena(ctx context.Context, args ...string) (_ *arena, err error) {
	server, err := localserver.Existing()
	if err != nil {
		return nil, err
	}
	if server == nil || len(args) > 0 {
		bin, err := controlplane()
		if err != nil {
			return nil, err
		}
		if server, err = localserver.Start(ctx, bin, args...); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, server.Stop())
		}
	}()
	clients, err := kubernetes.NewForConfig(server.Config())
	if err != nil {
		return nil, err
	}
	a := &arena{config: server.Config(), kubeconfig: server.Kubeconfig, namespaces: clients.CoreV1().Namespaces()}
	var remove func() error
	if a.namespace, remove, err = a.newNamespace(ctx); err != nil {
		return nil, err
	}
	a.stop = func() {
		if err := errors.Join(remove(), server.Stop()); err != nil {
			fmt.Fprintln(os.Stderr, "bench: clean up:", err)
		}
	}
	return a, nil
}

// newNamespace creates a namespace. remove deletes it, also if ctx is done.
func (a *arena) newNamespace(ctx context.Context) (name string, remove func() error, err error) {
	ns, err := a.namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-"}}, metav1.CreateOptions{})
	if err != nil {
		return "", nil, err
	}
	return ns.Name, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return a.namespaces.Delete(ctx, ns.Name, metav1.DeleteOptions{})
	}, nil
}

// controlplane returns the path of the server that make bin/controlplane builds.
func controlplane() (string, error) {
	dir, err := repository()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "bin", "controlplane")
	if _, err := os.Stat(bin); err != nil {
		return "", errors.Join(errors.New("bin/controlplane does not exist: run make bin/controlplane in this repository"), err)
	}
	return bin, nil
}

// repository returns the folder of the root module, in which this program runs.
func repository() (string, error) {
	dir, err := os.Getwd()
	for err == nil && dir != filepath.Dir(dir) {
		data, readErr := os.ReadFile(filepath.Join(dir, "go.mod"))
		if readErr == nil && strings.HasPrefix(string(data), "module github.com/controllerkit/controllerkit\n") {
			return dir, nil
		}
		dir = filepath.Dir(dir)
	}
	return "", errors.Join(errors.New("the working directory is not in the repository: run make bench"), err)
}

// buildPrograms builds commands of a module of this repository, and returns their folder, which is
// the given one in the folder bin. The go command skips the build of a file that is current. flags
// are those of go build.
func buildPrograms(ctx context.Context, module, folder string, commands []string, flags ...string) (dir string, err error) {
	root, err := repository()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(root, "bin", folder)
	// A stamp of the commit would make each commit change the files.
	args := append([]string{"build", "-C", filepath.Join(root, module), "-buildvcs=false", "-o", dir + string(filepath.Separator)}, flags...)
	build := exec.CommandContext(ctx, "go", append(args, commands...)...)
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build %s: %w\n%s", strings.Join(commands, " "), err, out)
	}
	return dir, nil
}

// electionPairs returns a pair of the library's and client-go's elector for each number
// of replicas.
func electionPairs(ctx context.Context, replicas []int, work func(ctx context.Context, m *bench.Meter, a *arena, k electorKind, replicas int) (int, error)) ([]bench.Pair, func(), error) {
	a, err := openArena(ctx)
	if err != nil {
		return nil, nil, err
	}
	contender := func(name, module string, k electorKind, n int) bench.Contender {
		return bench.Contender{Name: name, Module: module, Run: func(ctx context.Context, m *bench.Meter) (int, error) {
			// Both electors log each hand-over.
			return work(logr.NewContext(ctx, logr.Discard()), m, a, k, n)
		}}
	}
	var pairs []bench.Pair
	for _, n := range replicas {
		pairs = append(pairs, bench.Pair{
			Case:   fmt.Sprintf("%d replicas", n),
			Ours:   contender("controllerkit", "", ourElector, n),
			Theirs: contender(clientGo, "k8s.io/client-go", clientGoElector, n),
		})
	}
	return pairs, a.stop, nil
}

// together calls f concurrently for 0 to n-1. The first error cancels the other calls.
func together(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := f(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// Timings of an election.
type timings struct{ lease, renew, retry time.Duration }

// timingsOf returns the defaults of the library and of Kubernetes' components.
func timingsOf(m *bench.Meter) timings {
	if m.Quick {
		return timings{lease: 2 * time.Second, renew: 1500 * time.Millisecond, retry: 200 * time.Millisecond}
	}
	return timings{lease: 15 * time.Second, renew: 10 * time.Second, retry: 2 * time.Second}
}

// A seat is the configuration of one replica in an election.
type seat struct {
	leases          leader.LeaseClient
	namespace, name string
	identity        string
	timings         timings
}

// An electorKind is a candidate until ctx is done and calls lead while it leads. If it
// loses the Lease earlier, it returns an error.
type electorKind func(ctx context.Context, s seat, lead func(context.Context)) error

func ourElector(ctx context.Context, s seat, lead func(context.Context)) error {
	e := &leader.Elector{
		Leases: s.leases, Namespace: s.namespace, Name: s.name, Identity: s.identity,
		LeaseDuration: s.timings.lease, RenewDeadline: s.timings.renew, RetryPeriod: s.timings.retry,
	}
	var lost bool
	err := e.Run(ctx, func(ctx context.Context) error {
		lead(ctx)
		lost = lost || errors.Is(context.Cause(ctx), leader.ErrLost)
		return nil
	})
	if err == nil && lost {
		err = fmt.Errorf("%s lost the Lease", s.identity)
	}
	return err
}

func clientGoElector(ctx context.Context, s seat, lead func(context.Context)) error {
	e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: s.namespace, Name: s.name},
			Client:     lockClient{leases: s.leases},
			LockConfig: resourcelock.ResourceLockConfig{Identity: s.identity},
		},
		LeaseDuration: s.timings.lease, RenewDeadline: s.timings.renew, RetryPeriod: s.timings.retry,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: lead, // Run does not wait for it; the caller does
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return err
	}
	e.Run(ctx)
	if ctx.Err() == nil {
		return fmt.Errorf("%s lost the Lease", s.identity)
	}
	return nil
}

// A lockClient is a client for client-go's elector, which calls three of its methods.
type lockClient struct {
	coordinationv1client.LeaseInterface
	leases leader.LeaseClient
}

func (c lockClient) Leases(string) coordinationv1client.LeaseInterface { return c }

func (c lockClient) Get(ctx context.Context, name string, opts metav1.GetOptions) (*coordinationv1.Lease, error) {
	return c.leases.Get(ctx, name, opts)
}

func (c lockClient) Create(ctx context.Context, lease *coordinationv1.Lease, opts metav1.CreateOptions) (*coordinationv1.Lease, error) {
	return c.leases.Create(ctx, lease, opts)
}

func (c lockClient) Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	return c.leases.Update(ctx, lease, opts)
}

// An election elects a leader among replicas. Each replica has its own client and
// connections.
type election struct {
	kind  electorKind
	seats []seat

	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	begins  chan leadership
	failed  chan error
	members []member
}

// A member is one Run of one replica.
type member struct {
	stop context.CancelFunc
	done chan struct{}
}

// A leadership is one call of lead.
type leadership struct {
	replica int
	began   time.Time
	ended   chan time.Time // receives the time when lead returns
}

// open prepares an election with its own Lease and without candidates. config returns
// the configuration of a replica.
func (a *arena) open(ctx context.Context, m *bench.Meter, k electorKind, replicas int, config func(replica int) *rest.Config) (*election, error) {
	e := &election{
		kind:    k,
		begins:  make(chan leadership, 100), // never full: each leadership is received or is the last of a replica
		failed:  make(chan error, 100),
		members: make([]member, replicas),
	}
	name := fmt.Sprintf("election-%d", a.elections.Add(1))
	for i := range replicas {
		leases, err := leader.NewClient(config(i), a.namespace)
		if err != nil {
			return nil, err
		}
		e.seats = append(e.seats, seat{
			leases: leases, namespace: a.namespace, name: name,
			identity: fmt.Sprintf("replica-%d", i), timings: timingsOf(m),
		})
	}
	e.ctx, e.cancel = context.WithCancel(ctx)
	return e, nil
}

// join makes a replica a candidate.
func (e *election) join(replica int) {
	ctx, stop := context.WithCancel(e.ctx)
	done := make(chan struct{})
	e.members[replica] = member{stop: stop, done: done}
	e.wg.Go(func() {
		defer close(done)
		err := e.kind(ctx, e.seats[replica], func(ctx context.Context) {
			l := leadership{replica: replica, began: time.Now(), ended: make(chan time.Time, 1)}
			e.begins <- l
			<-ctx.Done()
			l.ended <- time.Now()
		})
		if err != nil {
			e.failed <- err
		}
	})
}

// next waits until a replica leads.
func (e *election) next() (leadership, error) {
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	select {
	case l := <-e.begins:
		return l, nil
	case err := <-e.failed:
		return leadership{}, err
	case <-limit.C:
		return leadership{}, errors.New("no replica leads after a minute")
	case <-e.ctx.Done():
		return leadership{}, context.Cause(e.ctx)
	}
}

// wait lets the election continue for d.
func (e *election) wait(d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case err := <-e.failed:
		return err
	case l := <-e.begins:
		return fmt.Errorf("replica %d leads although the leader was not stopped", l.replica)
	case <-e.ctx.Done():
		return context.Cause(e.ctx)
	}
}

// close stops all replicas.
func (e *election) close() {
	e.cancel()
	e.wg.Wait()
}
