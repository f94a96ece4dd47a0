package status_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/status"
)

var _ status.Getter = dynamic.ResourceInterface(nil)

// at returns the map at a path of maps and first items.
func at(o map[string]any, path ...string) map[string]any {
	for _, name := range path {
		switch v := o[name].(type) {
		case map[string]any:
			o = v
		case []any:
			o = v[0].(map[string]any)
		}
	}
	return o
}

// getter has one definition.
type getter struct {
	t      *testing.T
	object *unstructured.Unstructured
	err    error
}

func (g getter) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	if name != "widgets.example.com" {
		g.t.Errorf("Get of %q", name)
	}
	return g.object, g.err
}

func TestCheckDefinition(t *testing.T) {
	const statusPath, conditionsPath = "spec versions schema openAPIV3Schema properties status", "spec versions schema openAPIV3Schema properties status properties conditions"
	set := func(path, name string, value any) func(map[string]any) {
		return func(o map[string]any) {
			if at(o, strings.Fields(path)...)[name] = value; value == nil {
				delete(at(o, strings.Fields(path)...), name)
			}
		}
	}
	// stored adds a version v0 that is like the first and is the one that is stored.
	stored := func(change func(version map[string]any)) func(map[string]any) {
		return func(o map[string]any) {
			v := at(o, "spec", "versions")
			v0 := runtime.DeepCopyJSON(v)
			if v0["name"], v["storage"] = "v0", false; change != nil {
				change(v0)
			}
			at(o, "spec")["versions"] = []any{v, v0}
		}
	}
	for _, tt := range []struct {
		name   string
		change []func(map[string]any)
		want   []string
	}{
		{name: "fit"},
		{name: "other version", change: []func(map[string]any){set("spec versions", "name", "v2")}, want: []string{"not served"}},
		{name: "not served", change: []func(map[string]any){set("spec versions", "served", false)}, want: []string{"not served"}},
		{name: "no subresources", change: []func(map[string]any){set("spec versions", "subresources", nil)}, want: []string{"status subresource is missing"}},
		{name: "another subresource", change: []func(map[string]any){set("spec versions", "subresources", map[string]any{"scale": map[string]any{}})}, want: []string{"status subresource is missing"}},
		{name: "no list type", change: []func(map[string]any){set(conditionsPath, "x-kubernetes-list-type", nil)}, want: []string{"not a map by type"}},
		{name: "atomic", change: []func(map[string]any){set(conditionsPath, "x-kubernetes-list-type", "atomic"), set(conditionsPath, "x-kubernetes-list-map-keys", nil)}, want: []string{"not a map by type"}},
		{name: "no keys", change: []func(map[string]any){set(conditionsPath, "x-kubernetes-list-map-keys", nil)}, want: []string{"not a map by type"}},
		{name: "other keys", change: []func(map[string]any){set(conditionsPath, "x-kubernetes-list-map-keys", []any{"type", "status"})}, want: []string{"not a map by type"}},
		{name: "no observedGeneration", change: []func(map[string]any){set(conditionsPath+" items properties", "observedGeneration", nil)}, want: []string{"no field observedGeneration"}},
		{name: "unknown fields in conditions", change: []func(map[string]any){set(conditionsPath+" items properties", "observedGeneration", nil), set(conditionsPath+" items", "x-kubernetes-preserve-unknown-fields", true)}, want: []string{"accepts values of observedGeneration that clients cannot read: add type: integer"}},
		{name: "any text for a time", change: []func(map[string]any){set(conditionsPath+" items properties lastTransitionTime", "format", nil)}, want: []string{"accepts values of lastTransitionTime that clients cannot read: add type: string and format: date-time"}},
		{name: "another format for a time", change: []func(map[string]any){set(conditionsPath+" items properties lastTransitionTime", "format", "date")}, want: []string{"accepts values of lastTransitionTime"}},
		{name: "a number or text", change: []func(map[string]any){set(conditionsPath+" items properties observedGeneration", "type", nil), set(conditionsPath+" items properties observedGeneration", "x-kubernetes-int-or-string", true)}, want: []string{"accepts values of observedGeneration"}},
		{name: "any reason", change: []func(map[string]any){set(conditionsPath+" items properties reason", "type", nil), set(conditionsPath+" items properties reason", "x-kubernetes-preserve-unknown-fields", true)}, want: []string{"accepts values of reason"}},
		{name: "stored with any text for a time", change: []func(map[string]any){stored(func(v map[string]any) {
			delete(at(v, "schema", "openAPIV3Schema", "properties", "status", "properties", "conditions", "items", "properties", "lastTransitionTime"), "format")
		})}, want: []string{"it is stored as version v0: status.conditions accepts values of lastTransitionTime"}},
		{name: "no conditions", change: []func(map[string]any){set(statusPath+" properties", "conditions", nil)}},
		{name: "no status", change: []func(map[string]any){set("spec versions schema openAPIV3Schema properties", "status", nil)}, want: []string{"has no status"}},
		{name: "no schema of anything", change: []func(map[string]any){set("spec versions schema openAPIV3Schema", "properties", nil), set("spec versions schema openAPIV3Schema", "x-kubernetes-preserve-unknown-fields", true)}},
		{name: "all", change: []func(map[string]any){set("spec versions", "subresources", nil), set(conditionsPath, "x-kubernetes-list-type", nil), set(conditionsPath+" items properties", "reason", nil)}, want: []string{"status subresource is missing", "not a map by type", "no field reason"}},
		{name: "another is stored", change: []func(map[string]any){stored(nil)}},
		{name: "stored without a field", change: []func(map[string]any){stored(func(v map[string]any) {
			delete(at(v, "schema", "openAPIV3Schema", "properties", "status", "properties", "conditions", "items", "properties"), "observedGeneration")
		})}, want: []string{"it is stored as version v0: status.conditions has no field observedGeneration"}},
		{name: "stored without conditions", change: []func(map[string]any){stored(func(v map[string]any) {
			delete(at(v, "schema", "openAPIV3Schema", "properties", "status", "properties"), "conditions")
		})}, want: []string{"it is stored as version v0: the schema has no status.conditions"}},
		{name: "stored without a status", change: []func(map[string]any){stored(func(v map[string]any) {
			delete(at(v, "schema", "openAPIV3Schema", "properties"), "status")
		})}, want: []string{"it is stored as version v0: the schema has no status"}},
		{name: "stored with all that comes", change: []func(map[string]any){stored(func(v map[string]any) {
			s := at(v, "schema", "openAPIV3Schema", "properties", "status")
			delete(at(s, "properties"), "conditions")
			s["x-kubernetes-preserve-unknown-fields"] = true
		})}},
		{name: "stored by a webhook", change: []func(map[string]any){stored(func(v map[string]any) {
			delete(at(v, "schema", "openAPIV3Schema", "properties"), "status")
		}), set("spec", "conversion", map[string]any{"strategy": "Webhook"})}},
		{name: "none is stored", change: []func(map[string]any){set("spec versions", "storage", false)}},
		{name: "none has conditions", change: []func(map[string]any){set(statusPath+" properties", "conditions", nil), stored(nil)}},
		{name: "empty", change: []func(map[string]any){set("", "spec", nil)}, want: []string{"not served"}},
	} {
		d := definition("example.com")
		for _, change := range tt.change {
			change(d.Object)
		}
		err := status.CheckDefinition(t.Context(), getter{t: t, object: d}, schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"})
		if errors.Is(err, status.ErrDefinition) != (tt.want != nil) {
			t.Errorf("%s: error %v, want ErrDefinition: %v", tt.name, err, tt.want != nil)
		}
		var lines []string
		if err != nil {
			lines = strings.Split(err.Error(), "\n")
		}
		ok := len(lines) == len(tt.want)
		for i := range min(len(lines), len(tt.want)) {
			ok = ok && strings.HasPrefix(lines[i], "status: ") && strings.Contains(lines[i], "widgets.example.com version v1: ") && strings.Contains(lines[i], tt.want[i])
		}
		if !ok {
			t.Errorf("%s: found\n%v\nwant lines with %q", tt.name, err, tt.want)
		}
	}

	err := status.CheckDefinition(t.Context(), getter{t: t, err: errBoom}, schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"})
	if !errors.Is(err, errBoom) || errors.Is(err, status.ErrDefinition) {
		t.Errorf("error %v, want the one of Get", err)
	}
	for _, r := range []schema.GroupVersionResource{{Version: "v1", Resource: "pods"}, {Group: "example.com", Resource: "widgets"}, {Group: "example.com", Version: "v1"}} {
		refused(t, r.String(), status.CheckDefinition(t.Context(), getter{t: t}, r), "name all three")
	}
}

// What the check reports, on the server, and that it is true: conditions that are no
// map by type are lost, and a status without a subresource is not found.
func TestServerCheckDefinition(t *testing.T) {
	t.Parallel()
	dyn, err := dynamic.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	namespace := testserver.Namespace(t)
	resource := func(group string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}
	}
	for _, tt := range []struct {
		group  string
		break_ func(version map[string]any)
		want   string
		stored bool                                                                     // the version that is broken is another, which is stored
		then   func(c dynamic.ResourceInterface, obj, blank *unstructured.Unstructured) // shows the harm
	}{
		{group: "fit.status.controllerkit.dev"},
		{
			group: "atomic.status.controllerkit.dev", want: "status.conditions is not a map by type",
			break_: func(version map[string]any) {
				c := at(version, "schema", "openAPIV3Schema", "properties", "status", "properties", "conditions")
				delete(c, "x-kubernetes-list-type")
				delete(c, "x-kubernetes-list-map-keys")
			},
			then: func(c dynamic.ResourceInterface, obj, blank *unstructured.Unstructured) {
				for _, typ := range []string{"A", "B"} {
					var err error
					if obj, err = status.Apply(t.Context(), "manager-"+typ, applier{c}, obj, blank, status.True(typ, "Fine", "")); err != nil {
						t.Fatal(err)
					}
				}
				if list, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions"); len(list) != 1 {
					t.Errorf("conditions %v, want the one of the last manager: the check reports what is no harm", list)
				}
			},
		},
		{
			group: "bare.status.controllerkit.dev", want: "the status subresource is missing",
			break_: func(version map[string]any) { delete(version, "subresources") },
			then: func(c dynamic.ResourceInterface, obj, blank *unstructured.Unstructured) {
				_, err := status.Apply(t.Context(), "a", applier{c}, obj, blank, status.True("A", "Fine", ""))
				if !apierrors.IsNotFound(err) {
					t.Errorf("apply: error %v, want NotFound", err)
				}
			},
		},
		{
			group: "dropping.status.controllerkit.dev", want: "no field observedGeneration",
			break_: func(version map[string]any) {
				delete(at(version, "schema", "openAPIV3Schema", "properties", "status", "properties", "conditions", "items", "properties"), "observedGeneration")
			},
		},
		{
			group: "stored.status.controllerkit.dev", want: "it is stored as version v0: status.conditions has no field observedGeneration", stored: true,
			break_: func(version map[string]any) {
				delete(at(version, "schema", "openAPIV3Schema", "properties", "status", "properties", "conditions", "items", "properties"), "observedGeneration")
			},
			then: func(c dynamic.ResourceInterface, obj, _ *unstructured.Unstructured) {
				answer, err := status.Update(t.Context(), c, obj, func(u *unstructured.Unstructured) {
					u.Object["status"] = map[string]any{"conditions": []metav1.Condition{{
						Type: "A", Status: "True", Reason: "Fine", ObservedGeneration: 1, LastTransitionTime: metav1.Unix(1e9, 0),
					}}}
				})
				if err != nil {
					t.Fatal(err)
				}
				list, _, _ := unstructured.NestedSlice(answer.Object, "status", "conditions")
				if _, ok := list[0].(map[string]any)["observedGeneration"]; ok {
					t.Errorf("conditions %v, want no observedGeneration: the check reports what is no harm", list)
				}
			},
		},
	} {
		d := definition(tt.group)
		version := at(d.Object, "spec", "versions")
		if tt.stored {
			v0 := runtime.DeepCopyJSON(version)
			version["storage"], v0["name"] = false, "v0"
			at(d.Object, "spec")["versions"] = []any{version, v0}
			version = v0
		}
		if tt.break_ != nil {
			tt.break_(version)
		}
		testserver.InstallCRD(t, d.Object)
		err := status.CheckDefinition(t.Context(), dyn.Resource(definitions()), resource(tt.group))
		if errors.Is(err, status.ErrDefinition) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one with %q", tt.group, err, tt.want)
		}
		if tt.then == nil {
			continue
		}
		blank := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": tt.group + "/v1", "kind": "Widget", "metadata": map[string]any{"name": "one", "namespace": namespace},
		}}
		c := dyn.Resource(resource(tt.group)).Namespace(namespace)
		tt.then(c, createServed(t, c, blank), blank)
	}
	err = status.CheckDefinition(t.Context(), dyn.Resource(definitions()), resource("absent.status.controllerkit.dev"))
	if !apierrors.IsNotFound(err) || errors.Is(err, status.ErrDefinition) {
		t.Errorf("absent: error %v, want NotFound", err)
	}

	// The right that is documented is needed, and is enough.
	user := "definitions-" + namespace
	config := testserver.Config(t)
	admin, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	config.Impersonate.UserName = user
	theirs, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	fit := resource("fit.status.controllerkit.dev")
	err = status.CheckDefinition(t.Context(), theirs.Resource(definitions()), fit)
	if !apierrors.IsForbidden(err) || errors.Is(err, status.ErrDefinition) || !strings.Contains(err.Error(), "ClusterRole") {
		t.Errorf("without rights: error %v, want Forbidden", err)
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{"apiextensions.k8s.io"}, Resources: []string{"customresourcedefinitions"}, Verbs: []string{"get"}, ResourceNames: []string{fit.GroupResource().String()},
	}}}
	if _, err := admin.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	if _, err := admin.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = admin.RbacV1().ClusterRoleBindings().Delete(context.Background(), user, metav1.DeleteOptions{})
		_ = admin.RbacV1().ClusterRoles().Delete(context.Background(), user, metav1.DeleteOptions{})
	})
	err = granted(t, func(ctx context.Context) error {
		return status.CheckDefinition(ctx, theirs.Resource(definitions()), fit)
	})
	if err != nil {
		t.Errorf("with the right: %v", err)
	}
}

func ExampleCheckDefinition() {
	ctx := context.Background()
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	unfit := definition("example.com")
	delete(at(unfit.Object, "spec", "versions"), "subresources")
	client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(), unfit)

	err := status.CheckDefinition(ctx, client.Resource(definitions()), widgets)
	switch {
	case errors.Is(err, status.ErrDefinition):
		fmt.Println(err) // the program ends
	case apierrors.IsForbidden(err):
		fmt.Println("not checked:", err)
	}
	// Output:
	// status: the custom resource definition is unfit: widgets.example.com version v1: the status subresource is missing: add subresources: {status: {}}
}
