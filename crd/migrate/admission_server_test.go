package migrate_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/crd/migrate"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// forbid installs a policy that denies updates of the named objects, and returns a function that
// removes it. Both return once the API server uses the change.
func (k *kind) forbid(names ...string) (remove func()) {
	k.t.Helper()
	client := kubernetes.NewForConfigOrDie(k.config).AdmissionregistrationV1()
	quoted := "'" + strings.Join(names, "','") + "'"
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: k.name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{k.resource.Group}, APIVersions: []string{"*"}, Resources: []string{k.resource.Resource}},
			}}}},
			Validations: []admissionv1.Validation{{Expression: "!(object.metadata.name in [" + quoted + "])", Message: "it is frozen"}},
		},
	}
	if _, err := client.ValidatingAdmissionPolicies().Create(k.t.Context(), policy, metav1.CreateOptions{}); err != nil {
		k.t.Fatal(err)
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: k.name},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: k.name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}
	if _, err := client.ValidatingAdmissionPolicyBindings().Create(k.t.Context(), binding, metav1.CreateOptions{}); err != nil {
		k.t.Fatal(err)
	}
	// No event shows when the API server uses a policy.
	await := func(denies bool) {
		k.t.Helper()
		for limit := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			_, err := k.at("v1").Patch(k.t.Context(), names[0], types.MergePatchType, []byte("{}"), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil && !apierrors.IsInvalid(err) {
				k.t.Fatal(err)
			}
			if denies == (err != nil) {
				return
			}
			if time.Now().After(limit) {
				k.t.Fatalf("the API server does not use the change of the policy: %v", err)
			}
		}
	}
	erase := sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // the test's own can have ended
		defer cancel()
		if err := errors.Join(
			client.ValidatingAdmissionPolicyBindings().Delete(ctx, k.name, metav1.DeleteOptions{}),
			client.ValidatingAdmissionPolicies().Delete(ctx, k.name, metav1.DeleteOptions{}),
		); err != nil {
			k.t.Error(err)
		}
	})
	k.t.Cleanup(erase)
	await(true)
	return func() {
		k.t.Helper()
		erase()
		await(false)
	}
}

// A ValidatingAdmissionPolicy denies the patch of one object. When the policy is removed, the next
// pass finishes.
//
// Proves VM5.
func TestServerPolicy(t *testing.T) {
	t.Parallel()
	k := install(t)
	c := newCrowd(k, 5)
	k.store("v1", true)
	allow := k.forbid("x-0001")
	_, err := k.migrator(k.client).Once(t.Context())
	var blocked *migrate.BlockedError
	want := k.namespace + "/x-0001: "
	if !errors.As(err, &blocked) || blocked.Objects != 1 || !apierrors.IsInvalid(blocked.Errs[0]) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "it is frozen") {
		t.Fatalf("%v", err)
	}
	if status, reason, message := k.condition(); status != "False" || reason != "Blocked" || !strings.Contains(message, want) || !strings.Contains(message, "it is frozen") {
		t.Errorf("the condition is %s %s %s", status, reason, message)
	}
	equal(t, "storedVersions", []string{"v1alpha1", "v1"}, k.stored())
	allow()
	(&crowd{kind: k, names: append([]string{"x-0000"}, c.names[2:]...)}).checkStored("v1")
	k.once()
	equal(t, "storedVersions without the policy", []string{"v1"}, k.stored())
	c.checkStored("v1")
	c.checkAll("v1", nil)
	if status, reason, _ := k.condition(); status != "True" || reason != "Migrated" {
		t.Errorf("the condition is %s %s", status, reason)
	}
}

// A webhook that answers with a conflict does not make an object count as stored.
//
// Proves VM5.
func TestServerWebhookConflict(t *testing.T) {
	t.Parallel()
	k := install(t)
	c := newCrowd(k, 5)
	k.store("v1", true)
	client := k.process(func(op *fault.Op) fault.Fault {
		if op.Verb != "patch" && op.Verb != "apply" || op.Name != "x-0001" {
			return fault.Fault{}
		}
		return fault.Fault{Response: &fault.Response{Code: http.StatusConflict, Reason: metav1.StatusReasonConflict, Message: "of the webhook"}}
	}, nil)
	_, err := k.migrator(client).Once(t.Context())
	var blocked *migrate.BlockedError
	if !errors.As(err, &blocked) || blocked.Objects != 1 || !apierrors.IsConflict(blocked.Errs[0]) || !strings.Contains(err.Error(), "of the webhook") {
		t.Fatalf("%v", err)
	}
	equal(t, "storedVersions", []string{"v1alpha1", "v1"}, k.stored())
	k.once()
	equal(t, "storedVersions without the webhook", []string{"v1"}, k.stored())
	c.checkStored("v1")
}

// The schema of v1 rejects values of stored objects. An object is blocked only if the API server checks
// more than the changed fields.
//
// Proves VM5.
func TestServerInvalid(t *testing.T) {
	t.Parallel()
	k := installAs(t, testserver.Config(t), testserver.Namespace(t), func(d m) {
		for _, version := range []string{"v1alpha1", "v1"} {
			spec := properties(d, version)["properties"].(m)
			spec["n"] = m{"type": "string"}
			spec["must"] = m{"type": "string"}
			spec["set"] = m{"type": "array", "items": m{"type": "string"}}
			spec["list"] = m{"type": "array", "items": m{"type": "object", "properties": m{"name": m{"type": "string"}, "value": m{"type": "string"}}}}
			spec["nested"] = m{"type": "object", "properties": m{"a": m{"type": "string"}, "b": m{"type": "string"}}}
		}
	})
	for name, spec := range map[string]m{
		"valid":      {"a": "1", "nested": m{"b": "1"}},
		"max-length": {"a": "123456789"},
		"enum":       {"b": "purple"},
		"pattern":    {"c": "UPPER"},
		"field-rule": {"nested": m{"a": "1", "b": "1"}},
		"spec-rule":  {"a": "2", "b": "blue"},
		"max-items":  {"list": []any{m{"name": "1"}, m{"name": "2"}, m{"name": "3"}}},
		"max-props":  {"labels": m{"a": "1", "b": "1", "c": "1"}},
		"map-keys":   {"list": []any{m{"name": "1"}, m{"name": "1"}}},
		"key-absent": {"list": []any{m{"value": "1"}}},
		"type":       {"n": "text"},
		"required":   {"nested": m{"a": "1"}},
		"spec-field": {"c": "none"},
		"set-items":  {"set": []any{"1", "1"}},
		"no-spec":    nil,
		"root-rule":  {"a": "0"},
	} {
		if spec != nil && name != "spec-field" {
			spec["must"] = "1"
		}
		fields := m{}
		if spec != nil {
			fields["spec"] = spec
		}
		if _, err := k.at("v1alpha1").Create(t.Context(), k.object("v1alpha1", name, fields), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	k.edit(func(name string, v m) bool {
		v["storage"] = name == "v1"
		if name != "v1" {
			return true
		}
		spec := v["schema"].(m)["openAPIV3Schema"].(m)["properties"].(m)["spec"].(m)
		fields := spec["properties"].(m)
		root := v["schema"].(m)["openAPIV3Schema"].(m)
		root["required"] = []any{"spec"}
		root["x-kubernetes-validations"] = []any{m{"rule": "!has(self.spec) || !has(self.spec.a) || self.spec.a != '0'", "message": "not 0"}}
		spec["required"] = []any{"must"}
		fields["set"].(m)["x-kubernetes-list-type"] = "set"
		spec["x-kubernetes-validations"] = []any{m{"rule": "!(has(self.a) && self.a == '2' && has(self.b))", "message": "2 has no color"}}
		fields["a"].(m)["maxLength"] = int64(5)
		fields["b"].(m)["enum"] = []any{"blue"}
		fields["c"].(m)["pattern"] = "^[a-z]*$"
		fields["labels"].(m)["maxProperties"] = int64(2)
		fields["n"] = m{"type": "integer"}
		fields["list"].(m)["maxItems"] = int64(2)
		fields["list"].(m)["x-kubernetes-list-type"] = "map"
		fields["list"].(m)["x-kubernetes-list-map-keys"] = []any{"name"}
		fields["list"].(m)["items"].(m)["required"] = []any{"name"}
		fields["nested"].(m)["required"] = []any{"b"}
		fields["nested"].(m)["x-kubernetes-validations"] = []any{m{"rule": "!has(self.a) || !has(self.b)", "message": "one of them"}}
		return true
	})
	// blocked migrates, and returns the objects that could not be.
	blocked := func() (names []string) {
		t.Helper()
		_, err := k.migrator(k.client).Once(t.Context())
		var blocked *migrate.BlockedError
		if !errors.As(err, &blocked) || blocked.Objects != len(blocked.Errs) {
			t.Fatal(err)
		}
		for _, err := range blocked.Errs {
			name, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), k.namespace+"/"), ":")
			names = append(names, name)
			var status apierrors.APIStatus
			untyped := strings.Contains(err.Error(), "failed to create typed live object ("+k.namespace+"/"+name)
			if errors.As(err, &status) && !untyped && (!apierrors.IsInvalid(err) || status.Status().Details.Name != name) {
				t.Errorf("%s: %v", name, err)
			}
		}
		equal(t, "storedVersions", []string{"v1alpha1", "v1"}, k.stored())
		return names
	}
	// The API server checks the rules and the required fields of the schema's root in each write. It cannot
	// compute the managedFields of a list item without its key, or of a value of another type.
	invalid := []string{"key-absent", "no-spec", "root-rule", "type"}
	equal(t, "blocked objects", invalid, blocked())
	k.store("v1", false)
	equal(t, "blocked objects while v1alpha1 is not served", invalid, blocked())
	for name, spec := range map[string]string{
		"key-absent": `{"list":null}`, "no-spec": `{"must":"1"}`, "root-rule": `{"a":"1"}`, "type": `{"n":1}`,
	} {
		if _, err := k.at("v1").Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":`+spec+`}`), metav1.PatchOptions{FieldManager: "person"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	k.once()
	equal(t, "storedVersions after the repair", []string{"v1"}, k.stored())
	k.edit(func(name string, _ m) bool { return name != "v1alpha1" })
	list, err := k.at("v1").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		obj := &list.Items[i]
		check := func(t *testing.T) {
			equal(t, obj.GetName()+": versions of managedFields", []string{"v1"}, versions(obj))
		}
		switch obj.GetName() {
		case "no-spec": // which never had a field that a manager can own
		case "key-absent", "type":
			t.Run(obj.GetName(), func(t *testing.T) {
				testserver.Since(t, "1.37", "the repair of an object that is not valid removes its managedFields")
				check(t)
			})
		default:
			check(t)
		}
	}
	if len(list.Items) != 16 {
		t.Errorf("%d objects, want 16", len(list.Items))
	}
}
