package v1alpha1_test

import (
	"context"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/examples/tenant/api/v1alpha1"
	"github.com/controllerkit/controllerkit/examples/tenant/config"
	"github.com/controllerkit/controllerkit/internal/lab"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// TestSchema checks which tenants a real API server accepts with the CRD.
func TestSchema(t *testing.T) {
	cfg := testserver.Config(t)
	if err := lab.Install(t.Context(), cfg, config.Files, "crd.yaml"); err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	tenants := client.Resource(v1alpha1.SchemeGroupVersion.WithResource("tenants"))

	tests := []struct {
		name   string
		tenant string // "" means blue
		spec   string
		want   string // a part of the error; "" means accepted
	}{
		{name: "an empty spec", spec: `{}`},
		{name: "all fields", spec: `{members: [alice, "group:devs", "system:serviceaccount:ci:deployer"], quota: {cpu: "4", memory: 8Gi, pods: 20}, networkIsolation: true, account: {plan: Premium}}`},
		{name: "a member that the controller rejects", spec: `{members: ["system:masters"]}`},
		{name: "a quota of zero", spec: `{quota: {pods: 0}}`},
		{name: "whole pods as text", spec: `{quota: {pods: "20"}}`},
		{name: "a part of a cpu", spec: `{quota: {cpu: 500m}}`},
		{name: "the longest name", tenant: strings.Repeat("a", 63), spec: `{}`},

		{name: "a name that is too long for a namespace", tenant: strings.Repeat("a", 64), spec: `{}`, want: "the name of its namespace"},
		{name: "a name with a dot", tenant: "a.b", spec: `{}`, want: "the name of its namespace"},
		{name: "no spec", spec: `null`, want: "spec: Required value"},
		{name: "an empty member", spec: `{members: [""]}`, want: "spec.members[0]"},
		{name: "a member that begins with a space", spec: `{members: [" alice"]}`, want: "spec.members[0]"},
		{name: "a member of two lines", spec: `{members: ["alice\nbob"]}`, want: "spec.members[0]"},
		{name: "a member that is too long", spec: `{members: ["` + strings.Repeat("a", 341) + `"]}`, want: "Too long"},
		{name: "a member twice", spec: `{members: [alice, alice]}`, want: "Duplicate value"},
		{name: "too many members", spec: `{members: [` + strings.Repeat("a,", 65) + `]}`, want: "Too many"},
		{name: "an unknown quota key", spec: `{quota: {gpu: 1}}`, want: "the keys of quota are cpu, memory and pods"},
		{name: "a negative number", spec: `{quota: {cpu: -1}}`, want: "spec.quota.cpu"},
		{name: "a negative quantity", spec: `{quota: {cpu: "-1"}}`, want: "spec.quota.cpu"},
		{name: "an invalid quantity", spec: `{quota: {memory: much}}`, want: "spec.quota.memory"},
		{name: "half a pod", spec: `{quota: {pods: 500m}}`, want: "pods is a whole number"},
		{name: "pods with an exponent", spec: `{quota: {pods: "1e99"}}`, want: "pods is a whole number"},
		{name: "a large exponent", spec: `{quota: {memory: "1e99"}}`},
		{name: "a small exponent", spec: `{quota: {cpu: "1e-3"}}`},
		// The API server must reject these without decoding them as quantities,
		// which would take minutes to hours.
		{name: "a huge exponent", spec: `{quota: {memory: "1e999999999"}}`, want: "spec.quota.memory"},
		{name: "a huge negative exponent", spec: `{quota: {cpu: "1e-999999999"}}`, want: "spec.quota.cpu"},
		{name: "pods with a huge exponent", spec: `{quota: {pods: "1e999999999"}}`, want: "spec.quota.pods"},
		{name: "pods with a huge negative exponent", spec: `{quota: {pods: "1e-999999999"}}`, want: "spec.quota.pods"},
		{name: "an unknown plan", spec: `{account: {plan: Gold}}`, want: "supported values"},
		{name: "an empty plan", spec: `{account: {plan: ""}}`, want: "supported values"},
		{name: "a field that does not exist", spec: `{member: [alice]}`, want: `unknown field "spec.member"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.tenant == "" {
				tt.tenant = "blue"
			}
			tenant := newTenant(t, tt.tenant, tt.spec)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, err := tenants.Create(ctx, tenant, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("got %v, want it accepted", err)
			case tt.want != "" && (!apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want a rejection with %q", err, tt.want)
			}
		})
	}

	t.Run("the plan", func(t *testing.T) {
		tenant, err := tenants.Create(t.Context(), newTenant(t, "plan", `{}`), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := tenants.Delete(context.Background(), "plan", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		if got, _, _ := unstructured.NestedString(tenant.Object, "spec", "account", "plan"); got != "Basic" {
			t.Errorf("the default plan is %q, want Basic", got)
		}
		if err := unstructured.SetNestedField(tenant.Object, "Premium", "spec", "account", "plan"); err != nil {
			t.Fatal(err)
		}
		if _, err := tenants.Update(t.Context(), tenant, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "the plan is immutable") {
			t.Errorf("another plan: got %v, want a rejection", err)
		}
	})
}

func newTenant(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	var parsed any
	if err := yaml.Unmarshal([]byte(spec), &parsed); err != nil {
		t.Fatal(err)
	}
	tenant := &unstructured.Unstructured{Object: map[string]any{}}
	if parsed != nil {
		tenant.Object["spec"] = parsed
	}
	tenant.SetAPIVersion(v1alpha1.SchemeGroupVersion.String())
	tenant.SetKind("Tenant")
	tenant.SetName(name)
	return tenant
}
