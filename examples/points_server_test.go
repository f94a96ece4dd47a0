package examples_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/stacks"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/owner"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

var serverPoints = flag.Int("server-points", 20, "how many stops TestServerStopPoints makes")

// TestServerStopPoints stops operators with an election and three controllers on the real
// API server: before the request or after the response of the nth request of some kind, from
// the first discovery to the Events. Half of them lose their Lease to another process at such
// a point, get it back after their work has ended, and stop at a second point. One in twenty
// has a call that ignores its context. The judges are a log of the queues and calls, a watch
// of the Lease, the process's connections and the labels of its goroutines:
//
//   - Each key whose last add no successful call has handled is in its queue until the term
//     ends, and counted by the line "Stopped controller" of each term. Then the queue is empty,
//     but for a call that still runs.
//   - The Lease is released if and only if all calls have ended, and not before. It is not
//     written while another process holds it.
//   - After a loss, the calls' contexts end with that cause, and the next term handles each
//     key.
//   - Run returns before the kubelet would kill the Pod, and leaves no goroutine.
func TestServerStopPoints(t *testing.T) {
	testserver.Needed(t)
	var mu sync.Mutex
	covered := map[string]int{}
	t.Run("points", func(t *testing.T) {
		for seed := range *serverPoints {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				p := newPoint(t, uint64(seed))
				p.run(t)
				mu.Lock()
				defer mu.Unlock()
				for _, what := range p.covers {
					covered[what]++
				}
			})
		}
	})
	t.Logf("%d points: %v", *serverPoints, covered)
	for _, what := range []string{"loss", "call ended by the loss", "second term", "hang"} {
		if *serverPoints >= 20 && covered[what] == 0 {
			t.Errorf("no point has a %s", what)
		}
	}
}

// The kinds of requests at which a point can be: those of each leader, and those of the start.
var (
	workRequests  = []string{"create secrets", "patch secrets", "create events", "update leases"}
	startRequests = []string{"discovery", "watch configmaps", "watch secrets", "get leases", "create leases", "watch leases"}
)

// A point has this number of ConfigMaps. If the Lease will be lost, the others come after that.
const (
	pointObjects = 30
	beforeLoss   = 15
)

// point is one operator, its load and its judge.
type point struct {
	namespace string
	admin     kubernetes.Interface
	kube      kubernetes.Interface // the operator's
	release   chan struct{}        // closed to end the call that ignores its context
	stopping  chan struct{}        // closed at the stop
	again     chan struct{}        // closed at the acquisition after the loss
	lose      bool                 // the Lease, before the stop
	more      chan struct{}        // has a token for each further object
	thieves   chan func()          // work for a goroutine without the operator's labels
	cancel    context.CancelFunc
	logs      testlog.Logs

	mu      sync.Mutex // guards the fields below
	rng     *rand.Rand
	hang    string // the controller with a call that ignores its context; "" means none
	kind    string // of the request of the next point
	after   int    // this number of such requests
	before  bool   // the request is sent; false: after its response
	stopped time.Time
	stolen  bool
	terms   int    // acquisitions
	lost    int    // of them before the loss
	term    int64  // the highest number of a call
	loops   int    // controllers that run
	idle    func() // called when none runs
	created int
	keys    map[string]*progress              // by controller and name
	running map[string]int                    // calls of a controller
	owed    map[string][]int                  // keys of a controller after the last call of each of its runs
	left    map[string][]types.NamespacedName // keys of a controller that its last run took out of the queue
	conns   []net.Conn
	covers  []string
	faults  []string
}

func newPoint(t *testing.T, seed uint64) *point {
	rng := rand.New(rand.NewPCG(2, seed)) //nolint:gosec // no secret
	p := &point{
		namespace: testserver.Namespace(t), admin: kubernetes.NewForConfigOrDie(testserver.Config(t)),
		release: make(chan struct{}), stopping: make(chan struct{}), again: make(chan struct{}), more: make(chan struct{}, 10000), thieves: make(chan func()),
		logs: testlog.New(), rng: rng, keys: map[string]*progress{}, running: map[string]int{}, owed: map[string][]int{}, left: map[string][]types.NamespacedName{},
	}
	if p.lose = seed%2 == 1; seed%20 == 2 {
		p.hang = []string{"copies", "labels", "events"}[rng.IntN(3)]
	}
	p.nextLocked()
	return p
}

// nextLocked chooses the next point.
func (p *point) nextLocked() {
	p.before, p.after = p.rng.IntN(2) == 0, 1
	if p.rng.IntN(3) == 0 && !p.stolen {
		p.kind = startRequests[p.rng.IntN(len(startRequests))]
		return
	}
	p.kind = workRequests[p.rng.IntN(len(workRequests))]
	if p.kind != "update leases" {
		p.after += p.rng.IntN(beforeLoss)
	}
}

func (p *point) fault(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faultLocked(format, args...)
}

func (p *point) faultLocked(format string, args ...any) {
	p.faults = append(p.faults, fmt.Sprintf(format, args...))
}

func (p *point) run(t *testing.T) {
	id := p.namespace
	p.logs.Hook = p.logged
	ctx, cancel := context.WithCancel(p.logs.Context(t.Context()))
	defer cancel()
	p.cancel = cancel
	records, err := p.admin.CoordinationV1().Leases(p.namespace).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer records.Stop()
	op, queues := p.operator(t)

	var wg sync.WaitGroup
	ended := make(chan struct{})
	wg.Go(func() { p.load(t) })
	wg.Go(func() {
		for {
			select {
			case work := <-p.thieves:
				work()
			case <-ended:
				return
			}
		}
	})
	done := make(chan error, 1)
	go pprof.Do(ctx, pprof.Labels("point", id), func(ctx context.Context) { done <- op.Run(ctx) })
	select {
	case err = <-done:
	case <-time.After(2 * time.Minute):
		p.mu.Lock()
		t.Fatalf("Run does not return: stopped %v, the next point is %d of %q, %d objects, faults %v; goroutines:\n%s",
			p.stopped, p.after, p.kind, p.created, p.faults, stacks.Labelled("point", id, 1<<16))
	}

	p.mu.Lock()
	took, late := time.Since(p.stopped), 0
	for _, n := range p.running {
		late += n
	}
	if p.stopped.IsZero() {
		t.Errorf("Run() = %v before the stop", err)
	} else if took > 30*time.Second {
		t.Errorf("the stop took %v, and the Pod has 30s", took)
	}
	if (late > 0) != (err != nil) {
		t.Errorf("Run() = %v with %d running calls", err, late)
	}
	p.mu.Unlock()
	close(ended)
	wg.Wait()
	p.judgeLease(t, records.ResultChan(), late > 0)

	p.mu.Lock()
	for name, q := range queues {
		kept, pending := p.left[name], q.Pending()
		if p.running[name] > 0 { // its loop waits for the call
			kept, pending = pending, nil
		}
		if len(pending) > 0 {
			t.Errorf("the queue of %s has %v after Run", name, pending)
		}
		for key, k := range p.keys {
			if of, object, _ := strings.Cut(key, " "); of == name && k.owed() && !slices.Contains(kept, types.NamespacedName{Namespace: p.namespace, Name: object}) {
				t.Errorf("the key %s of %s is lost: %+v", object, name, *k)
			}
		}
		for term, line := range p.stops(name) {
			if owed := p.owed[name]; term < len(owed) && line.Values["left"].(int) < owed[term] {
				t.Errorf("the controller %s reports %d keys that are left, want the %d that no call handled", name, line.Values["left"], owed[term])
			}
		}
	}
	if p.hang != "" && late > 0 {
		p.covers = append(p.covers, "hang")
	}
	for _, fault := range p.faults {
		t.Error(fault)
	}
	conns := p.conns
	p.mu.Unlock()

	close(p.release)
	for _, c := range conns {
		_ = c.Close()
	}
	var left string
	for range 1000 { // a goroutine has no event for its end
		if left = stacks.Labelled("point", id, 1<<16); left == "no goroutine with this label is left" {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("goroutines that are left:\n%s", left)
}

// judgeLease judges the records of the Lease.
func (p *point) judgeLease(t *testing.T, records <-chan watch.Event, late bool) {
	t.Helper()
	last, err := p.admin.CoordinationV1().Leases(p.namespace).Get(t.Context(), "points", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch holder := ptr.Deref(last.Spec.HolderIdentity, ""); {
	case holder == "me" && !late:
		t.Errorf("the Lease is held although no call runs")
	case holder != "me" && late && !p.stolen:
		t.Errorf("the Lease is held by %q, want it kept while a call runs", holder)
	}
	other := false
	for e := range records {
		lease := e.Object.(*coordinationv1.Lease)
		holder := ptr.Deref(lease.Spec.HolderIdentity, "")
		if other && holder == "me" {
			t.Errorf("the Lease is written while another process holds it")
		}
		other = holder == "another process"
		if lease.ResourceVersion == last.ResourceVersion {
			return
		}
	}
	t.Error("the watch of the Lease ended")
}

// operator makes the operator, and returns the queues of its controllers.
func (p *point) operator(t *testing.T) (*operator.Operator, map[string]*queue.Queue[types.NamespacedName]) {
	t.Helper()
	config := testserver.Config(t)
	config.Dial = p.dial
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &requestHook{p, next} })
	op, err := operator.New(config, operator.Options{Name: "points", LeaseNamespace: p.namespace})
	if err != nil {
		t.Fatal(err)
	}
	// A machine that is too slow to renew the Lease for a while must not lose it.
	op.Elector.LeaseDuration, op.Elector.RenewDeadline, op.Elector.StopTimeout = 150*time.Second, 120*time.Second, 4*time.Second
	op.Elector.Identity, op.Elector.RetryPeriod = "me", 250*time.Millisecond
	p.kube = kubernetes.NewForConfigOrDie(op.Config)
	factory := informers.NewSharedInformerFactoryWithOptions(p.kube, 0, informers.WithNamespace(p.namespace))
	configMaps, secrets := factory.Core().V1().ConfigMaps(), factory.Core().V1().Secrets()
	queues := map[string]*queue.Queue[types.NamespacedName]{}
	controller := func(name string, work func(context.Context, types.NamespacedName) error) *operator.Controller {
		c := op.Controller(name, p.judge(name, work))
		queues[name] = queue.New(queue.Config[types.NamespacedName]{Name: name})
		c.Loop.Queue = &judgedQueue{queues[name], p, name}
		c.Loop.Workers = 2
		return c
	}

	copies := controller("copies", func(ctx context.Context, key types.NamespacedName) error {
		cm, err := configMaps.Lister().ConfigMaps(key.Namespace).Get(key.Name)
		if err != nil {
			return err
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: key.Name, Namespace: key.Namespace}}
		if err := owner.SetController(cm, corev1.SchemeGroupVersion.WithKind("ConfigMap"), secret); err != nil {
			return err
		}
		_, err = p.kube.CoreV1().Secrets(key.Namespace).Create(ctx, secret, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	operator.For(copies, corev1.Resource("configmaps"), configMaps)
	operator.Owns(copies, corev1.Resource("secrets"), secrets)

	labels := controller("labels", func(ctx context.Context, key types.NamespacedName) error {
		secret, err := secrets.Lister().Secrets(key.Namespace).Get(key.Name)
		if err != nil || secret.Labels["seen"] != "" {
			return err
		}
		_, err = p.kube.CoreV1().Secrets(key.Namespace).Patch(ctx, key.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"seen":"yes"}}}`), metav1.PatchOptions{})
		return err
	})
	operator.For(labels, corev1.Resource("secrets"), secrets)

	var events *operator.Controller
	events = controller("events", func(_ context.Context, key types.NamespacedName) error {
		cm, err := configMaps.Lister().ConfigMaps(key.Namespace).Get(key.Name)
		if err != nil {
			return err
		}
		events.Event(cm, corev1.EventTypeNormal, "Seen", "Reconcile", "")
		return nil
	})
	operator.For(events, corev1.Resource("configmaps"), configMaps)
	return op, queues
}

// load creates the objects: some at once, one after each call, and the others at the stop.
func (p *point) load(t *testing.T) {
	for i := range pointObjects {
		if i >= 5 {
			select {
			case <-p.more:
			case <-p.stopping:
			}
		}
		if i == beforeLoss && p.lose {
			select {
			case <-p.again:
			case <-p.stopping:
			}
		}
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("o-%d", i)}}
		if _, err := p.admin.CoreV1().ConfigMaps(p.namespace).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			p.fault("create an object: %v", err)
			p.cancel()
			return
		}
		p.mu.Lock()
		p.created++
		p.mu.Unlock()
		p.settled()
	}
}

// judge returns a Func that notes its calls, waits sometimes and fails sometimes.
func (p *point) judge(name string, work func(context.Context, types.NamespacedName) error) reconcile.Func[types.NamespacedName] {
	return func(ctx context.Context, key types.NamespacedName) (res reconcile.Result, err error) {
		term, ok := leader.TermFrom(ctx)
		p.mu.Lock()
		k := p.keys[name+" "+key.Name]
		p.running[name]++
		k.handled, k.running = k.adds, true
		kind, result, wait := p.rng.IntN(10), p.rng.IntN(10), time.Duration(p.rng.IntN(300))*time.Millisecond
		hangs := p.hang == name && p.stopped.IsZero() && !slices.Contains(p.covers, "hanging")
		if hangs {
			p.covers = append(p.covers, "hanging")
		}
		if !ok || term.Number < p.term {
			p.faultLocked("a call of term %d, after one of term %d", term.Number, p.term)
		}
		p.term = max(p.term, term.Number)
		p.mu.Unlock()

		defer func() {
			p.mu.Lock()
			cause := context.Cause(ctx)
			var lost controllerkit.LostError
			switch isLost := errors.As(cause, &lost) && lost.LeadershipLost(); {
			case isLost && p.stolen:
				p.covers = append(p.covers, "call ended by the loss")
			case cause == nil || !p.stopped.IsZero(): // the cause of a stop is the context's
			case !errors.Is(cause, context.DeadlineExceeded):
				p.faultLocked("the context of a call ended before the stop, with the cause %v", cause)
			}
			p.running[name]--
			k.running, k.failed = false, err != nil || res != reconcile.Result{}
			if p.running[name] == 0 {
				stops := len(p.stops(name))
				for len(p.owed[name]) <= stops {
					p.owed[name] = append(p.owed[name], 0)
				}
				p.owed[name][stops] = p.owedLocked(name)
			}
			p.mu.Unlock()
			p.more <- struct{}{}
			p.settled()
		}()
		switch {
		case hangs:
			p.settled()
			<-p.release
			return reconcile.Result{}, nil
		case kind == 0:
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return reconcile.Result{}, ctx.Err()
			}
		case kind == 1 && p.willLose():
			p.settled()
			<-ctx.Done()
			return reconcile.Result{}, ctx.Err()
		}
		if err := work(ctx, key); err != nil && !apierrors.IsNotFound(err) {
			return reconcile.Result{}, err
		}
		switch result {
		case 0:
			return reconcile.Result{}, errors.New("failed")
		case 1:
			return reconcile.Result{RequeueAfter: wait + 1}, nil
		}
		return reconcile.Result{}, nil
	}
}

// willLose reports whether a call that only ends with its context may begin: the Lease will be
// lost, and workers are left.
func (p *point) willLose() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.lose || p.stolen || slices.Contains(p.covers, "call until the loss") {
		return false
	}
	p.covers = append(p.covers, "call until the loss")
	return true
}

func (p *point) owedLocked(name string) (n int) {
	for key, k := range p.keys {
		if strings.HasPrefix(key, name+" ") && k.owed() {
			n++
		}
	}
	return n
}

// stops returns the lines that report the end of each run of a controller.
func (p *point) stops(name string) []testlog.Line {
	return slices.DeleteFunc(p.logs.Find("Stopped controller"), func(l testlog.Line) bool { return l.Values["controller"] != name })
}

// settled is called after each change. If all is done and no request of the point's kind has
// come, it is the point.
func (p *point) settled() {
	p.mu.Lock()
	done := p.created == pointObjects
	if p.lose && !p.stolen {
		done = p.created == beforeLoss
	}
	waits := func(name string, k *progress) bool { // for the point
		return k != nil && k.running && (p.hang == name || p.lose && !p.stolen)
	}
	for i := range p.created {
		for _, name := range []string{"events", "copies", "labels"} {
			k := p.keys[fmt.Sprintf("%s o-%d", name, i)]
			if waits(name, k) {
				if name == "copies" {
					break // the Secret may be absent
				}
				continue
			}
			done = done && k != nil && !k.running && k.handled > 0 && !k.owed()
		}
	}
	if done {
		p.after = 0
	}
	p.mu.Unlock()
	if done {
		p.at("quiet")
	}
}

// at is called at each request and in each quiet moment. It makes the loss and the stop.
func (p *point) at(kind string) {
	p.mu.Lock()
	if !p.stopped.IsZero() || kind != "quiet" && kind != p.kind {
		p.mu.Unlock()
		return
	}
	if p.after--; p.after > 0 {
		p.mu.Unlock()
		return
	}
	steals := p.lose && !p.stolen
	if steals {
		p.stolen, p.lost = true, p.terms
		p.covers = append(p.covers, "loss", "loss at "+kind)
		p.nextLocked()
	} else {
		p.stopped = time.Now()
		p.covers = append(p.covers, "stop at "+kind)
		if p.stolen && p.lost > 0 && p.terms > p.lost {
			p.covers = append(p.covers, "second term")
		}
		close(p.stopping)
	}
	p.mu.Unlock()
	if !steals {
		p.cancel()
		return
	}
	taken := make(chan struct{})
	p.thieves <- func() { p.steal(); close(taken) }
	<-taken
}

// steal gives the Lease to another process until the operator's work has ended.
func (p *point) steal() {
	leases, ctx := p.admin.CoordinationV1().Leases(p.namespace), context.Background()
	write := func(holder string) error {
		for {
			lease, err := leases.Get(ctx, "points", metav1.GetOptions{})
			absent := apierrors.IsNotFound(err)
			if absent {
				lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "points"}}
			} else if err != nil {
				return err
			}
			now := metav1.NowMicro()
			transitions := ptr.Deref(lease.Spec.LeaseTransitions, 0)
			if holder != "" {
				transitions++
			}
			lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &holder, AcquireTime: &now, RenewTime: &now, LeaseDurationSeconds: ptr.To(int32(300)), LeaseTransitions: &transitions}
			if absent {
				_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
			} else {
				_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
			}
			if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
				return err
			}
		}
	}
	if err := write("another process"); err != nil {
		p.fault("take the Lease: %v", err)
	}
	giveBack := func() {
		if err := write(""); err != nil {
			p.fault("give the Lease back: %v", err)
		}
	}
	p.mu.Lock()
	busy := p.loops > 0
	if busy {
		p.idle = func() { // on a goroutine of the operator
			select {
			case p.thieves <- giveBack:
			case <-p.stopping:
			}
		}
	}
	p.mu.Unlock()
	if !busy {
		giveBack()
	}
}

// logged is called with each line of the operator's log.
func (p *point) logged(message string) {
	p.mu.Lock()
	var idle func()
	switch message {
	case "Starting controller":
		p.loops++
	case "Stopped controller":
		if p.loops--; p.loops == 0 {
			idle, p.idle = p.idle, nil
		}
	}
	p.mu.Unlock()
	if idle != nil {
		idle()
	}
}
