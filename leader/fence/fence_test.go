package fence_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/leader/fence"
	"github.com/controllerkit/controllerkit/leader/internal/shop"
)

const stampKey = leader.TermAnnotation

// shopFence is the fence of manifests/fence.yaml.
func shopFence() fence.Fence {
	return fence.Fence{
		Name:           "shop-controller",
		LeaseNamespace: "shop",
		LeaseName:      "shop-controller",
		Users:          []string{"system:serviceaccount:shop:shop-controller"},
		Resources:      []schema.GroupResource{{Resource: "configmaps"}, {Group: "apps", Resource: "deployments"}},
	}
}

// TestFenceManifest: the manifest equals the rendered policy.
func TestFenceManifest(t *testing.T) {
	policy, binding, err := shopFence().Policy()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, doc := range shop.Manifest(t, "manifests/fence.yaml", "shop") {
		switch kindOf(t, doc) {
		case policy.Kind:
			found++
			var got admissionregistrationv1.ValidatingAdmissionPolicy
			if err := yaml.UnmarshalStrict(doc, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(policy, &got); diff != "" {
				t.Errorf("policy (-rendered +manifest):\n%s", diff)
			}
		case binding.Kind:
			found++
			var got admissionregistrationv1.ValidatingAdmissionPolicyBinding
			if err := yaml.UnmarshalStrict(doc, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(binding, &got); diff != "" {
				t.Errorf("binding (-rendered +manifest):\n%s", diff)
			}
		}
	}
	if found != 2 {
		t.Errorf("%d of policy and binding in the manifest, want 2", found)
	}
}

func kindOf(t *testing.T, doc []byte) string {
	t.Helper()
	var meta metav1.TypeMeta
	if err := yaml.Unmarshal(doc, &meta); err != nil || meta.Kind == "" {
		t.Fatalf("a document without a kind (%v):\n%s", err, doc)
	}
	return meta.Kind
}

// TestFencePolicyQuotes: a user name cannot end the expression that it is in.
func TestFencePolicyQuotes(t *testing.T) {
	f := shopFence()
	f.Users = []string{`a"] || true || request.userInfo.username in ["b\`, "é\n"}
	policy, _, err := f.Policy()
	if err != nil {
		t.Fatal(err)
	}
	want := `request.userInfo.username in ["a\"] || true || request.userInfo.username in [\"b\\", "\u00e9\n"]`
	if got := policy.Spec.MatchConditions[0].Expression; !strings.HasPrefix(got, want+" ? ") {
		t.Errorf("condition = %s, want it to begin with %s", got, want)
	}
	if got := policy.Spec.Variables[0].Expression; got != want {
		t.Errorf("variable = %s, want %s", got, want)
	}
}

func TestFencePolicyErrors(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*fence.Fence)
		want   string // "" is no error
	}{
		{name: "valid", change: func(*fence.Fence) {}},
		{name: "person", change: func(f *fence.Fence) { f.Users = []string{"jane@example.com"} }},
		{name: "allow", change: func(f *fence.Fence) { f.ParameterNotFoundAction = admissionregistrationv1.AllowAction }},
		{name: "other action", change: func(f *fence.Fence) { f.ParameterNotFoundAction = "deny" }, want: `ParameterNotFoundAction is "deny": set it to Allow or Deny`},
		{name: "no name", change: func(f *fence.Fence) { f.Name = "" }, want: `fence: Name is ""`},
		{name: "bad name", change: func(f *fence.Fence) { f.Name = "Shop" }, want: `Name is "Shop"`},
		{name: "no namespace", change: func(f *fence.Fence) { f.LeaseNamespace = "" }, want: `LeaseNamespace is "": set it to the Namespace of the Elector`},
		{name: "bad namespace", change: func(f *fence.Fence) { f.LeaseNamespace = "a.b" }, want: `LeaseNamespace is "a.b"`},
		{name: "no Lease", change: func(f *fence.Fence) { f.LeaseName = "" }, want: `LeaseName is "": set it to the Name of the Elector`},
		{name: "bad Lease", change: func(f *fence.Fence) { f.LeaseName = `x" + "` }, want: `LeaseName is "x\" + \""`},
		{name: "no users", change: func(f *fence.Fence) { f.Users = nil }, want: "Users is empty: set it to the user names of the replicas, e.g. system:serviceaccount:shop:"},
		{name: "empty user", change: func(f *fence.Fence) { f.Users = append(f.Users, "") }, want: `Users[1] is ""`},
		{name: "account without namespace", change: func(f *fence.Fence) { f.Users[0] = "system:serviceaccount:shop" }, want: "Users[0] is"},
		{name: "account without name", change: func(f *fence.Fence) { f.Users[0] = "system:serviceaccount:shop:" }, want: "Users[0] is"},
		{name: "account with a slash", change: func(f *fence.Fence) { f.Users[0] = "system:serviceaccount:shop/a:b" }, want: "Users[0] is"},
		{name: "no resources", change: func(f *fence.Fence) { f.Resources = nil }, want: "Resources is empty"},
		{name: "no resource", change: func(f *fence.Fence) { f.Resources[1].Resource = "" }, want: `Resources[1] is "" of group "apps"`},
		{name: "wildcard", change: func(f *fence.Fence) { f.Resources[0].Resource = "*" }, want: "without version, subresource or wildcard"},
		{name: "subresource", change: func(f *fence.Fence) { f.Resources[0].Resource = "pods/status" }, want: `Resources[0] is "pods/status"`},
		{name: "reviews", change: func(f *fence.Fence) {
			f.Resources[1] = schema.GroupResource{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}
		}, want: `Resources[1] is "subjectaccessreviews" of group "authorization.k8s.io": leave it out`},
		{name: "policies", change: func(f *fence.Fence) {
			f.Resources[1] = schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicies"}
		}, want: `the API server exempts it from admission policies`},
		{name: "webhooks", change: func(f *fence.Fence) {
			f.Resources[1] = schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: "validatingwebhookconfigurations"}
		}},
		{name: "group and version", change: func(f *fence.Fence) { f.Resources[1].Group = "apps/v1" }, want: `of group "apps/v1"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := shopFence()
			tt.change(&f)
			policy, binding, err := f.Policy()
			if tt.want == "" {
				if err != nil || policy == nil || binding == nil {
					t.Errorf("Policy() = %v, %v, %v, want both and no error", policy, binding, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "fence: ") {
				t.Errorf("Policy() error = %v, want one that says %q", err, tt.want)
			}
		})
	}
}
