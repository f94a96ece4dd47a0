package fence_test

import (
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/leader/fence"
)

// The policy and its binding are applied once, when the controller is installed.
func ExampleFence_Policy() {
	policy, binding, err := fence.Fence{
		Name:           "shop-controller",
		LeaseNamespace: "shop",
		LeaseName:      "shop-controller",
		Users:          []string{"system:serviceaccount:shop:shop-controller"},
		Resources:      []schema.GroupResource{{Group: "apps", Resource: "deployments"}},
	}.Policy()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(policy.Kind, policy.Name, "has", len(policy.Spec.Validations), "rules")
	data, err := yaml.Marshal(binding)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _ = os.Stdout.Write(data)
	// Output:
	// ValidatingAdmissionPolicy shop-controller has 4 rules
	// apiVersion: admissionregistration.k8s.io/v1
	// kind: ValidatingAdmissionPolicyBinding
	// metadata:
	//   name: shop-controller
	// spec:
	//   paramRef:
	//     name: shop-controller
	//     namespace: shop
	//     parameterNotFoundAction: Allow
	//   policyName: shop-controller
	//   validationActions:
	//   - Deny
}
