package leader_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/leader/internal/shop"
)

// TestServerRoleManifest: the Role of the manifest suffices for an election with
// watches, hand-over and re-creation of the Lease, and allows no more.
func TestServerRoleManifest(t *testing.T) {
	t.Parallel()
	ns := testserver.Namespace(t)
	_, config := shop.Account(t, ns)
	clients := shop.Clients(t, config)
	before := allowedTo(t, clients, ns)
	for _, doc := range shop.Manifest(t, "manifests/role.yaml", ns) {
		shop.Create(t, doc)
	}
	leases := clients.CoordinationV1().Leases(ns)
	lease := ns + "-controller"
	shop.Eventually(t, "the Role takes effect", func() error {
		if _, err := leases.Get(t.Context(), lease, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	})

	want := append(slices.Clone(before),
		authorizationv1.ResourceRule{Verbs: []string{"get", "update", "watch"}, APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{lease}},
		authorizationv1.ResourceRule{Verbs: []string{"create"}, APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}},
	)
	byResource := func(a, b authorizationv1.ResourceRule) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }
	got := allowedTo(t, clients, ns)
	slices.SortFunc(want, byResource)
	slices.SortFunc(got, byResource)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what the ServiceAccount may do (-without Role and the election's +with Role):\n%s", diff)
	}
	_, err := leases.Get(t.Context(), "another", metav1.GetOptions{})
	others := map[string]error{"get of another Lease": err}
	_, err = leases.List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + lease})
	others["list"] = err
	others["delete"] = leases.Delete(t.Context(), lease, metav1.DeleteOptions{})
	for what, err := range others {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: error = %v, want Forbidden", what, err)
		}
	}

	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	leads := make(chan string, 10)
	watches := make(chan string, 100)
	stops := map[string]context.CancelFunc{}
	for _, name := range []string{"a", "b"} {
		ctx, stop := context.WithCancel(ctx)
		stops[name] = stop
		e := shop.Elector(watchTold{leases, name, watches}, ns, name)
		// The next poll is far away, so soon changes come from the watch.
		e.LeaseDuration, e.RenewDeadline, e.RetryPeriod = 5*time.Minute, 4*time.Minute, 2*time.Minute
		wg.Go(func() {
			err := e.Run(ctx, func(ctx context.Context) error {
				leads <- name
				<-ctx.Done()
				return nil
			})
			if err != nil {
				t.Errorf("%s: Run() = %v, want nil", name, err)
			}
		})
		shop.Within(t, watches, "a watch of "+name)
	}
	first := shop.Within(t, leads, "the first leader")
	stops[first]()
	if second := shop.Within(t, leads, "the second leader"); second == first {
		t.Errorf("%s leads again after it was stopped", first)
	}
	if err := shop.Clients(t, testserver.Config(t)).CoordinationV1().Leases(ns).Delete(t.Context(), lease, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	shop.Within(t, leads, "the leader after the Lease was deleted")
}

// watchTold reports established watches.
type watchTold struct {
	leader.LeaseClient
	name string
	told chan<- string
}

func (w watchTold) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	got, err := w.LeaseClient.Watch(ctx, opts)
	if err == nil {
		w.told <- w.name
	}
	return got, err
}

// allowedTo returns the rights of the user of clients.
func allowedTo(t *testing.T, clients *kubernetes.Clientset, ns string) []authorizationv1.ResourceRule {
	t.Helper()
	review, err := clients.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(),
		&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: ns}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return review.Status.ResourceRules
}

// servedBy is a transport that keeps the API server's classification of the last
// request.
type servedBy struct {
	mu            sync.Mutex
	schema, level string
}

func (s *servedBy) wrap(next http.RoundTripper) http.RoundTripper { return servedTransport{s, next} }

func (s *servedBy) last() [2]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return [2]string{s.schema, s.level}
}

type servedTransport struct {
	served *servedBy
	next   http.RoundTripper
}

func (s servedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := s.next.RoundTrip(req)
	if err == nil {
		s.served.mu.Lock()
		s.served.schema = res.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
		s.served.level = res.Header.Get(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID)
		s.served.mu.Unlock()
	}
	return res, err
}

// TestServerFlowSchemaManifest: the requests of an election are served at the
// level of elections with the manifest, and at workload-low without.
func TestServerFlowSchemaManifest(t *testing.T) {
	t.Parallel()
	ns := testserver.Namespace(t)
	_, config := shop.Account(t, ns)
	for _, doc := range shop.Manifest(t, "manifests/role.yaml", ns) {
		shop.Create(t, doc)
	}
	var served servedBy
	config.Wrap(served.wrap)
	leases := shop.Clients(t, config).CoordinationV1().Leases(ns)
	lease := ns + "-controller"
	shop.Eventually(t, "the Role takes effect", func() error {
		_, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: lease}}, metav1.CreateOptions{})
		return err
	})
	flow := shop.Clients(t, testserver.Config(t)).FlowcontrolV1()
	uids := func(schemaName, levelName string) [2]string {
		s, err := flow.FlowSchemas().Get(t.Context(), schemaName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		level, err := flow.PriorityLevelConfigurations().Get(t.Context(), levelName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return [2]string{string(s.UID), string(level.UID)}
	}
	requests := func(when string, want [2]string) {
		t.Helper()
		got, err := leases.Get(t.Context(), lease, metav1.GetOptions{})
		if err != nil || served.last() != want {
			t.Errorf("%s: get was served by FlowSchema and level %v (%v), want %v", when, served.last(), err, want)
		}
		if _, err := leases.Update(t.Context(), got, metav1.UpdateOptions{}); err != nil || served.last() != want {
			t.Errorf("%s: update was served by %v (%v), want %v", when, served.last(), err, want)
		}
		w, err := leases.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + lease})
		if err != nil || served.last() != want {
			t.Errorf("%s: watch was served by %v (%v), want %v", when, served.last(), err, want)
		}
		if err == nil {
			w.Stop()
		}
		// The Role lacks the verbs of package shard, and the API server classifies before it authorizes.
		if _, err := leases.List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) || served.last() != want {
			t.Errorf("%s: list was served by %v (%v), want %v", when, served.last(), err, want)
		}
		if err := leases.Delete(t.Context(), lease, metav1.DeleteOptions{}); !apierrors.IsForbidden(err) || served.last() != want {
			t.Errorf("%s: delete was served by %v (%v), want %v", when, served.last(), err, want)
		}
		if _, err := leases.Create(t.Context(), got, metav1.CreateOptions{}); err == nil || served.last() != want {
			t.Errorf("%s: create was served by %v (%v), want %v", when, served.last(), err, want)
		}
	}
	low := uids("service-accounts", "workload-low")
	requests("without the FlowSchema", low)

	created := shop.Create(t, shop.Manifest(t, "manifests/flowschema.yaml", ns)[0])
	// The status shows when the API server has read it.
	w, err := flow.FlowSchemas().Watch(t.Context(), metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, created.GetName()).String(), ResourceVersion: created.GetResourceVersion(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for taken := false; !taken; {
		event := shop.Within(t, w.ResultChan(), "the status of the FlowSchema")
		if schema, ok := event.Object.(*flowcontrolv1.FlowSchema); ok {
			for _, c := range schema.Status.Conditions {
				taken = taken || c.Type == flowcontrolv1.FlowSchemaConditionDangling && c.Status == flowcontrolv1.ConditionFalse
			}
		}
	}
	requests("with the FlowSchema", uids(created.GetName(), "leader-election"))

	// Other requests of the ServiceAccount keep their level.
	_, err = shop.Clients(t, config).CoreV1().ConfigMaps(ns).Get(t.Context(), "a", metav1.GetOptions{})
	if !apierrors.IsForbidden(err) || served.last() != low {
		t.Errorf("get of a ConfigMap was served by %v (%v), want %v", served.last(), err, low)
	}
}
