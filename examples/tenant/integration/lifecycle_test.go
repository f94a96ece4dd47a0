package integration_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/examples/tenant/api/v1alpha1"
	"github.com/controllerkit/controllerkit/examples/tenant/billing"
	"github.com/controllerkit/controllerkit/examples/tenant/internal/observer"
	"github.com/controllerkit/controllerkit/internal/lab"
)

// state is the state of a tenant, without values that differ from run to run.
type state struct {
	Quota     map[corev1.ResourceName]string
	Subjects  []string
	Role      string
	Policies  int
	Accounts  int
	Status    []string
	Namespace string
}

// stateOf returns the state of a tenant. If a child exists twice, it returns an error.
func (w *world) stateOf(t *v1alpha1.Tenant) (state, error) {
	var s state
	quotas, err := w.Quotas.ResourceQuotas(t.Name).List(labels.Everything())
	bindings, bindingErr := w.RoleBindings.RoleBindings(t.Name).List(labels.Everything())
	policies, policyErr := w.NetworkPolicies.NetworkPolicies(t.Name).List(labels.Everything())
	if err := errors.Join(err, bindingErr, policyErr); err != nil {
		return s, err
	}
	if len(quotas) > 1 || len(bindings) > 1 {
		return s, fmt.Errorf("namespace %s has %d quotas and %d role bindings", t.Name, len(quotas), len(bindings))
	}
	for _, q := range quotas {
		s.Quota = map[corev1.ResourceName]string{}
		for name, amount := range q.Spec.Hard {
			s.Quota[name] = amount.String()
		}
	}
	for _, b := range bindings {
		s.Role = b.RoleRef.Kind + "/" + b.RoleRef.Name
		for _, subject := range b.Subjects {
			s.Subjects = append(s.Subjects, strings.Join([]string{subject.Kind, subject.Namespace, subject.Name}, "/"))
		}
	}
	s.Policies = len(policies)
	s.Accounts = w.accounts(t)
	got, err := w.TenantLister.Get(t.Name)
	if err != nil {
		return s, err
	}
	for _, c := range got.Status.Conditions {
		s.Status = append(s.Status, c.Type+"="+string(c.Status))
	}
	s.Namespace = strings.ReplaceAll(got.Status.Namespace, t.Name, "<name>")
	return s, nil
}

func (w *world) awaitState(t *v1alpha1.Tenant, want state) {
	w.t.Helper()
	w.await(func() error {
		got, err := w.stateOf(t)
		if err != nil {
			return err
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("state of tenant %s (-want +got):\n%s", t.Name, diff)
		}
		return w.stored(t)
	})
}

// created returns the state that tenant specifies. edited returns the state after edit.
func created() state {
	return state{
		Quota:     map[corev1.ResourceName]string{"cpu": "4", "memory": "8Gi", "pods": "10"},
		Subjects:  []string{"User//alice", "Group//devs", "ServiceAccount/default/robot"},
		Role:      "ClusterRole/edit",
		Policies:  1,
		Accounts:  1,
		Status:    []string{"NamespaceReady=True", "AccountOpen=True", "Ready=True"},
		Namespace: "<name>",
	}
}

func edited() state {
	s := created()
	s.Quota["pods"] = "20"
	s.Subjects = []string{"User//bob"}
	s.Policies = 0
	return s
}

func (w *world) edit(name string) *v1alpha1.Tenant {
	w.t.Helper()
	t, err := w.Tenants.TenancyV1alpha1().Tenants().Patch(w.t.Context(), name, types.MergePatchType,
		[]byte(`{"spec":{"members":["bob"],"quota":{"pods":"20"},"networkIsolation":false}}`), metav1.PatchOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return t
}

// removeQuota deletes the quota with another client and waits until the controller
// has created a new one.
func (w *world) removeQuota(namespace string) {
	w.t.Helper()
	quota := func() (*corev1.ResourceQuota, error) {
		all, err := w.Quotas.ResourceQuotas(namespace).List(labels.Everything())
		if err == nil && len(all) != 1 {
			err = fmt.Errorf("namespace %s has %d quotas, want one", namespace, len(all))
		}
		if err != nil {
			return nil, err
		}
		return all[0], nil
	}
	before, err := quota()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.Kube.CoreV1().ResourceQuotas(namespace).Delete(w.t.Context(), before.Name, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.await(func() error {
		after, err := quota()
		if err == nil && after.UID == before.UID {
			err = errors.New("the observer has not seen the deletion")
		}
		return err
	})
}

// TestLifecycle runs a tenant's life from creation to deletion with one controller and
// without faults.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.run()

	blue := w.create(tenant("blue"))
	w.awaitState(blue, created())
	blue = w.edit("blue")
	w.awaitState(blue, edited())
	w.removeQuota("blue")
	w.awaitState(blue, edited())

	t.Run("drift", func(t *testing.T) {
		// Another client changes the quota and the members.
		if _, err := w.Kube.CoreV1().ResourceQuotas("blue").Patch(t.Context(), "tenant", types.MergePatchType,
			[]byte(`{"spec":{"hard":{"pods":"1000"}}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Kube.RbacV1().RoleBindings("blue").Patch(t.Context(), "tenant", types.MergePatchType,
			[]byte(`{"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"mallory"}]}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		w.await(func() error {
			// The patches above have changed the objects already, so only a later
			// write of the controller makes cond succeed.
			q, err := w.Kube.CoreV1().ResourceQuotas("blue").Get(t.Context(), "tenant", metav1.GetOptions{})
			if err != nil {
				return err
			}
			b, err := w.Kube.RbacV1().RoleBindings("blue").Get(t.Context(), "tenant", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if len(b.Subjects) != 1 || b.Subjects[0].Name != "bob" {
				return fmt.Errorf("members = %v, want bob alone", b.Subjects)
			}
			return observer.HasPods(q, 20)
		})
	})

	t.Run("deletion waits for billing", func(t *testing.T) {
		for _, mode := range []billing.Mode{billing.Fail, billing.Hang} {
			name := "while-" + string(mode)
			victim := w.create(tenant(name))
			w.awaitState(victim, created())
			if err := w.billing.SetMode(mode, 0); err != nil {
				t.Fatal(err)
			}
			if err := w.Tenants.TenancyV1alpha1().Tenants().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			w.await(func() error {
				got, err := w.TenantLister.Get(name)
				if err != nil {
					t.Fatalf("tenant %s was removed although its account could not be closed: %v", name, err)
				}
				c := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionReady)
				if c == nil || c.Status != metav1.ConditionFalse || c.Reason != "BillingUnavailable" {
					return fmt.Errorf("condition Ready = %v, want False for BillingUnavailable", c)
				}
				c = meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionTerminating)
				if c == nil || c.Reason != "StepFailed" || !strings.Contains(c.Message, "step account: billing: close") {
					return fmt.Errorf("condition Terminating = %v, want StepFailed for the step account", c)
				}
				return w.NamespaceGone(name)
			})
			if n := w.accounts(victim); n != 1 {
				t.Errorf("%s: %d accounts while billing is in mode %s, want 1", name, n, mode)
			}
			if err := w.billing.SetMode(billing.OK, 0); err != nil {
				t.Fatal(err)
			}
			w.await(func() error { return w.gone(name) })
			if n := w.accounts(victim); n != 0 {
				t.Errorf("%s: %d accounts after deletion, want none", name, n)
			}
		}
	})

	t.Run("cascade=orphan keeps the namespace", func(t *testing.T) {
		kept := w.create(tenant("kept"))
		w.awaitState(kept, created())
		if err := w.Tenants.TenancyV1alpha1().Tenants().Delete(t.Context(), "kept", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationOrphan)}); err != nil {
			t.Fatal(err)
		}
		w.await(func() error { return w.gone("kept") })
		ns, err := w.Kube.CoreV1().Namespaces().Get(t.Context(), "kept", metav1.GetOptions{})
		if err != nil || ns.DeletionTimestamp != nil || len(ns.OwnerReferences) > 0 {
			t.Errorf("namespace = %v, %v, want it without an owner", ns, err)
		}
	})

	w.delete("blue")
	if n := len(w.billing.Accounts()); n != 0 {
		t.Errorf("%d accounts after all tenants were deleted, want none", n)
	}
	w.await(func() error { return w.NamespaceGone("blue") })
}

// TestSteadyState checks that the controller writes only its Lease while nothing
// changes.
func TestSteadyState(t *testing.T) {
	t.Parallel()
	const quiet = 60 * time.Second
	w := newWorld(t)
	r := w.replica("-leader-elect", "-leader-election-namespace", observer.SystemNamespace)
	w.start(r)
	for _, name := range []string{"blue", "green", "red"} {
		w.awaitState(w.create(tenant(name)), created())
	}
	begin := time.Now()
	select {
	case <-time.After(quiet): // this is the measurement
	case <-r.Ended():
		t.Fatalf("the controller ended:\n%s", r.Tail(20))
	}
	if writes := w.Writes(begin); len(writes) > 0 {
		t.Errorf("%d writes in %v although nothing changed, want none:\n%s", len(writes), quiet, lab.OpsText(writes))
	}
	renewals := 0
	for _, op := range w.Ops() {
		if op.Write && op.Lease && op.At.After(begin) {
			renewals++
		}
	}
	if renewals < 10 {
		t.Errorf("%d renewals of the Lease in %v, want at least 10: the proxy does not record the requests", renewals, quiet)
	}
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
}

// TestBadInput checks the outcome of invalid and blocked tenants.
func TestBadInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.run()
	tenants := w.Tenants.TenancyV1alpha1().Tenants()

	t.Run("the schema rejects", func(t *testing.T) {
		for _, tt := range []struct {
			name string
			edit func(*v1alpha1.Tenant)
			want string
		}{
			{name: "unknown plan", edit: func(o *v1alpha1.Tenant) { o.Spec.Account.Plan = "Gold" }, want: "spec.account.plan"},
			{name: "dots in the name", edit: func(o *v1alpha1.Tenant) { o.Name = "a.b" }, want: "no dots"},
			{name: "two equal members", edit: func(o *v1alpha1.Tenant) { o.Spec.Members = []string{"a", "a"} }, want: "spec.members[1]"},
			{name: "empty member", edit: func(o *v1alpha1.Tenant) { o.Spec.Members = []string{""} }, want: "spec.members[0]"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				obj := tenant("rejected")
				tt.edit(obj)
				_, err := tenants.Create(t.Context(), obj, metav1.CreateOptions{})
				if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("error = %v, want Invalid that names %q", err, tt.want)
				}
			})
		}
	})

	// refused waits until Ready is False for this reason. It then checks that the
	// controller sends no writes.
	refused := func(t *testing.T, name, reason, cure string) {
		t.Helper()
		w.await(func() error {
			got, err := w.TenantLister.Get(name)
			if err != nil {
				return err
			}
			c := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionReady)
			if c == nil || c.Status != metav1.ConditionFalse || c.Reason != reason || c.ObservedGeneration != got.Generation {
				return fmt.Errorf("condition Ready = %+v, want False for %s", c, reason)
			}
			if !strings.Contains(c.Message, cure) {
				t.Errorf("message %q lacks the cure %q", c.Message, cure)
			}
			return nil
		})
		begin := time.Now()
		<-time.After(3 * time.Second) // this is the measurement
		if writes := w.Writes(begin); len(writes) > 0 {
			t.Errorf("%d writes in 3s for a tenant that is not ready, want none:\n%s", len(writes), lab.OpsText(writes))
		}
	}

	t.Run("invalid member", func(t *testing.T) {
		obj := tenant("member")
		obj.Spec.Members = []string{"alice", "system:masters"}
		w.create(obj)
		refused(t, "member", "InvalidMember", `"system:masters"`)
		if err := w.NamespaceGone("member"); err != nil {
			t.Errorf("the controller created objects for an invalid spec: %v", err)
		}
		w.await(func() error { // the event of the edit enqueues the tenant
			_, err := tenants.Patch(t.Context(), "member", types.MergePatchType, []byte(`{"spec":{"members":["alice"]}}`), metav1.PatchOptions{})
			return err
		})
		w.await(func() error { return w.Ready("member") })
		w.delete("member")
	})

	t.Run("foreign namespace", func(t *testing.T) {
		foreign, err := w.Kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "foreign"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w.create(tenant("foreign"))
		refused(t, "foreign", "NamespaceTaken", "delete")
		after, err := w.Kube.CoreV1().Namespaces().Get(t.Context(), "foreign", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if after.ResourceVersion != foreign.ResourceVersion {
			t.Errorf("the foreign namespace was changed:\n%s", cmp.Diff(foreign, after))
		}
		quotas, err := w.Kube.CoreV1().ResourceQuotas("foreign").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(quotas.Items) > 0 {
			t.Errorf("quotas in the foreign namespace: %v, %v, want none", quotas.Items, err)
		}
		// The event of its deletion enqueues the tenant.
		if err := w.Kube.CoreV1().Namespaces().Delete(t.Context(), "foreign", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.await(func() error { return w.Ready("foreign") })
		w.delete("foreign")
	})

	t.Run("foreign namespace survives the tenant", func(t *testing.T) {
		if _, err := w.Kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "survivor"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.create(tenant("survivor"))
		refused(t, "survivor", "NamespaceTaken", "delete")
		w.delete("survivor")
		ns, err := w.Kube.CoreV1().Namespaces().Get(t.Context(), "survivor", metav1.GetOptions{})
		if err != nil || ns.DeletionTimestamp != nil {
			t.Errorf("the foreign namespace was deleted with the tenant: %v", err)
		}
	})
}
