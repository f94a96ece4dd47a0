package fence_test

import (
	"fmt"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader/fence"
	"github.com/controllerkit/controllerkit/leader/internal/shop"
)

// TestServerFenceAgain deletes a Fence and creates it again. With manifests/keep-leases.yaml
// the second Fence compares with the Lease as it is, and without that file with the Lease as
// it was at the deletion, which is a fault of kube-apiserver (Kubernetes issue 130887).
//
// Proves L13.
func TestServerFenceAgain(t *testing.T) {
	t.Parallel()
	// The test needs a cluster without other Fences, and leaves it with the fault.
	server := testserver.Own(t)
	clients := kubernetes.NewForConfigOrDie(server.Config())
	admission := clients.AdmissionregistrationV1()
	self, err := clients.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	policy, binding, err := fence.Fence{
		Name: "again", LeaseNamespace: "default", LeaseName: "shop", Users: []string{self.Status.UserInfo.Username},
		Resources: []schema.GroupResource{{Resource: "configmaps"}},
	}.Policy()
	if err != nil {
		t.Fatal(err)
	}
	create := func(policy *admissionregistrationv1.ValidatingAdmissionPolicy, binding *admissionregistrationv1.ValidatingAdmissionPolicyBinding) {
		t.Helper()
		if _, err := admission.ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := admission.ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(name string) {
		t.Helper()
		if err := admission.ValidatingAdmissionPolicyBindings().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := admission.ValidatingAdmissionPolicies().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// write sends a dry run of a write that carries the stamp.
	write := func(stamp string) error {
		obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe", Annotations: map[string]string{stampKey: stamp}}}
		_, err := clients.CoreV1().ConfigMaps("default").Create(t.Context(), obj, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	inForce := func(want bool) {
		t.Helper()
		shop.Eventually(t, fmt.Sprintf("the fence is in force: %v", want), func() error {
			if err := write("malformed"); apierrors.IsInvalid(err) != want {
				return fmt.Errorf("the response to a malformed term is: %v", err)
			}
			return nil
		})
	}
	setTerm := func(number int32) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"spec":{"leaseTransitions":%d}}`, number)
		if _, err := clients.CoordinationV1().Leases("default").Patch(t.Context(), "shop", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	lease, err := clients.CoordinationV1().Leases("default").Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("b"), LeaseTransitions: ptr.To[int32](3)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	term := func(number int) string { return fmt.Sprintf("%s/%d", lease.UID, number) }

	keeper, keeperBinding := keepLeases(t)
	create(keeper, keeperBinding)
	create(policy, binding)
	inForce(true)
	if err := write(term(2)); !apierrors.IsForbidden(err) {
		t.Errorf("the first fence: a write of the former term: %v", err)
	}
	remove(policy.Name)
	inForce(false)
	setTerm(4)
	create(policy, binding)
	inForce(true)
	shop.Eventually(t, "the second fence refuses a term that was the present one during the first", func() error {
		if err := write(term(3)); !apierrors.IsForbidden(err) {
			return fmt.Errorf("error = %w, want Forbidden", err)
		}
		return nil
	})
	if err := write(term(4)); err != nil {
		t.Errorf("the second fence: a write of the present term: %v", err)
	}

	remove(keeper.Name)
	remove(policy.Name)
	inForce(false)
	setTerm(5)
	create(policy, binding)
	inForce(true)
	for range 50 {
		if err := write(term(4)); err != nil {
			t.Fatalf("without the binding that keeps Leases a former term was refused, so kube-apiserver has no fault here any more: "+
				"remove manifests/keep-leases.yaml and its paragraph in Fence: %v", err)
		}
	}
}

// keepLeases returns the objects of manifests/keep-leases.yaml.
func keepLeases(t *testing.T) (policy *admissionregistrationv1.ValidatingAdmissionPolicy, binding *admissionregistrationv1.ValidatingAdmissionPolicyBinding) {
	t.Helper()
	docs := shop.Manifest(t, "manifests/keep-leases.yaml", "shop")
	if len(docs) != 2 {
		t.Fatalf("%d documents, want a policy and a binding", len(docs))
	}
	for i, into := range []any{&policy, &binding} {
		if err := yaml.UnmarshalStrict(docs[i], into); err != nil {
			t.Fatal(err)
		}
	}
	return policy, binding
}
