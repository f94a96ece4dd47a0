package fence_test

import (
	"errors"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testnames"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader/fence"
)

// Policy accepts each name of a policy and of a Lease that the API server accepts.
func TestServerNames(t *testing.T) {
	client := kubernetes.NewForConfigOrDie(testserver.Config(t))
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	newFence := func(name, lease string) fence.Fence {
		return fence.Fence{Name: name, LeaseNamespace: "default", LeaseName: lease, Users: []string{"shop"}, Resources: []schema.GroupResource{{Resource: "configmaps"}}}
	}
	valid, bound, err := newFence("x", "x").Policy()
	if err != nil {
		t.Fatal(err)
	}
	names := testnames.All(t)
	testnames.Compare(t, names, func(name string) error {
		policy, binding := valid.DeepCopy(), bound.DeepCopy()
		policy.Name, binding.Name, binding.Spec.PolicyName = name, name, name
		// The policy is short, because the API server compiles its expressions.
		policy.Spec.MatchConditions, policy.Spec.Variables, policy.Spec.Validations = nil, nil, policy.Spec.Validations[:1]
		policy.Spec.Validations[0].Expression, policy.Spec.Validations[0].MessageExpression = "true", ""
		_, policyErr := client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(), policy, dryRun)
		_, bindingErr := client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, dryRun)
		return errors.Join(policyErr, bindingErr)
	}, func(name string) error {
		_, _, err := newFence(name, "x").Policy()
		return err
	}, nil)
	testnames.Compare(t, names, func(name string) error {
		_, err := client.CoordinationV1().Leases("default").Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}, dryRun)
		return err
	}, func(name string) error {
		_, _, err := newFence("x", name).Policy()
		return err
	}, nil)
}
