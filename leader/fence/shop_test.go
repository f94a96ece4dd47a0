package fence_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader/fence"
	"github.com/controllerkit/controllerkit/leader/internal/shop"
)

// A fencedShop is a namespace with a Lease, and a ServiceAccount user who may do
// anything in it.
type fencedShop struct {
	ns, user string
	policy   string // name of the policy and its binding
	uid      types.UID
	leases   coordinationv1client.LeaseInterface
	resource schema.GroupVersionResource
}

var fenceConfigMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

var anything = rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}

// newShop is a shop without a fence: anybody can stamp.
func newShop(t *testing.T, resource schema.GroupVersionResource, spec coordinationv1.LeaseSpec) *fencedShop {
	t.Helper()
	s := &fencedShop{ns: testserver.Namespace(t), resource: resource}
	s.policy = s.ns
	s.user = "system:serviceaccount:" + s.ns + ":shop-controller"
	s.leases = shop.Clients(t, testserver.Config(t)).CoordinationV1().Leases(s.ns)
	allow(t, s.ns, s.user, anything)
	lease, err := s.leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.uid = lease.UID
	return s
}

// fence puts a Fence into force.
func (s *fencedShop) fence(t *testing.T, change ...func(*fence.Fence)) {
	t.Helper()
	keep(t)
	rules := fence.Fence{
		Name: s.policy, LeaseNamespace: s.ns, LeaseName: "shop", Users: []string{s.user},
		Resources: []schema.GroupResource{s.resource.GroupResource()},
	}
	for _, c := range change {
		c(&rules)
	}
	policy, binding, err := rules.Policy()
	if err != nil {
		t.Fatal(err)
	}
	for _, obj := range []any{policy, binding} {
		data, err := json.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		shop.Create(t, data)
	}
	s.awaitFence(t)
}

func newFencedShop(t *testing.T, resource schema.GroupVersionResource, spec coordinationv1.LeaseSpec, change ...func(*fence.Fence)) *fencedShop {
	t.Helper()
	s := newShop(t, resource, spec)
	s.fence(t, change...)
	return s
}

// keep applies manifests/keep-leases.yaml and leaves it, because other tests delete their
// fences while the caller's is in force.
func keep(t *testing.T) {
	t.Helper()
	policy, binding := keepLeases(t)
	admission := shop.Clients(t, testserver.Config(t)).AdmissionregistrationV1()
	if _, err := admission.ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	if _, err := admission.ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// awaitFence waits until the policy is in force. There is no event for that, so
// dry runs of a write that it refuses are repeated.
func (s *fencedShop) awaitFence(t *testing.T) {
	t.Helper()
	shop.Eventually(t, "the fence is in force", func() error {
		_, err := s.as(t, "").Create(t.Context(), s.object("probe", "malformed"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "it must be <Lease UID>/<number>") {
			return fmt.Errorf("the answer to a malformed term is: %v", err)
		}
		return nil
	})
}

// allow grants the rules in the namespace to the user.
func allow(t *testing.T, ns, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	rbac := shop.Clients(t, testserver.Config(t)).RbacV1()
	name := "work-" + strings.ReplaceAll(user, ":", "-")
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	if _, err := rbac.Roles(ns).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	if _, err := rbac.RoleBindings(ns).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// as is a client of the ServiceAccount with terms in the name of the user, or of a
// person who is an administrator if the first is "person".
func (s *fencedShop) as(t *testing.T, terms ...string) dynamic.ResourceInterface {
	t.Helper()
	config := testserver.Config(t)
	if terms[0] != "person" {
		config.Impersonate.UserName = s.user
		if terms[0] != "" {
			config.Impersonate.Extra = map[string][]string{stampKey: terms}
		}
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client.Resource(s.resource).Namespace(s.ns)
}

func (s *fencedShop) term(number int) string { return fmt.Sprintf("%s/%d", s.uid, number) }

// object has the annotation if stamp is not "".
func (s *fencedShop) object(name, stamp string) *unstructured.Unstructured {
	kind := map[string]string{"configmaps": "ConfigMap", "widgets": "Widget"}[s.resource.Resource]
	obj := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": name}}}
	obj.SetGroupVersionKind(s.resource.GroupVersion().WithKind(kind))
	if stamp != "" {
		obj.SetAnnotations(map[string]string{stampKey: stamp})
	}
	return obj
}

// write writes the object by the verb, with the stamp unless it is empty.
func (s *fencedShop) write(t *testing.T, client dynamic.ResourceInterface, verb, name, stamp string) error {
	t.Helper()
	var err error
	ctx := t.Context()
	switch verb {
	case "create":
		_, err = client.Create(ctx, s.object(name, stamp), metav1.CreateOptions{})
	case "apply":
		obj := s.object(name, stamp)
		obj.SetLabels(map[string]string{"by": "apply"})
		_, err = client.Apply(ctx, name, obj, metav1.ApplyOptions{FieldManager: "shop", Force: true})
	case "patch":
		obj := s.object(name, stamp)
		obj.SetLabels(map[string]string{"by": "patch"})
		data, merr := json.Marshal(map[string]any{"metadata": obj.Object["metadata"]})
		if merr != nil {
			t.Fatal(merr)
		}
		_, err = client.Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{})
	case "delete":
		err = client.Delete(ctx, name, metav1.DeleteOptions{})
	case "update", "status":
		obj, gerr := s.as(t, "person").Get(ctx, name, metav1.GetOptions{})
		if gerr != nil {
			t.Fatal(gerr)
		}
		if stamp != "" {
			obj.SetAnnotations(map[string]string{stampKey: stamp})
		}
		if verb == "update" {
			obj.SetLabels(map[string]string{"by": "update"})
			_, err = client.Update(ctx, obj, metav1.UpdateOptions{})
			break
		}
		obj.Object["status"] = map[string]any{"phase": "written"}
		_, err = client.UpdateStatus(ctx, obj, metav1.UpdateOptions{})
	default:
		t.Fatalf("verb %q", verb)
	}
	return err
}

// judge holds that err is a refusal by the fence, or nil.
func (s *fencedShop) judge(t *testing.T, err error, refused bool) {
	t.Helper()
	switch {
	case !refused && err != nil:
		t.Errorf("refused: %v; want it to pass", err)
	case refused && err == nil:
		t.Error("passed; want it refused")
	case refused && !strings.Contains(err.Error(), "ValidatingAdmissionPolicy '"+s.policy+"' with binding '"+s.policy+"' denied request: the "):
		t.Errorf("error = %v; want one of the fence", err)
	}
}

// held is the record of a Lease that is held in the term.
func held(number int32) coordinationv1.LeaseSpec {
	return coordinationv1.LeaseSpec{HolderIdentity: ptr.To("b"), LeaseDurationSeconds: ptr.To[int32](15), LeaseTransitions: &number}
}

// widgets is a resource of its own, whose status drops metadata.
func widgets(t *testing.T, group string) schema.GroupVersionResource {
	t.Helper()
	testserver.InstallCRD(t, map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "widgets." + group},
		"spec": map[string]any{
			"group": group, "scope": "Namespaced",
			"names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
					"status": map[string]any{"type": "object", "properties": map[string]any{"phase": map[string]any{"type": "string"}}},
				}}},
			}},
		},
	})
	return schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}
}
