package integration_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/examples/tenant/api/v1alpha1"
	"github.com/controllerkit/controllerkit/examples/tenant/billing"
	"github.com/controllerkit/controllerkit/examples/tenant/client/clientset/versioned"
	tenancyclient "github.com/controllerkit/controllerkit/examples/tenant/client/clientset/versioned/typed/api/v1alpha1"
	"github.com/controllerkit/controllerkit/examples/tenant/controller"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
)

// TestExplore runs the life of a tenant many times, each time with a fault at another
// moment. By default it runs a sample of the plans. With EXPLORE_BUDGET, for example
// 60s, it runs plans until that time has passed.
func TestExplore(t *testing.T) {
	t.Parallel()
	server := testserver.Own(t)
	options := controllertest.Options{
		Config:         server.Config(),
		KeepNamespaces: true,
		// Runs mostly wait, because the namespace controller needs five seconds for each
		// deleted namespace. But each controller watches all namespaces, so 128 runs at once
		// are slower than 64.
		Parallel:        64,
		Sample:          8,
		ConvergeTimeout: 90 * time.Second,
	}
	if text := os.Getenv("EXPLORE_BUDGET"); text != "" {
		var err error
		if options.Budget, err = time.ParseDuration(text); err != nil {
			t.Fatalf("EXPLORE_BUDGET: %v", err)
		}
		options.Sample = 0
	}
	controllertest.Explore(t, tenantScenario(), options)
}

// TestUpgrade lets a new version take over from a former one under faults. It must not change what no
// user has asked for. Here both are this version. Put the program of your last release into
// Former.Command.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	s := tenantScenario()
	s.Name = "tenant-upgrade"
	s.From = &controllertest.Former{Start: s.Start, Steps: 2}
	controllertest.Explore(t, s, controllertest.Options{
		Config: testserver.Own(t).Config(), KeepNamespaces: true, Parallel: 16, Sample: 4, ConvergeTimeout: 90 * time.Second,
	})
}

// shardLabel separates the tenants of runs that share a server.
const shardLabel = "shard"

// tenantScenario is the life of one tenant.
func tenantScenario() controllertest.Scenario {
	services := new(sync.Map) // namespace of the run → *billing.Server
	serviceOf := func(env *controllertest.Env) *billing.Server {
		service, _ := services.LoadOrStore(env.Namespace, new(billing.Server))
		return service.(*billing.Server)
	}
	patch := func(spec string) func(context.Context, tenancyclient.TenantInterface, *controllertest.Env) error {
		return func(ctx context.Context, tenants tenancyclient.TenantInterface, env *controllertest.Env) error {
			_, err := tenants.Patch(ctx, tenantName(env), types.MergePatchType, []byte(`{"spec":`+spec+`}`), metav1.PatchOptions{FieldValidation: metav1.FieldValidationStrict})
			return err
		}
	}
	return controllertest.Scenario{
		Name: "tenant",
		CRDs: []string{"../config/crd.yaml"},
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			op, err := operator.New(cfg, operator.Options{Name: "tenant-controller"})
			if err != nil {
				return err
			}
			if err := controller.Register(ctx, op, controller.Config{
				Billing:  &billing.Client{URL: "http://billing", Transport: &billingLine{env, serviceOf(env)}},
				Selector: labels.SelectorFromSet(labels.Set{shardLabel: env.Namespace}),
			}); err != nil {
				return err
			}
			return op.Run(ctx)
		},
		Script: []controllertest.Step{
			step("create", func(ctx context.Context, tenants tenancyclient.TenantInterface, env *controllertest.Env) error {
				t := tenant(tenantName(env))
				t.Labels = map[string]string{shardLabel: env.Namespace}
				t.Spec.Members = []string{"alice", "group:devs"}
				_, err := tenants.Create(ctx, t, metav1.CreateOptions{})
				return err
			}),
			step("more pods and no isolation", patch(`{"quota":{"pods":"20"},"networkIsolation":false}`)),
			step("another member", patch(`{"members":["alice","group:devs","bob"]}`)),
			// 4000m equals 4: only the status must change. No event of a child can
			// compensate for a lost status write.
			step("the same quota in another notation", patch(`{"quota":{"cpu":"4000m"}}`)),
			step("delete", func(ctx context.Context, tenants tenancyclient.TenantInterface, env *controllertest.Env) error {
				return tenants.Delete(ctx, tenantName(env), metav1.DeleteOptions{})
			}),
		},
		Converged: asSpecified,
		Invariants: []controllertest.Invariant{
			{Name: "at most one account for each tenant", Check: oneAccount},
			{Name: "each account has a tenant with the finalizer", Check: accountHeld},
			{Name: "a Tenant owns each object in its namespace", Check: childrenOwned},
		},
	}
}

func step(name string, do func(context.Context, tenancyclient.TenantInterface, *controllertest.Env) error) controllertest.Step {
	return controllertest.Step{Name: name, Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		client, err := versioned.NewForConfig(cfg)
		if err != nil {
			return err
		}
		return do(ctx, client.TenancyV1alpha1().Tenants(), env)
	}}
}

// tenantName returns the name of the tenant and its namespace. The explorer assigns
// the namespace to the run by the prefix of its name.
func tenantName(env *controllertest.Env) string { return env.Namespace + "-blue" }

// A billingLine sends requests to the run's billing service and applies the faults of
// the plan. After each call it copies the accounts into the run's cloud, so that
// states include them.
type billingLine struct {
	env     *controllertest.Env
	service *billing.Server
}

func (l *billingLine) RoundTrip(req *http.Request) (*http.Response, error) {
	verb := "open"
	if req.Method == http.MethodDelete {
		verb = "close"
	}
	var resp *http.Response
	err := l.env.External(req.Context(), verb+" "+tenantName(l.env), func(ctx context.Context) error {
		recorder := httptest.NewRecorder()
		l.service.ServeHTTP(recorder, req.WithContext(ctx))
		resp = recorder.Result()
		return l.record(ctx)
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// record copies the accounts into the cloud. The calls of a run do not overlap.
func (l *billingLine) record(ctx context.Context) error {
	books := l.env.Cloud.Through(nil)
	accounts := l.service.Accounts()
	for _, r := range books.Resources() {
		if !slices.ContainsFunc(accounts, func(a billing.Account) bool { return a.ID == r.Token }) {
			if err := books.Delete(ctx, r.ID); err != nil {
				return err
			}
		}
	}
	have := books.Resources()
	for _, a := range accounts {
		if !slices.ContainsFunc(have, func(r cloud.Resource) bool { return a.ID == r.Token }) {
			_, err := books.Create(ctx, cloud.Resource{Name: a.Key, Token: a.ID, Tags: map[string]string{"plan": a.Plan, "tenant": a.Tenant}})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

const tenantResource = "tenants." + v1alpha1.GroupName

// childResources are the resources of the children in a tenant's namespace.
var childResources = []string{"resourcequotas", "rolebindings.rbac.authorization.k8s.io", "networkpolicies.networking.k8s.io"}

// asSpecified returns nil if the cluster and the billing service match the tenant's
// spec and contain no other objects of the run.
func asSpecified(s *controllertest.State) error {
	objects := s.Objects(tenantResource)
	if len(objects) == 0 {
		var left []string
		for _, resource := range append([]string{"namespaces"}, childResources...) {
			for _, obj := range s.Objects(resource) {
				if obj.GetName() != s.Namespace() {
					left = append(left, resource+"/"+obj.GetName())
				}
			}
		}
		for _, account := range s.Cloud() {
			left = append(left, "account of "+account.Name)
		}
		if len(left) > 0 {
			return fmt.Errorf("the tenant is gone, but there still exist %q", left)
		}
		return nil
	}

	var t v1alpha1.Tenant
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objects[0].Object, &t); err != nil {
		return err
	}
	ready := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case len(objects) > 1:
		return fmt.Errorf("%d tenants, want one", len(objects))
	case t.DeletionTimestamp != nil:
		return errors.New("the tenant is being deleted")
	case ready == nil || ready.Status != metav1.ConditionTrue || ready.ObservedGeneration != t.Generation || t.Status.ObservedGeneration != t.Generation:
		return fmt.Errorf("condition Ready of generation %d is %+v", t.Generation, ready)
	case t.Status.Namespace != t.Name:
		return fmt.Errorf("status.namespace is %q", t.Status.Namespace)
	}
	ns := s.Get("namespaces", t.Name)
	if ns == nil || ns.GetDeletionTimestamp() != nil || !metav1.IsControlledBy(ns, &t) {
		return fmt.Errorf("namespace of the tenant: %v", ns)
	}
	for _, child := range []struct {
		resource string
		wanted   bool
		check    func(*unstructured.Unstructured) error
	}{
		{childResources[0], len(t.Spec.Quota) > 0, func(o *unstructured.Unstructured) error {
			var quota corev1.ResourceQuota
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &quota); err != nil {
				return err
			}
			for name, want := range t.Spec.Quota {
				if got := quota.Spec.Hard[name]; got.Cmp(want) != 0 {
					return fmt.Errorf("%s is %s, want %s", name, got.String(), want.String())
				}
			}
			return nil
		}},
		{childResources[1], len(t.Spec.Members) > 0, func(o *unstructured.Unstructured) error {
			subjects, _, _ := unstructured.NestedSlice(o.Object, "subjects")
			if len(subjects) != len(t.Spec.Members) {
				return fmt.Errorf("%d subjects, want %d", len(subjects), len(t.Spec.Members))
			}
			return nil
		}},
		{childResources[2], t.Spec.NetworkIsolation, func(*unstructured.Unstructured) error { return nil }},
	} {
		have := s.Objects(child.resource)
		switch {
		case !child.wanted && len(have) > 0:
			return fmt.Errorf("%d of %s, want none", len(have), child.resource)
		case child.wanted && len(have) != 1:
			return fmt.Errorf("%d of %s, want one", len(have), child.resource)
		case child.wanted:
			if err := child.check(have[0]); err != nil {
				return fmt.Errorf("%s: %w", child.resource, err)
			}
		}
	}
	if accounts := s.Cloud(); len(accounts) != 1 || accounts[0].Name != string(t.UID) || accounts[0].Token != t.Status.AccountID {
		return fmt.Errorf("accounts = %v, want one with key %s and id %q", accounts, t.UID, t.Status.AccountID)
	}
	return nil
}

func oneAccount(s *controllertest.State) error {
	seen := map[string]bool{}
	for _, account := range s.Cloud() {
		if seen[account.Name] {
			return fmt.Errorf("two accounts with key %s", account.Name)
		}
		seen[account.Name] = true
	}
	return nil
}

func accountHeld(s *controllertest.State) error {
	for _, account := range s.Cloud() {
		held := slices.ContainsFunc(s.Objects(tenantResource), func(t *unstructured.Unstructured) bool {
			return string(t.GetUID()) == account.Name && slices.Contains(t.GetFinalizers(), controller.Finalizer)
		})
		if !held {
			return fmt.Errorf("no finalizer guarantees that the account with key %s is closed", account.Name)
		}
	}
	return nil
}

func childrenOwned(s *controllertest.State) error {
	for _, resource := range append([]string{"namespaces"}, childResources...) {
		for _, obj := range s.Objects(resource) {
			if !strings.HasPrefix(obj.GetNamespace()+obj.GetName(), s.Namespace()+"-") {
				continue // the run's own namespace
			}
			if owner := metav1.GetControllerOfNoCopy(obj); owner == nil || owner.Kind != "Tenant" {
				return fmt.Errorf("%s %s has the owner %v", resource, obj.GetName(), owner)
			}
		}
	}
	return nil
}
