package leader_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
)

// patience bounds what should take milliseconds on a server that may be busy. It
// is less than the RetryPeriod of serverElector.
const patience = time.Minute

func newClient(t *testing.T, cfg *rest.Config) *kubernetes.Clientset {
	t.Helper()
	clients, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return clients
}

// serverElector is an Elector whose next poll is so far away that whatever it
// does soon, the watch made it do.
func serverElector(leases leader.LeaseClient, ns, identity string) *leader.Elector {
	return &leader.Elector{
		Leases: leases, Namespace: ns, Name: leaseName, Identity: identity,
		LeaseDuration: 5 * time.Minute, RenewDeadline: 4 * time.Minute, RetryPeriod: 2 * time.Minute,
	}
}

// fast makes the Elector poll, renew and expire within seconds.
func fast(e *leader.Elector) *leader.Elector {
	e.LeaseDuration, e.RenewDeadline, e.RetryPeriod = 6*time.Second, 5*time.Second, 200*time.Millisecond
	return e
}

// spied forwards calls and reports them.
type spied struct {
	leader.LeaseClient
	watching chan struct{} // a watch was established

	mu      sync.Mutex
	updates []error
	creates int
}

func spy(c leader.LeaseClient) *spied {
	return &spied{LeaseClient: c, watching: make(chan struct{}, 100)}
}

func (s *spied) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	w, err := s.LeaseClient.Watch(ctx, opts)
	if err == nil {
		s.watching <- struct{}{}
	}
	return w, err
}

func (s *spied) Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	got, err := s.LeaseClient.Update(ctx, lease, opts)
	s.mu.Lock()
	s.updates = append(s.updates, err)
	s.mu.Unlock()
	return got, err
}

func (s *spied) Create(ctx context.Context, lease *coordinationv1.Lease, opts metav1.CreateOptions) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	s.creates++
	s.mu.Unlock()
	return s.LeaseClient.Create(ctx, lease, opts)
}

// TestServerHandOver: of three replicas one leads at a time, and a released Lease
// is taken at once, although the next poll is minutes away.
//
// Proves L6.
func TestServerHandOver(t *testing.T) {
	ns := testserver.Namespace(t)
	starts := make(chan string, 3)
	terms := make(chan leader.Term, 3)
	replicas := map[string]*replica{}
	for _, name := range []string{"a", "b", "c"} {
		leases := spy(newClient(t, testserver.Config(t)).CoordinationV1().Leases(ns))
		replicas[name] = start(t, serverElector(leases, ns, name), func(ctx context.Context) error {
			starts <- name
			terms <- mustTerm(t, ctx)
			return untilDone(ctx)
		})
		<-leases.watching
	}
	var last leader.Term
	for n := range 3 {
		began := time.Now()
		select {
		case name := <-starts:
			t.Logf("%s leads after %v", name, time.Since(began).Round(time.Millisecond))
			term := <-terms
			if n > 0 && (term.LeaseUID != last.LeaseUID || term.Number != last.Number+1) {
				t.Errorf("term = %v after %v, want the next number", term, last)
			}
			last = term
			if len(starts) > 0 {
				t.Errorf("%s leads beside %s", <-starts, name)
			}
			if err := replicas[name].stop(); err != nil {
				t.Errorf("%s: Run() = %v, want nil", name, err)
			}
		case <-time.After(patience):
			t.Fatalf("nobody leads %v after the release", patience)
		}
	}
	lease, err := newClient(t, testserver.Config(t)).CoordinationV1().Leases(ns).Get(t.Context(), leaseName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if *lease.Spec.HolderIdentity != "" || *lease.Spec.LeaseDurationSeconds != 1 {
		t.Errorf("released Lease: holder %q, %d s, want the API server to store \"\" and 1", *lease.Spec.HolderIdentity, *lease.Spec.LeaseDurationSeconds)
	}
}

// TestServerTakeover: a stranger in the Lease is noticed at once, and neither
// overwritten nor released.
//
// Proves L5.
func TestServerTakeover(t *testing.T) {
	ns := testserver.Namespace(t)
	leases := newClient(t, testserver.Config(t)).CoordinationV1().Leases(ns)
	watching := spy(leases)
	r := start(t, serverElector(watching, ns, "a"), untilDone)
	ctx := r.leads(t, patience)
	<-watching.watching
	edit(t, leases, func(l *coordinationv1.Lease) { *l.Spec.HolderIdentity = "stranger" })
	await(t, ctx)
	if !errors.Is(context.Cause(ctx), leader.ErrLost) {
		t.Errorf("cause = %v, want ErrLost", context.Cause(ctx))
	}
	if err := r.stop(); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	lease, err := leases.Get(t.Context(), leaseName, metav1.GetOptions{})
	if err != nil || *lease.Spec.HolderIdentity != "stranger" {
		t.Errorf("Get() = %v, %v, want the stranger's record", lease, err)
	}
}

func edit(t *testing.T, leases coordinationv1client.LeaseInterface, change func(*coordinationv1.Lease)) {
	t.Helper()
	lease, err := leases.Get(t.Context(), leaseName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	change(lease)
	if _, err := leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func await(t *testing.T, ctx context.Context) {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(patience):
		t.Fatalf("lead's context goes on after %v", patience)
	}
}

// TestServerLeaseDeleted: the leader ends at once and leads again with another
// Lease, and a later term.
func TestServerLeaseDeleted(t *testing.T) {
	ns := testserver.Namespace(t)
	leases := newClient(t, testserver.Config(t)).CoordinationV1().Leases(ns)
	watching := spy(leases)
	r := start(t, serverElector(watching, ns, "a"), untilDone)
	ctx := r.leads(t, patience)
	<-watching.watching
	if err := leases.Delete(t.Context(), leaseName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, ctx)
	first, second := mustTerm(t, ctx), mustTerm(t, r.leads(t, patience))
	if second.LeaseUID == first.LeaseUID || second.Number <= first.Number {
		t.Errorf("term = %v after %v, want another UID and a higher number", second, first)
	}
	if err := r.stop(); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

// TestServerRenewalDoesNotRecreate: an update creates a Lease that does not
// exist, unless it carries the UID of the one that was deleted.
//
// Proves L5.
func TestServerRenewalDoesNotRecreate(t *testing.T) {
	ns := testserver.Namespace(t)
	leases := newClient(t, testserver.Config(t)).CoordinationV1().Leases(ns)
	blind := spy(noWatch{leases})
	r := start(t, fast(serverElector(blind, ns, "a")), untilDone)
	ctx := r.leads(t, patience)
	if err := leases.Delete(t.Context(), leaseName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, ctx)
	r.leads(t, patience)
	if err := r.stop(); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	blind.mu.Lock()
	defer blind.mu.Unlock()
	refused := 0
	for _, err := range blind.updates {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			refused++
		}
	}
	if refused != 1 || blind.creates != 2 {
		t.Errorf("%d renewals refused and %d creates, want 1 and 2: %v", refused, blind.creates, blind.updates)
	}
}

// noWatch is a client whose watches fail.
type noWatch struct{ leader.LeaseClient }

func (noWatch) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return nil, errors.New("no watch")
}

// overtaken is a client whose claim is answered only after the Lease was deleted
// again and the watch has told of that.
type overtaken struct {
	*spied
	once sync.Once
	told chan struct{}
	tell func() // closes told
	led  chan struct{}

	deleted types.UID // of the Lease; read once told is closed
}

// Update lets lead start first.
func (o *overtaken) Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	<-o.led
	return o.spied.Update(ctx, lease, opts)
}

func (o *overtaken) Create(ctx context.Context, lease *coordinationv1.Lease, opts metav1.CreateOptions) (*coordinationv1.Lease, error) {
	got, err := o.spied.Create(ctx, lease, opts)
	o.once.Do(func() {
		<-o.watching
		o.deleted = got.UID
		if err := o.LeaseClient.(coordinationv1client.LeaseInterface).Delete(ctx, leaseName, metav1.DeleteOptions{}); err == nil {
			<-o.told
		}
	})
	return got, err
}

func (o *overtaken) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	w, err := o.spied.Watch(ctx, opts)
	if err != nil {
		return nil, err
	}
	return drained{watch.Filter(w, func(event watch.Event) (watch.Event, bool) {
		if event.Type == watch.Deleted {
			o.tell()
		}
		return event, true
	})}, nil
}

// drained ends the goroutine of watch.Filter, which waits for a reader.
type drained struct{ watch.Interface }

func (d drained) Stop() {
	d.Interface.Stop()
	for range d.ResultChan() {
		continue
	}
}

// TestServerOvertakenClaim: a Lease that was deleted before the claim was answered
// is not led with until the next renewal, which is minutes away.
//
// Proves L5.
func TestServerOvertakenClaim(t *testing.T) {
	ns := testserver.Namespace(t)
	leases := newClient(t, testserver.Config(t)).CoordinationV1().Leases(ns)
	told := make(chan struct{})
	o := &overtaken{spied: spy(leases), told: told, tell: sync.OnceFunc(func() { close(told) }), led: make(chan struct{})}
	led := sync.OnceFunc(func() { close(o.led) })
	r := start(t, serverElector(o, ns, "a"), func(ctx context.Context) error {
		led()
		return untilDone(ctx)
	})
	ctx := r.leads(t, patience)
	<-told
	if mustTerm(t, ctx).LeaseUID == o.deleted { // else the term was over before lead started
		await(t, ctx)
		ctx = r.leads(t, patience)
	}
	if term := mustTerm(t, ctx); term.LeaseUID == o.deleted || term.Number == 0 {
		t.Errorf("term = %v, want another UID than %v and a higher number", term, o.deleted)
	}
	if err := r.stop(); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

// TestServerLostResponses: renewals that are stored without the leader knowing
// are recognised as its own, by what the API server makes of the record.
//
// Proves L2.
func TestServerLostResponses(t *testing.T) {
	ns := testserver.Namespace(t)
	lossy := &lossy{LeaseClient: noWatch{newClient(t, testserver.Config(t)).CoordinationV1().Leases(ns)}, enough: make(chan struct{})}
	r := start(t, fast(serverElector(lossy, ns, "a")), untilDone)
	ctx := r.leads(t, patience)
	<-lossy.enough
	if ctx.Err() != nil {
		t.Errorf("lead's context ended: %v", context.Cause(ctx))
	}
	if err := r.stop(); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

// lossy loses the response of every other write.
type lossy struct {
	leader.LeaseClient
	enough chan struct{}

	mu sync.Mutex
	n  int
}

func (l *lossy) lose(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n++; l.n == 12 {
		close(l.enough)
	}
	if err == nil && l.n%2 == 1 && l.n < 12 {
		return errors.New("connection reset by peer")
	}
	return err
}

func (l *lossy) Create(ctx context.Context, lease *coordinationv1.Lease, opts metav1.CreateOptions) (*coordinationv1.Lease, error) {
	got, err := l.LeaseClient.Create(ctx, lease, opts)
	return got, l.lose(err)
}

func (l *lossy) Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	got, err := l.LeaseClient.Update(ctx, lease, opts)
	return got, l.lose(err)
}

// as returns a client of a user with the verbs on Leases in ns.
func as(t *testing.T, ns, user string, verbs ...string) coordinationv1client.LeaseInterface {
	t.Helper()
	rbac := newClient(t, testserver.Config(t)).RbacV1()
	if len(verbs) > 0 {
		role := &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Name: user, Namespace: ns},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: verbs}},
		}
		if _, err := rbac.Roles(ns).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		binding := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: user, Namespace: ns},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		}
		if _, err := rbac.RoleBindings(ns).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	cfg := testserver.Config(t)
	cfg.Impersonate.UserName = user
	return newClient(t, cfg).CoordinationV1().Leases(ns)
}

// TestServerRBACMissing: Run names the missing rules of the Role.
func TestServerRBACMissing(t *testing.T) {
	for _, tt := range []struct {
		name   string
		verbs  []string
		exists bool
		want   string
	}{
		{name: "nothing", want: "resourceNames: [controller], verbs: [get]"},
		{name: "no create", verbs: []string{"get", "update", "watch"}, want: "{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create]}"},
		{name: "no update", verbs: []string{"get", "create", "watch"}, exists: true, want: "resourceNames: [controller], verbs: [update]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // each waits for StartTimeout
			ns := testserver.Namespace(t)
			if tt.exists {
				e := serverElector(newClient(t, testserver.Config(t)).CoordinationV1().Leases(ns), ns, "before")
				if err := e.Run(t.Context(), func(context.Context) error { return nil }); err != nil {
					t.Fatal(err)
				}
			}
			var rules []rbacv1.PolicyRule
			if len(tt.verbs) > 0 {
				rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: tt.verbs})
			}
			limited := testserver.Limited(t, ns, rules...) // the Role has taken effect
			e := fast(serverElector(newClient(t, limited).CoordinationV1().Leases(ns), ns, "a"))
			e.StartTimeout = 10 * time.Second // several calls can time out before
			err := e.Run(t.Context(), untilDone)
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), ns+"/"+leaseName) {
				t.Errorf("Run() = %v, want a forbidden error that names the Lease and says %q", err, tt.want)
			}
		})
	}
}

// TestServerRightsTakenAway: the Role of a leader is unbound. It leads on to its
// deadline, and then Run names the missing rights.
func TestServerRightsTakenAway(t *testing.T) {
	t.Parallel()
	ns := testserver.Namespace(t)
	e := serverElector(as(t, ns, "limited", "get", "create", "update", "watch"), ns, "a")
	e.LeaseDuration, e.RenewDeadline, e.RetryPeriod = 4*time.Second, 2*time.Second, 200*time.Millisecond
	e.StartTimeout = time.Minute // more than a Role needs to take effect
	r := start(t, e, untilDone)
	r.leads(t, time.Minute)
	if err := r.stop(); err != nil {
		t.Fatalf("Run() = %v, want nil", err)
	}
	e.StartTimeout = 10 * time.Second // several calls can time out before
	r = start(t, e, untilDone)
	ctx := r.leads(t, patience)
	if err := newClient(t, testserver.Config(t)).RbacV1().RoleBindings(ns).Delete(t.Context(), "limited", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, ctx)
	if !errors.Is(context.Cause(ctx), leader.ErrLost) {
		t.Errorf("cause = %v, want ErrLost", context.Cause(ctx))
	}
	if err := <-r.ended; !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "a Role in namespace "+ns+" must allow: ") {
		t.Errorf("Run() = %v, want a forbidden error that says what the Role lacks", err)
	}
}

// TestServerWatchForbidden: a Role without watch only costs speed.
func TestServerWatchForbidden(t *testing.T) {
	ns := testserver.Namespace(t)
	limited := spy(as(t, ns, "limited", "get", "create", "update"))
	e := fast(serverElector(limited, ns, "a"))
	e.StartTimeout = time.Minute // the Role takes effect some time after it was created
	a := start(t, e, untilDone)
	a.leads(t, time.Minute)
	b := start(t, fast(serverElector(limited, ns, "b")), untilDone)
	if err := a.stop(); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	b.leads(t, patience)
	if err := b.stop(); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if n := len(limited.watching); n != 0 {
		t.Errorf("%d watches established, want none: the Role forbids it", n)
	}
}
