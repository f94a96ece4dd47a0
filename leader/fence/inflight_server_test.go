package fence_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/leader/internal/shop"
)

// A road keeps writes in flight until it is opened, regardless of the end of their
// contexts: as a network may.
type road struct {
	under chan struct{} // a write is under way
	open  chan struct{}
}

func newRoad() *road { return &road{under: make(chan struct{}, 1), open: make(chan struct{})} }

func (r *road) wrap(next http.RoundTripper) http.RoundTripper { return slowTransport{r, next} }

type slowTransport struct {
	road *road
	next http.RoundTripper
}

func (s slowTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	s.road.under <- struct{}{}
	<-s.road.open
	return s.next.RoundTrip(req.WithContext(context.WithoutCancel(req.Context())))
}

// cutLeases is a client without watches, whose calls fail once it is cut.
type cutLeases struct {
	leader.LeaseClient
	cut atomic.Bool
}

var errCut = errors.New("no route to host")

func (c *cutLeases) Get(ctx context.Context, name string, opts metav1.GetOptions) (*coordinationv1.Lease, error) {
	if c.cut.Load() {
		return nil, errCut
	}
	return c.LeaseClient.Get(ctx, name, opts)
}

func (c *cutLeases) Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if c.cut.Load() {
		return nil, errCut
	}
	return c.LeaseClient.Update(ctx, lease, opts)
}

func (c *cutLeases) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return nil, errCut
}

// TestServerWriteInFlight: a write that Guard let pass while its process led is
// under way when the process loses the Lease, and arrives when another leads.
// Without a fence it is stored, as no client can prevent; with one it is refused.
// All of it happens with the manifests and a token of their ServiceAccount.
//
// Proves L13.
func TestServerWriteInFlight(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		fenced  bool
		guardAs bool
		verb    string // updates are stamped
		refused bool
	}{
		{name: "no fence, update", verb: "update"},
		{name: "no fence, delete", verb: "delete"},
		{name: "stamp, update", fenced: true, verb: "update", refused: true},
		{name: "stamp, delete", fenced: true, verb: "delete"},
		{name: "GuardAs, update", fenced: true, guardAs: true, verb: "update", refused: true},
		{name: "GuardAs, delete", fenced: true, guardAs: true, verb: "delete", refused: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ns := testserver.Namespace(t)
			user, config := shop.Account(t, ns)
			s := &fencedShop{ns: ns, user: user, policy: ns + "-controller", resource: fenceConfigMaps}
			keep(t)
			allow(t, ns, user, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"create", "patch", "update", "delete"}})
			for _, file := range []string{"../manifests/role.yaml", "manifests/fence.yaml"} {
				for _, doc := range shop.Manifest(t, file, ns) {
					if tt.fenced || !strings.Contains(kindOf(t, doc), "Policy") {
						shop.Create(t, doc)
					}
				}
			}
			leases := shop.Clients(t, config).CoordinationV1().Leases(ns)
			configMaps := shop.Clients(t, testserver.Config(t)).CoreV1().ConfigMaps(ns)
			before := map[string]*corev1.ConfigMap{}
			for _, name := range []string{"of-old", "of-new"} {
				obj, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				before[name] = obj
			}
			write := func(ctx context.Context, config *rest.Config, name string) error {
				config = rest.CopyConfig(config)
				if tt.guardAs {
					config.Wrap(leader.GuardAs(user))
				} else {
					config.Wrap(leader.Guard)
				}
				guarded := shop.Clients(t, config).CoreV1().ConfigMaps(ns)
				if tt.verb == "delete" {
					return guarded.Delete(ctx, name, metav1.DeleteOptions{})
				}
				obj := before[name].DeepCopy()
				obj.Data = map[string]string{"by": name}
				term, _ := leader.TermFrom(ctx)
				term.Stamp(obj)
				_, err := guarded.Update(ctx, obj, metav1.UpdateOptions{})
				return err
			}

			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer stop()
			slow := newRoad()
			slowConfig := rest.CopyConfig(config)
			slowConfig.Wrap(slow.wrap)
			oldLeads, fenceWorks := make(chan leader.Term, 10), make(chan struct{})
			oldWrote := make(chan error, 1)
			cut := &cutLeases{LeaseClient: leases}
			wg.Go(func() {
				err := shop.Elector(cut, ns, "old").Run(ctx, func(ctx context.Context) error {
					term, _ := leader.TermFrom(ctx)
					oldLeads <- term
					select {
					case <-fenceWorks:
						wg.Go(func() { oldWrote <- write(ctx, slowConfig, "of-old") })
					case <-ctx.Done():
					}
					<-ctx.Done()
					return nil
				})
				if err != nil {
					t.Errorf("old: Run() = %v", err)
				}
			})
			old := shop.Within(t, oldLeads, "the first leader")
			if tt.fenced {
				s.awaitFence(t)
			}
			close(fenceWorks)
			shop.Within(t, slow.under, "the write under way")
			cut.cut.Store(true)

			newWrote := make(chan error, 1)
			wg.Go(func() {
				err := shop.Elector(leases, ns, "new").Run(ctx, func(ctx context.Context) error {
					newWrote <- write(ctx, config, "of-new")
					<-ctx.Done()
					return nil
				})
				if err != nil {
					t.Errorf("new: Run() = %v", err)
				}
			})
			if err := shop.Within(t, newWrote, "the next leader"); err != nil {
				t.Errorf("the next leader: %v", err)
			}
			if tt.fenced {
				shop.Eventually(t, "the API server knows of the next leader", func() error {
					_, err := s.as(t, "").Create(t.Context(), s.object("probe", fmt.Sprintf("%s/%d", old.LeaseUID, old.Number)),
						metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
					if err == nil {
						return errors.New("a write of the former term passes")
					}
					return nil
				})
			}
			close(slow.open)
			err := shop.Within(t, oldWrote, "the write of the former leader")
			s.judge(t, err, tt.refused)
			after, err := configMaps.Get(t.Context(), "of-old", metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
			if changed := err != nil || after.ResourceVersion != before["of-old"].ResourceVersion; changed == tt.refused {
				t.Errorf("the object changed: %v, want %v", changed, !tt.refused)
			}
		})
	}
}
