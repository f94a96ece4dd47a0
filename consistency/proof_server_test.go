package consistency_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/reconcile"
)

// The proof at full size: go test -race -run '^TestServerNoDuplicates$' ./consistency -creations 10000
var proofCreations = flag.Int("creations", 2_000, "how many children TestServerNoDuplicates creates with the gate")

const (
	proofWorkers  = 8
	proofChildren = 10                     // of each owner
	proofActive   = 50                     // owners at once: more would be called too rarely to meet a cache that is late
	proofLate     = 500 * time.Millisecond // how late watch events are at most
	proofWant     = "proof.example.com/children"
	proofOwner    = "proof.example.com/owner"
	byOwner       = "owner"
)

// proof is a controller on the real API server that counts the children of an owner
// in its cache and creates the missing ones, while its watches are late.
type proof struct {
	owners int
	burst  int           // how many children one call creates at most: more calls, more decisions
	gated  bool          // the store is the controller's gate
	named  bool          // children have names that follow from the owner's, instead of generateName
	fault  fault.Fault   // what happens to the answers that are lost; nothing means that the connection is reset
	lose   int           // lost are the answers of each owner's first create, and of one in so many of the others; 0 means none
	live   bool          // what was lost is looked for on the server
	wait   time.Duration // Config.AmbiguousWait
}

// proofResult is what a run came to. Surplus and missing are counted on the server.
type proofResult struct {
	surplus, missing int
	creates          int64 // requests
	held             int64 // times that the gate held a key back
	lost             int64 // answers to creates
	refused          int64 // creates of a name that was there
	took             time.Duration
}

func (r proofResult) String() string {
	return fmt.Sprintf("%d surplus, %d missing; %d creates, %d held back by the gate, %d answers lost, %d refused as existing, %v",
		r.surplus, r.missing, r.creates, r.held, r.lost, r.refused, r.took.Round(time.Millisecond))
}

// proofGate counts what the store holds back.
type proofGate struct {
	*consistency.Store
	held atomic.Int64
}

func (g *proofGate) Ready(key types.NamespacedName, wake func()) bool {
	ok := g.Store.Ready(key, wake)
	if !ok {
		g.held.Add(1)
	}
	return ok
}

// proofController is one run of a proof.
type proofController struct {
	proof
	client   kubernetes.Interface
	writes   *consistency.Store
	owners   corev1listers.ServiceAccountLister
	children cache.Indexer

	creates, lost, refused atomic.Int64

	mu      sync.Mutex
	settled map[string]bool // owners whose children are all in the cache
	done    chan struct{}   // closed when all owners are settled
	active  chan struct{}   // has a value for each owner that is not settled
}

func (c *proofController) reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	owner, err := c.owners.ServiceAccounts(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if owner.Annotations[proofWant] == "" {
		return reconcile.Result{}, nil // not one of the test's
	}
	want, err := strconv.Atoi(owner.Annotations[proofWant])
	if err != nil {
		return reconcile.Result{}, err
	}
	if c.live && consistency.LiveRead(ctx) {
		if err := c.readLive(ctx, key, owner); err != nil {
			return reconcile.Result{}, err
		}
	}
	missing, err := c.missing(owner, want)
	if err != nil {
		return reconcile.Result{}, err
	}
	if len(missing) == 0 {
		c.settle(key.Name)
	}
	for _, child := range missing[:min(len(missing), c.burst)] {
		c.creates.Add(1)
		_, err := c.client.CoreV1().ConfigMaps(key.Namespace).Create(ctx, child, metav1.CreateOptions{})
		if c.named && apierrors.IsAlreadyExists(err) {
			c.refused.Add(1) // an earlier call made it: nobody else uses these names
			continue
		}
		if err != nil {
			return reconcile.Result{}, err
		}
	}
	if len(missing) == 0 {
		return reconcile.Result{}, nil
	}
	// Controllers are called for all sorts of reasons, at any moment.
	return reconcile.Result{RequeueAfter: 1 + rand.N(proofLate/4)}, nil
}

// missing decides from the cache alone.
func (c *proofController) missing(owner *corev1.ServiceAccount, want int) ([]*corev1.ConfigMap, error) {
	have, err := c.children.ByIndex(byOwner, string(owner.UID))
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	for _, child := range have {
		there[child.(*corev1.ConfigMap).Name] = true
	}
	var missing []*corev1.ConfigMap
	for n := range want {
		child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Labels:          map[string]string{proofOwner: string(owner.UID)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ServiceAccount"))},
		}}
		if c.named {
			child.Name = fmt.Sprintf("%s-%d", owner.Name, n)
		} else {
			child.GenerateName = owner.Name + "-"
		}
		if c.named && !there[child.Name] || !c.named && n >= len(have) {
			missing = append(missing, child)
		}
	}
	return missing, nil
}

// readLive is what a controller does about a write whose answer was lost: it asks
// the server, and waits until its cache shows what the server has.
func (c *proofController) readLive(ctx context.Context, key types.NamespacedName, owner *corev1.ServiceAccount) error {
	list, err := c.client.CoreV1().ConfigMaps(key.Namespace).List(ctx, metav1.ListOptions{LabelSelector: proofOwner + "=" + string(owner.UID)})
	if err != nil {
		return err
	}
	// The version of the list itself counts the writes of all resources. In a quiet
	// cluster an informer reaches it with the next bookmark only.
	version := list.ResourceVersion
	for n := range list.Items {
		rv := list.Items[n].ResourceVersion
		if order, err := resourceversion.CompareResourceVersion(rv, version); n == 0 || err == nil && order > 0 {
			version = rv
		}
	}
	c.writes.WroteAt(key, owner.UID, corev1.Resource("configmaps"), version)
	return c.writes.EnsureReady(key) // an error that is stale: the gate wakes the key
}

// settle notes that nothing is left to do. No call of the owner creates anything
// after that, since the cache loses no child.
func (c *proofController) settle(owner string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.settled[owner] {
		c.settled[owner] = true
		<-c.active
		if len(c.settled) == c.proof.owners {
			close(c.done)
		}
	}
}

// run runs the controller until its cache shows enough children for each owner, and
// then counts them on the server.
func (p proof) run(t *testing.T) proofResult {
	t.Helper()
	begin := time.Now()
	ns := testserver.Namespace(t)
	admin := kubernetes.NewForConfigOrDie(testserver.Config(t))
	c := &proofController{
		proof: p, writes: consistency.New(consistency.Config{AmbiguousWait: p.wait}),
		settled: map[string]bool{}, done: make(chan struct{}), active: make(chan struct{}, proofActive),
	}
	gate := &proofGate{Store: c.writes}

	config := testserver.Config(t)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	if p.lose > 0 {
		var creates atomic.Int64
		var begun sync.Map // owners with a create
		process, err := fault.New(config, func(op *fault.Op) fault.Fault {
			if op.Verb != "create" || op.Resource != "configmaps" {
				return fault.Fault{}
			}
			_, later := begun.LoadOrStore(op.Name[:strings.LastIndex(op.Name, "-")], true)
			if later && creates.Add(1)%int64(p.lose) != 0 {
				return fault.Fault{}
			}
			f := p.fault
			f.Lose = f.Response == nil && !f.Truncate
			f.Finally = func() { c.lost.Add(1) }
			return f
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer process.Kill()
		config = process.Config()
	}
	config.Wrap(c.writes.Wrap)
	c.client = kubernetes.NewForConfigOrDie(config)

	config = testserver.Config(t)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return lateWatches{next, proofLate} })
	factory := informers.NewSharedInformerFactoryWithOptions(kubernetes.NewForConfigOrDie(config), 0, informers.WithNamespace(ns))
	owners, children := factory.Core().V1().ServiceAccounts(), factory.Core().V1().ConfigMaps()
	c.owners, c.children = owners.Lister(), children.Informer().GetIndexer()
	if err := children.Informer().AddIndexers(cache.Indexers{byOwner: func(obj any) ([]string, error) {
		if owner := metav1.GetControllerOf(obj.(*corev1.ConfigMap)); owner != nil {
			return []string{string(owner.UID)}, nil
		}
		return nil, nil
	}}); err != nil {
		t.Fatal(err)
	}
	if err := c.writes.AddInformer(corev1.Resource("configmaps"), children.Informer()); err != nil {
		t.Fatal(err)
	}

	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](5*time.Millisecond, time.Second))
	add := func(obj any) {
		if owner, ok := obj.(*corev1.ServiceAccount); ok {
			queue.Add(types.NamespacedName{Namespace: ns, Name: owner.Name})
		} else if owner := metav1.GetControllerOf(obj.(*corev1.ConfigMap)); owner != nil {
			queue.Add(types.NamespacedName{Namespace: ns, Name: owner.Name})
		}
	}
	controller := &reconcile.Controller[types.NamespacedName]{Name: "proof", Queue: queue, Reconcile: c.reconcile, Workers: proofWorkers}
	if p.gated {
		controller.Gate = gate
	}
	for _, informer := range []cache.SharedIndexInformer{owners.Informer(), children.Informer()} {
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) }})
		if err != nil {
			t.Fatal(err)
		}
		controller.HasSynced = append(controller.HasSynced, informer.HasSyncedChecker(), registration.HasSyncedChecker())
	}

	// What is lost is logged as an error, by the hundred.
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
	factory.StartWithContext(ctx)
	ended := make(chan error, 1)
	go func() { ended <- controller.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		factory.Shutdown()
	}()

	patience, stop := context.WithTimeout(ctx, time.Minute+time.Duration(p.owners)*200*time.Millisecond)
	defer stop()
	p.createOwners(t, patience, admin, ns, c.active)
	select {
	case <-c.done:
	case <-patience.Done():
		c.mu.Lock()
		t.Errorf("%d of %d owners have their children after %v", len(c.settled), p.owners, time.Since(begin))
		c.mu.Unlock()
	}

	list, err := admin.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{LabelSelector: proofOwner})
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for n := range list.Items {
		counts[metav1.GetControllerOf(&list.Items[n]).Name]++
	}
	r := proofResult{creates: c.creates.Load(), held: gate.held.Load(), lost: c.lost.Load(), refused: c.refused.Load(), took: time.Since(begin)}
	for n := range p.owners {
		over := counts[fmt.Sprintf("owner-%d", n)] - proofChildren
		r.surplus += max(over, 0)
		r.missing += max(-over, 0)
	}
	return r
}

// until runs the proof. If it wants duplicates, it runs it up to five times until there is one:
// the watches are late by chance, and on a busy machine the calls are later.
func (p proof) until(t *testing.T, duplicates bool) proofResult {
	t.Helper()
	r := p.run(t)
	for tries := 1; duplicates && r.surplus == 0 && tries < 5; tries++ {
		r = p.run(t)
	}
	return r
}

// createOwners creates the owners, as many at once as active takes.
func (p proof) createOwners(t *testing.T, ctx context.Context, client kubernetes.Interface, ns string, active chan<- struct{}) {
	t.Helper()
	for n := range p.owners {
		select {
		case active <- struct{}{}:
		case <-ctx.Done():
			return
		}
		owner := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("owner-%d", n), Annotations: map[string]string{proofWant: strconv.Itoa(proofChildren)},
		}}
		if _, err := client.CoreV1().ServiceAccounts(ns).Create(ctx, owner, metav1.CreateOptions{}); err != nil {
			t.Fatalf("create an owner: %v", err)
		}
	}
}

// A controller that counts its children in a cache which is up to half a second late
// makes no child twice with the gate, and makes many without.
//
// Proves C1, C3.
func TestServerNoDuplicates(t *testing.T) {
	for _, tt := range []struct {
		name       string
		proof      proof
		duplicates bool
	}{
		{"with the gate", proof{owners: max(1, *proofCreations/proofChildren), burst: 3, gated: true}, false},
		{"without", proof{owners: 10, burst: 3}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // most of the time each of them waits for its watches
			r := tt.proof.until(t, tt.duplicates)
			t.Logf("%d owners: %v", tt.proof.owners, r)
			if r.missing > 0 {
				t.Errorf("%d children are missing, want 0", r.missing)
			}
			if (r.surplus > 0) != tt.duplicates {
				t.Errorf("%d children too many, want some: %t", r.surplus, tt.duplicates)
			}
			if want := int64(tt.proof.owners / 4); tt.proof.gated && r.held < want {
				t.Errorf("the gate held keys back %d times, want at least %d: the owners are called too rarely to prove anything", r.held, want)
			}
		})
	}
}

// Creates are carried out, and their connections reset, their answers cut off, or an error
// of a server sent instead, also one that client-go would repeat by itself. Who asks
// LiveRead and then reads live creates nothing twice; neither does who gives names that
// follow from the owner's, without asking. Generated names without a live read give
// duplicates, even with the gate: it knows no version to wait for. An AmbiguousWait that is
// longer than the watches are late hides that, and so it is turned off elsewhere.
//
// Proves C4 and C5.
func TestServerLostCreates(t *testing.T) {
	answered := func(code, retryAfter int, reason metav1.StatusReason) fault.Fault {
		return fault.Fault{Commit: true, Response: &fault.Response{Code: code, Reason: reason, Message: "gone wrong", RetryAfter: retryAfter}}
	}
	for _, tt := range []struct {
		name       string
		proof      proof
		duplicates bool
	}{
		{"generateName and a live read", proof{owners: 30, burst: proofChildren, gated: true, lose: 4, live: true, wait: -1}, false},
		{"an answer that is cut off", proof{owners: 6, burst: proofChildren, gated: true, lose: 4, live: true, wait: -1, fault: fault.Fault{Truncate: true}}, false},
		{"500", proof{owners: 6, burst: proofChildren, gated: true, lose: 4, live: true, wait: -1, fault: answered(500, 0, metav1.StatusReasonInternalError)}, false},
		{"503 with Retry-After", proof{owners: 6, burst: proofChildren, gated: true, lose: 4, live: true, wait: -1, fault: answered(503, 1, metav1.StatusReasonServiceUnavailable)}, false},
		{"504, and no live read", proof{owners: 10, burst: proofChildren, gated: true, lose: 50, wait: -1, fault: answered(504, 0, metav1.StatusReasonTimeout)}, true},
		{"generateName and a wait", proof{owners: 10, burst: proofChildren, gated: true, lose: 50, wait: 6 * proofLate}, false},
		{"generateName alone", proof{owners: 10, burst: proofChildren, gated: true, lose: 50, wait: -1}, true},
		{"names that follow from the owner", proof{owners: 30, burst: proofChildren, gated: true, lose: 4, named: true, wait: -1}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // most of the time each of them waits for its watches
			r := tt.proof.until(t, tt.duplicates)
			t.Logf("%d owners: %v", tt.proof.owners, r)
			if r.missing > 0 {
				t.Errorf("%d children are missing, want 0", r.missing)
			}
			if (r.surplus > 0) != tt.duplicates {
				t.Errorf("%d children too many, want some: %t", r.surplus, tt.duplicates)
			}
			if r.lost < int64(tt.proof.owners) {
				t.Errorf("%d answers were lost, want at least %d", r.lost, tt.proof.owners)
			}
			if tt.proof.named && r.refused == 0 {
				t.Error("no create was repeated and refused: the test proves nothing")
			}
		})
	}
}
