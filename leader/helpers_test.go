package leader_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
)

// The default timings, which most tests use.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
	renewPeriod   = retryPeriod * 11 / 10  // the longest time from one renewal to the next
	soon          = 100 * time.Millisecond // more than the jitter before a claim
)

// stranger returns a Lease of a holder that does not run, with a wrong clock.
func stranger(seconds *int32) *coordinationv1.Lease {
	yesterday := metav1.NewMicroTime(time.Now().Add(-24 * time.Hour))
	lease := &coordinationv1.Lease{}
	lease.Namespace, lease.Name = namespace, leaseName
	lease.Spec = coordinationv1.LeaseSpec{
		HolderIdentity:       ptr.To("stranger"),
		LeaseDurationSeconds: seconds,
		LeaseTransitions:     ptr.To[int32](7),
		AcquireTime:          &yesterday,
		RenewTime:            &yesterday,
	}
	return lease
}

type recordedMetrics struct {
	mu sync.Mutex
	observed
}

type observed struct {
	leading     bool
	calls       int
	transitions int
	took        time.Duration
	renewals    int
	slow        int
	slowest     time.Duration
	name        string
}

func (m *recordedMetrics) LeaderStatus(name string, leading bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leading, m.name = leading, name
	m.calls++
}

func (m *recordedMetrics) LeaderTransition(_ string, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.transitions++
	m.took = took
}

func (m *recordedMetrics) LeaderRenewal(_ string, took time.Duration, slow bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.renewals++
	if slow {
		m.slow++
	}
	m.slowest = max(m.slowest, took)
}

// now returns the observations after all goroutines are blocked.
func (m *recordedMetrics) now() observed {
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.observed
}

const (
	namespace = "ns"
	leaseName = "controller"
)

// A store holds one Lease the way the API server does: versions, UIDs,
// conflicts, create-on-update, watches that begin with the present state.
// client-go's fake has no resource versions, so it cannot show two writers.
type store struct {
	calls sync.WaitGroup // requests under way, also those whose client gave up

	admit func(*coordinationv1.Lease) // changes what is stored; nil changes nothing

	mu       sync.Mutex
	lease    *coordinationv1.Lease
	version  int
	uids     int
	watchers map[*watcher]bool
	history  []record
}

// A record is one stored version of the Lease; holder "<deleted>" if it went.
type record struct {
	at     time.Time
	holder string
	number int32
}

func newStore() *store { return &store{watchers: map[*watcher]bool{}} }

func gone() error {
	return apierrors.NewNotFound(coordinationv1.Resource("leases"), leaseName)
}

func (s *store) get() (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == nil {
		return nil, gone()
	}
	return s.lease.DeepCopy(), nil
}

func (s *store) create(lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease != nil {
		return nil, apierrors.NewAlreadyExists(coordinationv1.Resource("leases"), leaseName)
	}
	s.uids++
	lease = lease.DeepCopy()
	lease.UID = types.UID(fmt.Sprintf("uid-%d", s.uids))
	return s.storeLocked(watch.Added, lease), nil
}

func (s *store) update(lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	if s.lease == nil && lease.UID == "" {
		s.mu.Unlock()
		return s.create(lease) // as the API server does for Leases
	}
	defer s.mu.Unlock()
	if s.lease == nil || s.lease.UID != lease.UID || s.lease.ResourceVersion != lease.ResourceVersion {
		return nil, apierrors.NewConflict(coordinationv1.Resource("leases"), leaseName, errors.New("the object has been modified"))
	}
	return s.storeLocked(watch.Modified, lease.DeepCopy()), nil
}

func (s *store) storeLocked(kind watch.EventType, lease *coordinationv1.Lease) *coordinationv1.Lease {
	if s.admit != nil {
		s.admit(lease)
	}
	s.version++
	lease.ResourceVersion = strconv.Itoa(s.version)
	s.lease = lease
	s.history = append(s.history, record{time.Now(), ptr.Deref(lease.Spec.HolderIdentity, ""), ptr.Deref(lease.Spec.LeaseTransitions, 0)})
	for w := range s.watchers {
		w.push(watch.Event{Type: kind, Object: lease.DeepCopy()})
	}
	return lease.DeepCopy()
}

func (s *store) delete() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == nil {
		return
	}
	s.version++
	s.lease.ResourceVersion = strconv.Itoa(s.version) // as the API server does
	for w := range s.watchers {
		w.push(watch.Event{Type: watch.Deleted, Object: s.lease.DeepCopy()})
	}
	s.history = append(s.history, record{at: time.Now(), holder: "<deleted>"})
	s.lease = nil
}

// edit changes the Lease as a stranger would: by a read and an update.
func (s *store) edit(t *testing.T, change func(*coordinationv1.Lease)) {
	t.Helper()
	lease, err := s.get()
	if err != nil {
		t.Fatal(err)
	}
	change(lease)
	if _, err := s.update(lease); err != nil {
		t.Fatal(err)
	}
}

func (s *store) watches() []*watcher {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.watchers))
}

func (s *store) records() []record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]record(nil), s.history...)
}

// A fault is the fate of one request.
type fault struct {
	before time.Duration // until the API server has it
	after  time.Duration // until the client has the response
	lost   bool          // it never arrives
	cut    bool          // its response never arrives
	err    error         // refused with this error
}

// A client reaches the store through faults. It satisfies all of client-go's
// LeaseInterface, so that client-go's elector can use it too.
type client struct {
	coordinationv1client.LeaseInterface
	*store

	before func(ctx context.Context, verb string) error // refuses a request before it is sent; nil refuses none

	faulting sync.Mutex // held while faults runs, so that it needs no lock of its own

	mu     sync.Mutex
	faults func(verb string) fault
	down   bool
	delay  time.Duration // of watch events
	count  map[string]int
}

func (s *store) client() *client { return &client{store: s, count: map[string]int{}} }

func (c *client) Leases(string) coordinationv1client.LeaseInterface { return c }

// partition cuts the client off, watches included, or connects it again.
func (c *client) partition(down bool) {
	c.mu.Lock()
	c.down = down
	c.mu.Unlock()
}

func (c *client) on(faults func(verb string) fault) {
	c.mu.Lock()
	c.faults = faults
	c.mu.Unlock()
}

func (c *client) calls(verb string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count[verb]
}

func (c *client) fault(verb string) fault {
	c.mu.Lock()
	c.count[verb]++
	faults := c.faults
	if c.down {
		faults = func(string) fault { return fault{lost: true} }
	}
	c.mu.Unlock()
	if faults == nil {
		return fault{}
	}
	c.faulting.Lock()
	defer c.faulting.Unlock()
	return faults(verb)
}

func (c *client) call(ctx context.Context, verb string, do func() (*coordinationv1.Lease, error)) (*coordinationv1.Lease, error) {
	type result struct {
		lease *coordinationv1.Lease
		err   error
	}
	if c.before != nil {
		if err := c.before(ctx, verb); err != nil {
			return nil, err
		}
	}
	f := c.fault(verb)
	response := make(chan result, 1)
	c.store.calls.Go(func() {
		time.Sleep(f.before)
		if f.lost {
			return
		}
		r := result{err: f.err}
		if f.err == nil {
			r.lease, r.err = do()
		}
		time.Sleep(f.after)
		if !f.cut {
			response <- r
		}
	})
	select {
	case r := <-response:
		return r.lease, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *client) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	return c.call(ctx, "get", c.get)
}

func (c *client) Create(ctx context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	lease = lease.DeepCopy()
	return c.call(ctx, "create", func() (*coordinationv1.Lease, error) { return c.create(lease) })
}

func (c *client) Update(ctx context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	lease = lease.DeepCopy()
	return c.call(ctx, "update", func() (*coordinationv1.Lease, error) { return c.update(lease) })
}

func (c *client) Watch(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
	var w *watcher
	_, err := c.call(ctx, "watch", func() (*coordinationv1.Lease, error) {
		w = &watcher{client: c, out: make(chan watch.Event), wake: make(chan struct{}, 1), done: make(chan struct{})}
		c.store.mu.Lock()
		defer c.store.mu.Unlock()
		if c.lease != nil {
			w.push(watch.Event{Type: watch.Added, Object: c.lease.DeepCopy()})
		}
		c.watchers[w] = true
		c.store.calls.Go(w.run)
		// A client that gave up meanwhile must not leave the watch behind.
		context.AfterFunc(ctx, w.Stop)
		return nil, nil
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// A watcher delivers events in order, each after the client's delay.
type watcher struct {
	client *client
	out    chan watch.Event
	wake   chan struct{}
	done   chan struct{}
	once   sync.Once

	mu    sync.Mutex
	queue []watch.Event
	due   []time.Time
}

func (w *watcher) push(event watch.Event) {
	w.client.mu.Lock()
	delay := w.client.delay
	w.client.mu.Unlock()
	w.mu.Lock()
	w.queue = append(w.queue, event)
	w.due = append(w.due, time.Now().Add(delay))
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watcher) run() {
	defer close(w.out)
	for {
		w.mu.Lock()
		var event watch.Event
		var due time.Time
		some := len(w.queue) > 0
		if some {
			event, due = w.queue[0], w.due[0]
			w.queue, w.due = w.queue[1:], w.due[1:]
		}
		w.mu.Unlock()
		if !some {
			select {
			case <-w.wake:
				continue
			case <-w.done:
				return
			}
		}
		// No timer without a delay: see docs/synctest-race.md.
		if delay := time.Until(due); delay > 0 {
			select {
			case <-time.After(delay):
			case <-w.done:
				return
			}
		}
		w.client.mu.Lock()
		down := w.client.down
		w.client.mu.Unlock()
		if down {
			continue // lost; a real connection would stall and break, which is kinder
		}
		select {
		case w.out <- event:
		case <-w.done:
			return
		}
	}
}

func (w *watcher) ResultChan() <-chan watch.Event { return w.out }

func (w *watcher) Stop() {
	w.once.Do(func() {
		w.client.store.mu.Lock()
		delete(w.client.watchers, w)
		w.client.store.mu.Unlock()
		close(w.done)
	})
}

// bubble runs test in a synctest bubble with an empty store, and waits for the
// requests that are still under way at its end.
func bubble(t *testing.T, test func(t *testing.T, s *store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		defer s.calls.Wait()
		test(t, s)
	})
}

// A replica is one running Elector with work that reports.
type replica struct {
	*leader.Elector
	client *client
	cancel context.CancelCauseFunc
	starts chan context.Context // a term began
	ended  chan error           // Run returned
}

// elector is an Elector with short timings on a client of its own.
func (s *store) elector(identity string) (*leader.Elector, *client) {
	c := s.client()
	return &leader.Elector{
		Leases: c, Namespace: namespace, Name: leaseName, Identity: identity,
	}, c
}

// untilDone is work that stops when it is asked to.
func untilDone(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// start runs the Elector with work that announces itself and then does work.
func start(t *testing.T, e *leader.Elector, work func(context.Context) error) *replica {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	r := &replica{Elector: e, cancel: cancel, starts: make(chan context.Context, 100), ended: make(chan error, 1)}
	r.client, _ = e.Leases.(*client)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.ended <- e.Run(ctx, func(ctx context.Context) error {
			r.starts <- ctx
			return work(ctx)
		})
	}()
	t.Cleanup(func() { // a test that failed has not stopped it
		cancel(nil)
		<-done
	})
	return r
}

// leads waits for the replica's next term, but not longer than limit.
func (r *replica) leads(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	select {
	case ctx := <-r.starts:
		return ctx
	case err := <-r.ended:
		t.Fatalf("%s: Run returned %v, want a term", r.Identity, err)
	case <-time.After(limit):
		t.Fatalf("%s does not lead after %v", r.Identity, limit)
	}
	return nil
}

// stop cancels the replica and returns the result of its Run.
func (r *replica) stop() error {
	r.cancel(nil)
	return <-r.ended
}

func mustTerm(t *testing.T, ctx context.Context) leader.Term {
	t.Helper()
	term, ok := leader.TermFrom(ctx)
	if !ok {
		t.Fatal("TermFrom() = false, want the term of lead's context")
	}
	return term
}

// validity is the second context that lead's context carries, found the way a
// package finds it that does not import leader.
func validity(t *testing.T, ctx context.Context) context.Context {
	t.Helper()
	v, ok := ctx.Value(struct{ LeaseValidity struct{} }{}).(context.Context)
	if !ok {
		t.Fatal("lead's context carries no validity context")
	}
	return v
}

func since(start time.Time) time.Duration { return time.Since(start).Round(time.Millisecond) }

// fencePatience bounds the asynchronous work of the API server.
const fencePatience = 30 * time.Second

// A fencedShop is a namespace with a Lease, and a ServiceAccount user who may do
// anything in it.
type fencedShop struct {
	ns, user string
	policy   string // name of the policy and its binding
	uid      types.UID
	leases   coordinationv1client.LeaseInterface
	resource schema.GroupVersionResource
}

var fenceConfigMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

var anything = rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}

// newShop is a shop without a fence: anybody can stamp.
func newShop(t *testing.T, resource schema.GroupVersionResource, spec coordinationv1.LeaseSpec) *fencedShop {
	t.Helper()
	s := &fencedShop{ns: testserver.Namespace(t), resource: resource}
	s.policy = s.ns
	s.user = "system:serviceaccount:" + s.ns + ":shop-controller"
	s.leases = fenceClients(t, testserver.Config(t)).CoordinationV1().Leases(s.ns)
	allow(t, s.ns, s.user, anything)
	lease, err := s.leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.uid = lease.UID
	return s
}

// fence puts a Fence into force.
func (s *fencedShop) fence(t *testing.T, change ...func(*leader.Fence)) {
	t.Helper()
	fence := leader.Fence{
		Name: s.policy, LeaseNamespace: s.ns, LeaseName: "shop", Users: []string{s.user},
		Resources: []schema.GroupResource{s.resource.GroupResource()},
	}
	for _, c := range change {
		c(&fence)
	}
	policy, binding, err := fence.Policy()
	if err != nil {
		t.Fatal(err)
	}
	for _, obj := range []any{policy, binding} {
		data, err := json.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		createAny(t, data)
	}
	s.awaitFence(t)
}

func newFencedShop(t *testing.T, resource schema.GroupVersionResource, spec coordinationv1.LeaseSpec, change ...func(*leader.Fence)) *fencedShop {
	t.Helper()
	s := newShop(t, resource, spec)
	s.fence(t, change...)
	return s
}

// awaitFence waits until the policy is in force. There is no event for that, so
// dry runs of a write that it refuses are repeated.
func (s *fencedShop) awaitFence(t *testing.T) {
	t.Helper()
	eventually(t, "the fence is in force", func() error {
		_, err := s.as(t, "").Create(t.Context(), s.object("probe", "malformed"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "it must be <Lease UID>/<number>") {
			return fmt.Errorf("the answer to a malformed term is: %v", err)
		}
		return nil
	})
}

// eventually repeats try, for changes that have no event.
func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	deadline := time.After(fencePatience)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("%s: not after %v: %v", what, fencePatience, err)
		}
	}
}

func fenceClients(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return clients
}

// allow grants the rules in the namespace to the user.
func allow(t *testing.T, ns, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	rbac := fenceClients(t, testserver.Config(t)).RbacV1()
	name := "work-" + strings.ReplaceAll(user, ":", "-")
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	if _, err := rbac.Roles(ns).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	if _, err := rbac.RoleBindings(ns).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// createAny creates an object from YAML or JSON; a cluster-scoped one is deleted
// when the test ends.
func createAny(t *testing.T, doc []byte) *unstructured.Unstructured {
	t.Helper()
	var obj unstructured.Unstructured
	if err := yaml.Unmarshal(doc, &obj.Object); err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	gvk := obj.GroupVersionKind()
	plural := strings.ToLower(gvk.Kind) + "s"
	if before, ok := strings.CutSuffix(plural, "policys"); ok {
		plural = before + "policies"
	}
	resource := client.Resource(gvk.GroupVersion().WithResource(plural)).Namespace(obj.GetNamespace())
	created, err := resource.Create(t.Context(), &obj, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		t.Fatalf("create %s %s: %v", gvk.Kind, obj.GetName(), err)
	}
	if obj.GetNamespace() == "" {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // the test's own has ended
			defer cancel()
			if err := resource.Delete(ctx, obj.GetName(), metav1.DeleteOptions{}); err != nil {
				t.Errorf("delete %s %s: %v", gvk.Kind, obj.GetName(), err)
			}
		})
	}
	return created
}

// as is a client of the ServiceAccount with terms in the name of the user, or of a
// person who is an administrator if the first is "person".
func (s *fencedShop) as(t *testing.T, terms ...string) dynamic.ResourceInterface {
	t.Helper()
	config := testserver.Config(t)
	if terms[0] != "person" {
		config.Impersonate.UserName = s.user
		if terms[0] != "" {
			config.Impersonate.Extra = map[string][]string{stampKey: terms}
		}
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client.Resource(s.resource).Namespace(s.ns)
}

func (s *fencedShop) term(number int) string { return fmt.Sprintf("%s/%d", s.uid, number) }

// object has the annotation if stamp is not "".
func (s *fencedShop) object(name, stamp string) *unstructured.Unstructured {
	kind := map[string]string{"configmaps": "ConfigMap", "widgets": "Widget"}[s.resource.Resource]
	obj := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": name}}}
	obj.SetGroupVersionKind(s.resource.GroupVersion().WithKind(kind))
	if stamp != "" {
		obj.SetAnnotations(map[string]string{stampKey: stamp})
	}
	return obj
}

// write writes the object by the verb, with the stamp unless it is empty.
func (s *fencedShop) write(t *testing.T, client dynamic.ResourceInterface, verb, name, stamp string) error {
	t.Helper()
	var err error
	ctx := t.Context()
	switch verb {
	case "create":
		_, err = client.Create(ctx, s.object(name, stamp), metav1.CreateOptions{})
	case "apply":
		obj := s.object(name, stamp)
		obj.SetLabels(map[string]string{"by": "apply"})
		_, err = client.Apply(ctx, name, obj, metav1.ApplyOptions{FieldManager: "shop", Force: true})
	case "patch":
		obj := s.object(name, stamp)
		obj.SetLabels(map[string]string{"by": "patch"})
		data, merr := json.Marshal(map[string]any{"metadata": obj.Object["metadata"]})
		if merr != nil {
			t.Fatal(merr)
		}
		_, err = client.Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{})
	case "delete":
		err = client.Delete(ctx, name, metav1.DeleteOptions{})
	case "update", "status":
		obj, gerr := s.as(t, "person").Get(ctx, name, metav1.GetOptions{})
		if gerr != nil {
			t.Fatal(gerr)
		}
		if stamp != "" {
			obj.SetAnnotations(map[string]string{stampKey: stamp})
		}
		if verb == "update" {
			obj.SetLabels(map[string]string{"by": "update"})
			_, err = client.Update(ctx, obj, metav1.UpdateOptions{})
			break
		}
		obj.Object["status"] = map[string]any{"phase": "written"}
		_, err = client.UpdateStatus(ctx, obj, metav1.UpdateOptions{})
	default:
		t.Fatalf("verb %q", verb)
	}
	return err
}

// judge holds that err is a refusal by the fence, or nil.
func (s *fencedShop) judge(t *testing.T, err error, refused bool) {
	t.Helper()
	switch {
	case !refused && err != nil:
		t.Errorf("refused: %v; want it to pass", err)
	case refused && err == nil:
		t.Error("passed; want it refused")
	case refused && !strings.Contains(err.Error(), "ValidatingAdmissionPolicy '"+s.policy+"' with binding '"+s.policy+"' denied request: the "):
		t.Errorf("error = %v; want one of the fence", err)
	}
}

// held is the record of a Lease that is held in the term.
func held(number int32) coordinationv1.LeaseSpec {
	return coordinationv1.LeaseSpec{HolderIdentity: ptr.To("b"), LeaseDurationSeconds: ptr.To[int32](15), LeaseTransitions: &number}
}

// widgets is a resource of its own, whose status drops metadata.
func widgets(t *testing.T, group string) schema.GroupVersionResource {
	t.Helper()
	testserver.InstallCRD(t, map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "widgets." + group},
		"spec": map[string]any{
			"group": group, "scope": "Namespaced",
			"names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
					"status": map[string]any{"type": "object", "properties": map[string]any{"phase": map[string]any{"type": "string"}}},
				}}},
			}},
		},
	})
	return schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}
}

func within[T any](t *testing.T, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(fencePatience):
		t.Fatalf("%s: not within %v", what, fencePatience)
	}
	return v
}
