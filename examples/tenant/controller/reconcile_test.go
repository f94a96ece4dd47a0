package controller_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/examples/tenant/api/v1alpha1"
	"github.com/controllerkit/controllerkit/examples/tenant/billing"
	tenantfake "github.com/controllerkit/controllerkit/examples/tenant/client/clientset/versioned/fake"
	"github.com/controllerkit/controllerkit/examples/tenant/controller"
	"github.com/controllerkit/controllerkit/reconcile"
)

func TestMain(m *testing.M) {
	// The default handler sleeps until 1ms after the last error. In a synctest bubble that can be decades.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	goleak.VerifyTestMain(m)
}

// inProcess sends requests to a handler, without a connection.
type inProcess struct{ http.Handler }

func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w.Result(), nil
}

type fixture struct {
	*controller.Fixture
	kube    *fake.Clientset
	tenancy *tenantfake.Clientset
	billing *billing.Server
	// onBilling is called before each request to the billing service.
	onBilling func(*http.Request)
}

func newFixture(t *testing.T, tenant *v1alpha1.Tenant, objects ...runtime.Object) *fixture {
	t.Helper()
	f := &fixture{
		kube: fake.NewClientset(objects...),
		// NewClientset cannot apply custom resources, and these tests do not.
		tenancy: tenantfake.NewSimpleClientset(tenant),
		billing: new(billing.Server),
	}
	service := &billing.Client{URL: "http://billing", Transport: inProcess{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.onBilling != nil {
			f.onBilling(r)
		}
		f.billing.ServeHTTP(w, r)
	})}}
	f.Fixture = controller.NewFixture(f.kube, f.tenancy, service)
	f.Sync(t)
	return f
}

func newTenant() *v1alpha1.Tenant {
	return &v1alpha1.Tenant{
		// The fake sets none of these.
		ObjectMeta: metav1.ObjectMeta{Name: "blue", UID: "uid-blue", Generation: 3, ResourceVersion: "1"},
		Spec: v1alpha1.TenantSpec{
			Members:          []string{"alice", "group:devs", "system:serviceaccount:ci:deployer"},
			Quota:            corev1.ResourceList{"cpu": resource.MustParse("2000m"), "pods": resource.MustParse("20")},
			NetworkIsolation: true,
			Account:          v1alpha1.AccountSpec{Plan: v1alpha1.PlanStandard},
		},
	}
}

func (f *fixture) tenant(t *testing.T) *v1alpha1.Tenant {
	t.Helper()
	tenant, err := f.tenancy.TenancyV1alpha1().Tenants().Get(t.Context(), "blue", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return tenant
}

// writes returns the writes to the API server since the last call.
func (f *fixture) writes() []string {
	var all []string
	for _, a := range append(f.tenancy.Actions(), f.kube.Actions()...) {
		if !slices.Contains([]string{"get", "list", "watch"}, a.GetVerb()) {
			all = append(all, strings.TrimSuffix(a.GetVerb()+" "+a.GetResource().Resource+"/"+a.GetSubresource(), "/"))
		}
	}
	f.tenancy.ClearActions()
	f.kube.ClearActions()
	return all
}

// conditions returns the conditions as type=status(reason).
func conditions(tenant *v1alpha1.Tenant) []string {
	var all []string
	for _, c := range tenant.Status.Conditions {
		all = append(all, fmt.Sprintf("%s=%s(%s)", c.Type, c.Status, c.Reason))
	}
	slices.Sort(all)
	return all
}

func TestCreateThenNoWrites(t *testing.T) {
	f := newFixture(t, newTenant())
	f.onBilling = func(*http.Request) {
		if !slices.Contains(f.tenant(t).Finalizers, controller.Finalizer) {
			t.Error("the account was opened before the finalizer was stored")
		}
	}
	if err := f.Reconcile(t.Context(), "blue"); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"patch tenants", "update tenants/status",
		"create namespaces", "patch resourcequotas", "patch rolebindings", "patch networkpolicies",
	}
	if diff := cmp.Diff(want, f.writes()); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}

	tenant := f.tenant(t)
	if diff := cmp.Diff([]string{"AccountOpen=True(Opened)", "NamespaceReady=True(Applied)", "Ready=True(AllTrue)"}, conditions(tenant)); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	accounts := f.billing.Accounts()
	if len(accounts) != 1 || accounts[0].Key != "uid-blue" || accounts[0].Plan != "Standard" {
		t.Errorf("got accounts %v, want one with key uid-blue and plan Standard", accounts)
	}
	got := v1alpha1.TenantStatus{ObservedGeneration: tenant.Status.ObservedGeneration, Namespace: tenant.Status.Namespace, AccountID: tenant.Status.AccountID}
	if diff := cmp.Diff(v1alpha1.TenantStatus{ObservedGeneration: 3, Namespace: "blue", AccountID: accounts[0].ID}, got); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	checkChildren(t, f)

	f.Sync(t)
	before := deepCopies(f.Cached())
	if err := f.Reconcile(t.Context(), "blue"); err != nil {
		t.Fatal(err)
	}
	if got := f.writes(); len(got) != 0 {
		t.Errorf("writes of a reconcile without changes: %v, want none", got)
	}
	if got := f.billing.Counts().Open; got != 1 {
		t.Errorf("%d requests to open the account, want 1", got)
	}
	if diff := cmp.Diff(before, f.Cached()); diff != "" {
		t.Errorf("an object in a cache was changed (-before +after):\n%s", diff)
	}
}

func deepCopies(objects []any) []any {
	copies := make([]any, len(objects))
	for i, o := range objects {
		copies[i] = o.(runtime.Object).DeepCopyObject()
	}
	return copies
}

func checkChildren(t *testing.T, f *fixture) {
	t.Helper()
	ctx := t.Context()
	ns, err := f.kube.CoreV1().Namespaces().Get(ctx, "blue", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	quota, err := f.kube.CoreV1().ResourceQuotas("blue").Get(ctx, "tenant", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	binding, err := f.kube.RbacV1().RoleBindings("blue").Get(ctx, "tenant", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	policy, err := f.kube.NetworkingV1().NetworkPolicies("blue").Get(ctx, "tenant", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []metav1.Object{ns, quota, binding, policy} {
		if !metav1.IsControlledBy(o, newTenant()) || o.GetLabels()[controller.TenantLabel] != "blue" {
			t.Errorf("%T has owners %v and labels %v, want the tenant's", o, o.GetOwnerReferences(), o.GetLabels())
		}
	}
	if got := quota.Spec.Hard.Cpu(); got.Cmp(resource.MustParse("2")) != 0 {
		t.Errorf("quota for cpu: got %v, want 2", got)
	}
	wantSubjects := []rbacv1.Subject{
		{Kind: "User", APIGroup: rbacv1.GroupName, Name: "alice"},
		{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "devs"},
		{Kind: "ServiceAccount", Namespace: "ci", Name: "deployer"},
	}
	if diff := cmp.Diff(wantSubjects, binding.Subjects); diff != "" {
		t.Errorf("subjects (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"}, binding.RoleRef); diff != "" {
		t.Errorf("role (-want +got):\n%s", diff)
	}
	wantPolicy := networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{"Ingress"},
		Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}},
	}
	if diff := cmp.Diff(wantPolicy, policy.Spec); diff != "" {
		t.Errorf("policy (-want +got):\n%s", diff)
	}
}

func TestFailuresAreReported(t *testing.T) {
	owner := metav1.OwnerReference{APIVersion: "tenancy.example.com/v1alpha1", Kind: "Tenant", Name: "blue", UID: "uid-blue", Controller: ptr.To(true)}
	earlier := owner
	earlier.UID = "uid-of-an-earlier-blue"
	namespace := func(change func(*corev1.Namespace)) *corev1.Namespace {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "blue"}}
		change(ns)
		return ns
	}
	quota := corev1.Resource("resourcequotas")
	tests := []struct {
		name     string
		tenant   func(*v1alpha1.Tenant)
		objects  []runtime.Object
		stale    bool // the cache does not show objects
		refuse   error
		mode     billing.Mode
		want     []string // conditions
		terminal bool
		fails    bool // with an error that is not terminal
		accounts int
		writes   []string
	}{
		{
			name:     "an invalid member",
			tenant:   func(t *v1alpha1.Tenant) { t.Spec.Members = []string{"alice", "system:masters"} },
			want:     []string{"Ready=False(InvalidMember)"},
			terminal: true,
			writes:   []string{"patch tenants", "update tenants/status"},
		},
		{
			name:     "a namespace of another owner",
			objects:  []runtime.Object{namespace(func(*corev1.Namespace) {})},
			want:     []string{"AccountOpen=True(Opened)", "NamespaceReady=False(NamespaceTaken)", "Ready=False(NamespaceTaken)"},
			terminal: true,
			accounts: 1,
			writes:   []string{"patch tenants", "update tenants/status"},
		},
		{
			name:     "a namespace of another owner that is not in the cache",
			objects:  []runtime.Object{namespace(func(*corev1.Namespace) {})},
			stale:    true,
			want:     []string{"AccountOpen=True(Opened)", "NamespaceReady=False(NamespaceTaken)", "Ready=False(NamespaceTaken)"},
			terminal: true,
			accounts: 1,
			writes:   []string{"patch tenants", "update tenants/status", "create namespaces"},
		},
		{
			name: "a namespace of a Tenant of another API group",
			objects: []runtime.Object{namespace(func(ns *corev1.Namespace) {
				ns.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.org/v1", Kind: "Tenant", Name: "blue", UID: "other", Controller: ptr.To(true)}}
			})},
			want:     []string{"AccountOpen=True(Opened)", "NamespaceReady=False(NamespaceTaken)", "Ready=False(NamespaceTaken)"},
			terminal: true,
			accounts: 1,
			writes:   []string{"patch tenants", "update tenants/status"},
		},
		{
			name: "a namespace that is being deleted",
			objects: []runtime.Object{namespace(func(ns *corev1.Namespace) {
				ns.DeletionTimestamp = ptr.To(metav1.Now())
				ns.Finalizers = []string{"x/y"}
			})},
			want:     []string{"AccountOpen=True(Opened)", "NamespaceReady=False(NamespaceTerminating)", "Ready=False(NamespaceTerminating)"},
			accounts: 1,
			writes:   []string{"patch tenants", "update tenants/status"},
		},
		{
			name:     "a namespace of a deleted tenant of the same name",
			objects:  []runtime.Object{namespace(func(ns *corev1.Namespace) { ns.OwnerReferences = []metav1.OwnerReference{earlier} })},
			want:     []string{"AccountOpen=True(Opened)", "NamespaceReady=False(NamespaceTerminating)", "Ready=False(NamespaceTerminating)"},
			accounts: 1,
			writes:   []string{"patch tenants", "update tenants/status"},
		},
		{
			name:     "a quota of another owner: the other children are created",
			objects:  []runtime.Object{&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "tenant"}}},
			want:     []string{"AccountOpen=True(Opened)", "NamespaceReady=False(ObjectTaken)", "Ready=False(ObjectTaken)"},
			terminal: true,
			accounts: 1,
			writes:   []string{"patch tenants", "update tenants/status", "create namespaces", "patch rolebindings", "patch networkpolicies"},
		},
		{
			name:     "a quota that the API server rejects",
			refuse:   apierrors.NewForbidden(quota, "tenant", errors.New("a policy")),
			want:     []string{"AccountOpen=True(Opened)", "NamespaceReady=False(Refused)", "Ready=False(Refused)"},
			fails:    true,
			accounts: 1,
			writes:   []string{"patch tenants", "update tenants/status", "create namespaces", "patch resourcequotas", "patch rolebindings", "patch networkpolicies"},
		},
		{
			name: "a namespace that is being deleted according to the API server only",
			refuse: &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
				Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}}}},
			want:     []string{"AccountOpen=True(Opened)", "NamespaceReady=False(NamespaceTerminating)", "Ready=False(NamespaceTerminating)"},
			accounts: 1,
			writes:   []string{"patch tenants", "update tenants/status", "create namespaces", "patch resourcequotas", "patch rolebindings", "patch networkpolicies"},
		},
		{
			name:     "an internal error of the API server is not in the conditions",
			refuse:   apierrors.NewInternalError(errors.New("etcd at 10:42:17.003")),
			want:     []string{"AccountOpen=True(Opened)", "Ready=Unknown(NotReported)"},
			fails:    true,
			accounts: 1,
			writes:   []string{"patch tenants", "update tenants/status", "create namespaces", "patch resourcequotas", "patch rolebindings", "patch networkpolicies"},
		},
		{
			name:   "billing fails: the children are created",
			mode:   billing.Fail,
			want:   []string{"AccountOpen=False(BillingUnavailable)", "NamespaceReady=True(Applied)", "Ready=False(BillingUnavailable)"},
			fails:  true,
			writes: []string{"patch tenants", "update tenants/status", "create namespaces", "patch resourcequotas", "patch rolebindings", "patch networkpolicies"},
		},
		{
			name:    "billing fails and the namespace is taken: the error is not terminal",
			objects: []runtime.Object{namespace(func(*corev1.Namespace) {})},
			mode:    billing.Fail,
			want:    []string{"AccountOpen=False(BillingUnavailable)", "NamespaceReady=False(NamespaceTaken)", "Ready=False(NamespaceTaken)"},
			fails:   true,
			writes:  []string{"patch tenants", "update tenants/status"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tenant := newTenant()
			if tt.tenant != nil {
				tt.tenant(tenant)
			}
			f := newFixture(t, tenant)
			for _, o := range tt.objects {
				if err := f.kube.Tracker().Add(o); err != nil {
					t.Fatal(err)
				}
			}
			if !tt.stale {
				f.Sync(t)
			}
			if tt.refuse != nil {
				f.kube.PrependReactor("patch", "resourcequotas", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, tt.refuse })
			}
			if tt.mode != "" {
				if err := f.billing.SetMode(tt.mode, 0); err != nil {
					t.Fatal(err)
				}
			}
			f.writes()
			err := f.Reconcile(t.Context(), "blue")
			// The loop treats joined errors as terminal only if all of them are.
			if terminal := err != nil && !tt.fails && errors.Is(err, reconcile.ErrTerminal); terminal != tt.terminal {
				t.Errorf("got error %v, want terminal: %v", err, tt.terminal)
			}
			if tt.fails != (err != nil && !tt.terminal) {
				t.Errorf("got error %v, want one: %v", err, tt.fails)
			}
			after := f.tenant(t)
			if diff := cmp.Diff(tt.want, conditions(after)); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
			if after.Status.ObservedGeneration != 3 {
				t.Errorf("observedGeneration: got %d, want 3", after.Status.ObservedGeneration)
			}
			if got := len(f.billing.Accounts()); got != tt.accounts {
				t.Errorf("got %d accounts, want %d", got, tt.accounts)
			}
			if diff := cmp.Diff(tt.writes, f.writes()); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}

			// A second reconcile with the same failure does not write the status.
			f.Sync(t)
			f.writes()
			_ = f.Reconcile(t.Context(), "blue")
			if got := f.writes(); slices.Contains(got, "update tenants/status") {
				t.Errorf("the second attempt wrote %v, want no status", got)
			}
		})
	}
}

func TestUnwantedChildrenAreDeleted(t *testing.T) {
	f := newFixture(t, newTenant())
	if err := f.Reconcile(t.Context(), "blue"); err != nil {
		t.Fatal(err)
	}
	tenant := f.tenant(t)
	tenant.Spec.Members, tenant.Spec.Quota, tenant.Spec.NetworkIsolation = nil, nil, false
	if err := f.tenancy.Tracker().Update(v1alpha1.SchemeGroupVersion.WithResource("tenants"), tenant, ""); err != nil {
		t.Fatal(err)
	}
	// Meanwhile the policy has lost its owner.
	policy, err := f.kube.NetworkingV1().NetworkPolicies("blue").Get(t.Context(), "tenant", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	policy.OwnerReferences = nil
	if err := f.kube.Tracker().Update(networkingv1.SchemeGroupVersion.WithResource("networkpolicies"), policy, "blue"); err != nil {
		t.Fatal(err)
	}
	f.Sync(t)
	f.writes()
	if err := f.Reconcile(t.Context(), "blue"); err != nil {
		t.Fatal(err)
	}
	for _, a := range f.kube.Actions() {
		if d, ok := a.(clienttesting.DeleteAction); ok && d.GetDeleteOptions().Preconditions == nil {
			t.Errorf("%s was deleted without a uid precondition", a.GetResource().Resource)
		}
	}
	if diff := cmp.Diff([]string{"delete resourcequotas", "delete rolebindings"}, f.writes()); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
}

func TestStopWritesNoStatus(t *testing.T) {
	f := newFixture(t, newTenant())
	ctx, stop := context.WithCancel(t.Context())
	f.onBilling = func(*http.Request) { stop() }
	if err := f.billing.SetMode(billing.Fail, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Reconcile(ctx, "blue"); err == nil {
		t.Error("got no error, want one")
	}
	if got := conditions(f.tenant(t)); len(got) != 0 {
		t.Errorf("conditions after a stop: %v, want none", got)
	}
}

func TestDeletedTenant(t *testing.T) {
	f := newFixture(t, newTenant())
	if err := f.tenancy.Tracker().Delete(v1alpha1.SchemeGroupVersion.WithResource("tenants"), "", "blue"); err != nil {
		t.Fatal(err)
	}
	// The cache still contains it. A 404 is an error, because a proxy may have sent it; the
	// event of the deletion ends the retries.
	if err := f.Reconcile(t.Context(), "blue"); !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want NotFound", err)
	}
	f.Sync(t)
	if err := f.Reconcile(t.Context(), "blue"); err != nil {
		t.Errorf("got %v, want no error", err)
	}
	if got := f.billing.Counts(); got != (billing.Counts{}) {
		t.Errorf("requests to billing: %+v, want none", got)
	}
}

func TestNewRequiredFields(t *testing.T) {
	if err := controller.Register(t.Context(), nil, controller.Config{}); err == nil || !strings.Contains(err.Error(), "Config.Billing") {
		t.Errorf("got %v, want an error that names Config.Billing", err)
	}
}

func TestForeignChildNotInCache(t *testing.T) {
	for _, tt := range []struct {
		name string
		hard corev1.ResourceList
	}{
		{"the same field", corev1.ResourceList{"pods": resource.MustParse("1")}},
		{"another field", corev1.ResourceList{"requests.storage": resource.MustParse("10Gi")}}, // no conflict of an apply
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, newTenant())
			theirs := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}, Spec: corev1.ResourceQuotaSpec{Hard: tt.hard}}
			quotas := f.kube.CoreV1().ResourceQuotas("blue")
			before, err := quotas.Create(t.Context(), theirs, metav1.CreateOptions{FieldManager: "somebody"})
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Reconcile(t.Context(), "blue"); !errors.Is(err, reconcile.ErrTerminal) {
				t.Errorf("got %v, want a terminal error", err)
			}
			if diff := cmp.Diff([]string{"AccountOpen=True(Opened)", "NamespaceReady=False(ObjectTaken)", "Ready=False(ObjectTaken)"}, conditions(f.tenant(t))); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
			after, err := quotas.Get(t.Context(), "tenant", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("the quota changed (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNamespaceLabelIsRestored(t *testing.T) {
	f := newFixture(t, newTenant())
	if err := f.Reconcile(t.Context(), "blue"); err != nil {
		t.Fatal(err)
	}
	namespaces := f.kube.CoreV1().Namespaces()
	ns, err := namespaces.Get(t.Context(), "blue", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ns.Labels = map[string]string{controller.TenantLabel: "green", "theirs": "stays"}
	if _, err := namespaces.Update(t.Context(), ns, metav1.UpdateOptions{FieldManager: "somebody"}); err != nil {
		t.Fatal(err)
	}
	f.Sync(t)
	f.writes()
	if err := f.Reconcile(t.Context(), "blue"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"patch namespaces"}, f.writes()); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	if ns, err = namespaces.Get(t.Context(), "blue", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{controller.TenantLabel: "blue", "theirs": "stays"}, ns.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
}
