package controller_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/examples/tenant/api/v1alpha1"
	"github.com/controllerkit/controllerkit/examples/tenant/billing"
	"github.com/controllerkit/controllerkit/examples/tenant/controller"
	"github.com/controllerkit/controllerkit/reconcile"
)

// newDeletion returns a fixture whose tenant has its namespace and its account, and is being
// deleted for age. change changes both objects. As in a cluster, the deletion of the namespace
// takes until endNamespace.
func newDeletion(t *testing.T, age time.Duration, change func(*v1alpha1.Tenant, *corev1.Namespace)) *fixture {
	t.Helper()
	f := newFixture(t, newTenant())
	if err := f.Reconcile(t.Context(), "blue"); err != nil {
		t.Fatal(err)
	}
	tenant, ns := f.tenant(t), f.namespace(t)
	tenant.DeletionTimestamp, tenant.Generation = ptr.To(metav1.NewTime(time.Now().Add(-age))), 4
	ns.UID, ns.ResourceVersion = "uid-of-the-namespace", "1" // the fake sets none of these
	change(tenant, ns)
	f.update(t, tenant, ns)
	f.kube.PrependReactor("delete", "namespaces", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if p := action.(clienttesting.DeleteAction).GetDeleteOptions().Preconditions; p == nil || ptr.Deref(p.UID, "") != ns.UID {
			t.Errorf("the namespace was deleted with the preconditions %v, want its UID", p)
		}
		ns.DeletionTimestamp = ptr.To(metav1.Now())
		return true, nil, f.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("namespaces"), ns, "")
	})
	f.writes()
	return f
}

func (f *fixture) namespace(t *testing.T) *corev1.Namespace {
	t.Helper()
	ns, err := f.kube.CoreV1().Namespaces().Get(t.Context(), "blue", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// update changes objects in the fake servers and the caches.
func (f *fixture) update(t *testing.T, tenant *v1alpha1.Tenant, ns *corev1.Namespace) {
	t.Helper()
	if err := f.tenancy.Tracker().Update(v1alpha1.SchemeGroupVersion.WithResource("tenants"), tenant, ""); err != nil {
		t.Fatal(err)
	}
	if err := f.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("namespaces"), ns, ""); err != nil {
		t.Fatal(err)
	}
	f.Sync(t)
}

func (f *fixture) endNamespace(t *testing.T) {
	t.Helper()
	if err := f.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("namespaces"), "", "blue"); err != nil {
		t.Fatal(err)
	}
	f.Sync(t)
}

// blocked checks that the deletion waits for a step, and that the conditions report it.
func (f *fixture) blocked(t *testing.T, reason string, want ...string) {
	t.Helper()
	tenant := f.tenant(t)
	if diff := cmp.Diff(want, conditions(tenant)); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	for _, name := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionTerminating} {
		c := meta.FindStatusCondition(tenant.Status.Conditions, name)
		if c == nil || !strings.Contains(c.Message, reason) || c.ObservedGeneration != 4 {
			t.Errorf("condition %s = %+v, want the reason %q and generation 4", name, c, reason)
		}
	}
	if !slices.Contains(tenant.Finalizers, controller.Finalizer) || len(f.billing.Accounts()) != 1 {
		t.Errorf("got finalizers %v and accounts %v, want both kept while a step blocks", tenant.Finalizers, f.billing.Accounts())
	}
	if f.Result.RequeueAfter <= 0 {
		t.Error("the result has no RequeueAfter, want that of the plan")
	}
}

// cleaned reconciles and checks that the cleanup is done.
func (f *fixture) cleaned(t *testing.T) {
	t.Helper()
	f.Sync(t)
	if err := f.Reconcile(t.Context(), "blue"); err != nil {
		t.Error(err)
	}
	if got := f.billing.Accounts(); len(got) != 0 {
		t.Errorf("accounts after the cleanup: %v, want none", got)
	}
	if slices.Contains(f.tenant(t).Finalizers, controller.Finalizer) {
		t.Error("the finalizer is left after the cleanup")
	}
}

func TestDeletion(t *testing.T) {
	f := newDeletion(t, 0, func(*v1alpha1.Tenant, *corev1.Namespace) {})
	if err := f.billing.SetMode(billing.Fail, 0); err != nil {
		t.Fatal(err)
	}
	// The first pass deletes the namespace, the second waits for its end.
	for _, writes := range [][]string{{"patch tenants", "update tenants/status", "delete namespaces"}, {"patch tenants"}} {
		if err := f.Reconcile(t.Context(), "blue"); err != nil {
			t.Errorf("got %v while the namespace is being deleted, want no error", err)
		}
		if diff := cmp.Diff(writes, f.writes()); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
		f.Sync(t)
		f.blocked(t, "step namespace: 1 left: blue",
			"AccountOpen=True(Opened)", "NamespaceReady=False(NamespaceTerminating)", "Ready=False(NamespaceTerminating)", "Terminating=True(StepWaiting)")
		f.writes()
	}

	// Each of the two steps reads the tenant by a patch in dry run.
	f.endNamespace(t)
	for _, writes := range [][]string{{"patch tenants", "patch tenants", "update tenants/status"}, {"patch tenants", "patch tenants"}} {
		if err := f.Reconcile(t.Context(), "blue"); err == nil || errors.Is(err, reconcile.ErrTerminal) {
			t.Errorf("got %v while billing fails, want an error that is retried", err)
		}
		if diff := cmp.Diff(writes, f.writes()); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
		f.Sync(t)
		f.blocked(t, "step account: billing: close: the service returned 503",
			"AccountOpen=Unknown(BillingUnavailable)", "NamespaceReady=False(NamespaceTerminating)", "Ready=False(BillingUnavailable)", "Terminating=True(StepFailed)")
		f.writes()
	}

	if err := f.billing.SetMode(billing.OK, 0); err != nil {
		t.Fatal(err)
	}
	f.cleaned(t)
}

// TestDeletionKeepsNamespace: the cleanup does not delete a namespace that the tenant does not
// own, or that the user keeps.
func TestDeletionKeepsNamespace(t *testing.T) {
	t.Run("of another owner", func(t *testing.T) {
		f := newDeletion(t, 0, func(_ *v1alpha1.Tenant, ns *corev1.Namespace) { ns.OwnerReferences[0].UID = "other" })
		f.cleaned(t)
		if got := f.writes(); slices.Contains(got, "delete namespaces") {
			t.Errorf("writes: %v, want the namespace kept", got)
		}
	})
	t.Run("cascade=orphan", func(t *testing.T) {
		f := newDeletion(t, 0, func(tenant *v1alpha1.Tenant, _ *corev1.Namespace) {
			tenant.Finalizers = append(tenant.Finalizers, metav1.FinalizerOrphanDependents)
		})
		if err := f.Reconcile(t.Context(), "blue"); err != nil {
			t.Error(err)
		}
		f.blocked(t, "the garbage collector",
			"AccountOpen=True(Opened)", "NamespaceReady=False(NamespaceTerminating)", "Ready=False(NamespaceTerminating)", "Terminating=True(StepWaiting)")

		// The garbage collector releases the namespace.
		tenant, ns := f.tenant(t), f.namespace(t)
		tenant.Finalizers, ns.OwnerReferences = []string{controller.Finalizer}, nil
		f.update(t, tenant, ns)
		f.cleaned(t)
		if got := f.writes(); slices.Contains(got, "delete namespaces") {
			t.Errorf("writes: %v, want the namespace kept", got)
		}
	})
}

func TestDeletionGivesUpTheNamespace(t *testing.T) {
	for _, tt := range []struct {
		age   time.Duration
		given bool
	}{{59 * time.Minute, false}, {time.Hour, true}} {
		t.Run(tt.age.String(), func(t *testing.T) {
			f := newDeletion(t, tt.age, func(_ *v1alpha1.Tenant, ns *corev1.Namespace) { ns.DeletionTimestamp = ptr.To(metav1.Now()) })
			if tt.given {
				f.cleaned(t)
				return
			}
			if err := f.Reconcile(t.Context(), "blue"); err != nil {
				t.Error(err)
			}
			f.blocked(t, "step namespace",
				"AccountOpen=True(Opened)", "NamespaceReady=False(NamespaceTerminating)", "Ready=False(NamespaceTerminating)", "Terminating=True(StepWaiting)")
		})
	}
	t.Run("the account never", func(t *testing.T) {
		f := newDeletion(t, 1000*time.Hour, func(*v1alpha1.Tenant, *corev1.Namespace) {})
		f.endNamespace(t)
		if err := f.billing.SetMode(billing.Fail, 0); err != nil {
			t.Fatal(err)
		}
		if err := f.Reconcile(t.Context(), "blue"); err == nil {
			t.Error("got no error while billing fails, want one")
		}
		f.blocked(t, "step account",
			"AccountOpen=Unknown(BillingUnavailable)", "NamespaceReady=True(Applied)", "Ready=False(BillingUnavailable)", "Terminating=True(StepFailed)")
	})
}

// TestDeletionRefused: the conditions report only errors of the API server that a person must
// fix. The text of others differs from attempt to attempt.
func TestDeletionRefused(t *testing.T) {
	for _, tt := range []struct {
		name   string
		refuse error
		writes []string
	}{
		{"forbidden", apierrors.NewForbidden(corev1.Resource("namespaces"), "blue", errors.New("a policy")), []string{"patch tenants", "update tenants/status", "delete namespaces"}},
		{"internal error", apierrors.NewInternalError(errors.New("etcd at 10:42:17.003")), []string{"patch tenants", "delete namespaces"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newDeletion(t, 0, func(*v1alpha1.Tenant, *corev1.Namespace) {})
			f.kube.PrependReactor("delete", "namespaces", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, tt.refuse })
			if err := f.Reconcile(t.Context(), "blue"); !errors.Is(err, tt.refuse) {
				t.Errorf("got %v, want %v", err, tt.refuse)
			}
			if diff := cmp.Diff(tt.writes, f.writes()); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
			if f.Result.RequeueAfter <= 0 || len(f.billing.Accounts()) != 1 {
				t.Errorf("got RequeueAfter %v and accounts %v, want a retry and the account kept", f.Result.RequeueAfter, f.billing.Accounts())
			}
		})
	}
}
