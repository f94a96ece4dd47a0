package leader_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
)

// fencePatience bounds what the API server does some time later.
const fencePatience = 30 * time.Second

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
	s.leases = fenceClients(t, testserver.Config(t)).CoordinationV1().Leases(s.ns)
	allow(t, s.ns, s.user, anything)
	lease, err := s.leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.uid = lease.UID
	return s
}

// fence puts a Fence into force.
func (s *fencedShop) fence(t *testing.T, change ...func(*leader.Fence)) {
	t.Helper()
	fence := leader.Fence{
		Name: s.policy, LeaseNamespace: s.ns, LeaseName: "shop", Users: []string{s.user},
		Resources: []schema.GroupResource{s.resource.GroupResource()},
	}
	for _, c := range change {
		c(&fence)
	}
	policy, binding, err := fence.Policy()
	if err != nil {
		t.Fatal(err)
	}
	for _, obj := range []any{policy, binding} {
		data, err := json.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		createAny(t, data)
	}
	s.awaitFence(t)
}

func newFencedShop(t *testing.T, resource schema.GroupVersionResource, spec coordinationv1.LeaseSpec, change ...func(*leader.Fence)) *fencedShop {
	t.Helper()
	s := newShop(t, resource, spec)
	s.fence(t, change...)
	return s
}

// awaitFence waits until the policy is in force. There is no event for that, so
// dry runs of a write that it refuses are repeated.
func (s *fencedShop) awaitFence(t *testing.T) {
	t.Helper()
	eventually(t, "the fence is in force", func() error {
		_, err := s.as(t, "").Create(t.Context(), s.object("probe", "malformed"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "it must be <Lease UID>/<number>") {
			return fmt.Errorf("the answer to a malformed term is: %v", err)
		}
		return nil
	})
}

// eventually repeats try, for what the API server tells no event of.
func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	deadline := time.After(fencePatience)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("%s: not after %v: %v", what, fencePatience, err)
		}
	}
}

func fenceClients(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return clients
}

// allow lets the user do in the namespace what the rules say.
func allow(t *testing.T, ns, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	rbac := fenceClients(t, testserver.Config(t)).RbacV1()
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

// createAny creates an object from YAML or JSON; what has no namespace is deleted
// when the test ends.
func createAny(t *testing.T, doc []byte) *unstructured.Unstructured {
	t.Helper()
	var obj unstructured.Unstructured
	if err := yaml.Unmarshal(doc, &obj.Object); err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	gvk := obj.GroupVersionKind()
	plural := strings.ToLower(gvk.Kind) + "s"
	if before, ok := strings.CutSuffix(plural, "policys"); ok {
		plural = before + "policies"
	}
	resource := client.Resource(gvk.GroupVersion().WithResource(plural)).Namespace(obj.GetNamespace())
	created, err := resource.Create(t.Context(), &obj, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		t.Fatalf("create %s %s: %v", gvk.Kind, obj.GetName(), err)
	}
	if obj.GetNamespace() == "" {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // the test's own has ended
			defer cancel()
			if err := resource.Delete(ctx, obj.GetName(), metav1.DeleteOptions{}); err != nil {
				t.Errorf("delete %s %s: %v", gvk.Kind, obj.GetName(), err)
			}
		})
	}
	return created
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

// write does to the object what verb says, with the stamp if it is not "".
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

// TestServerFenceCovers is the table in the documentation of Fence, cell by cell:
// what is refused to an earlier leader. Its successor and a person may do all of it.
//
// Proves L12.
func TestServerFenceCovers(t *testing.T) {
	t.Parallel()
	s := newShop(t, widgets(t, "fence.test.controllerkit.github.io"), held(3))
	former, present := s.term(2), s.term(3)
	var tests []func()
	for _, tt := range []struct {
		verb           string
		stamp, guardAs bool // whether an earlier leader is refused
	}{
		{verb: "create", stamp: true, guardAs: true},
		{verb: "update", stamp: true, guardAs: true},
		{verb: "patch", stamp: true, guardAs: true},
		{verb: "apply", stamp: true, guardAs: true},
		{verb: "status", stamp: false, guardAs: true},
		{verb: "delete", stamp: false, guardAs: true},
	} {
		for _, how := range []struct {
			name    string
			as      string // term of the user
			stamp   string // of the write
			stored  string // stamp of the object as it is before
			refused bool
		}{
			{name: "stamp, former leader", stamp: former, stored: former, refused: tt.stamp},
			{name: "stamp, present leader", stamp: present, stored: former},
			{name: "GuardAs, former leader", as: former, stored: former, refused: tt.guardAs},
			{name: "GuardAs, former leader, no stamp stored", as: former, refused: tt.guardAs},
			{name: "GuardAs, present leader", as: present, stored: former},
			{name: "both, former leader with a forged stamp", as: former, stamp: present, stored: present, refused: tt.guardAs},
			{name: "both, present leader", as: present, stamp: present, stored: former},
			{name: "no term"},
			{name: "person", as: "person"},
			{name: "person, former stamp stored", as: "person", stored: former},
			{name: "person, present stamp stored", as: "person", stored: present},
			{name: "person, rubbish", as: "person", stamp: "rubbish", stored: "rubbish"},
		} {
			name := strings.NewReplacer(" ", "", ",", "-").Replace(strings.ToLower(tt.verb + "-" + how.name))
			person := s.as(t, "person")
			if tt.verb != "create" {
				if err := s.write(t, person, "create", name, how.stored); err != nil {
					t.Fatal(err)
				}
			}
			tests = append(tests, func() {
				t.Run(tt.verb+", "+how.name, func(t *testing.T) {
					before, _ := person.Get(t.Context(), name, metav1.GetOptions{})
					s.judge(t, s.write(t, s.as(t, how.as), tt.verb, name, how.stamp), how.refused)
					after, _ := person.Get(t.Context(), name, metav1.GetOptions{})
					if changed := !cmp.Equal(before, after); changed == how.refused {
						t.Errorf("the object changed: %v, want %v", changed, !how.refused)
					}
				})
			})
		}
	}
	s.fence(t)
	for _, test := range tests {
		test()
	}
}

// TestServerFenceDecides: which term passes, by the state of the Lease and by the
// stamp that is stored.
//
// Proves L12.
func TestServerFenceDecides(t *testing.T) {
	t.Parallel()
	type row struct {
		name    string
		term    string // "<n>" is number n of this Lease
		stored  string // likewise
		as      []string
		refused bool
	}
	for _, state := range []struct {
		name string
		spec coordinationv1.LeaseSpec
		rows []row
	}{
		{
			name: "held in term 3", spec: held(3),
			rows: []row{
				{name: "present", term: "<3>"},
				{name: "former", term: "<2>", refused: true},
				{name: "first", term: "<0>", refused: true},
				{name: "ahead of what the API server knows", term: "<4>"},
				{name: "far ahead", term: "<2147483647>"},
				{name: "of another Lease", term: "c0ffee/3", refused: true},
				{name: "of another Lease, higher", term: "c0ffee/4", refused: true},

				{name: "over a former", term: "<3>", stored: "<2>"},
				{name: "over its own", term: "<3>", stored: "<3>"},
				{name: "over a later", term: "<3>", stored: "<4>", refused: true},
				{name: "ahead, over a later", term: "<4>", stored: "<5>", refused: true},
				{name: "over a later of another Lease", term: "<3>", stored: "c0ffee/9"},
				{name: "over rubbish", term: "<3>", stored: "rubbish"},
				{name: "over a number beyond all", term: "<3>", stored: "<99999999999>"},
				{name: "numbers are compared as such", term: "<10>", stored: "<9>"},
				{name: "keeps a former stamp", stored: "<2>", refused: true},
				{name: "keeps the present stamp", stored: "<3>"},
				{name: "keeps a former stamp, by GuardAs", stored: "<2>", as: []string{"<3>"}},
				{name: "keeps rubbish", stored: "rubbish"},
				{name: "keeps a stamp of another Lease", stored: "c0ffee/9"},
				{name: "stamp of another Lease over another", term: "c0ffee/9", stored: "c0ffee/8", refused: true},
				{name: "rubbish over other rubbish", term: "rubbish", stored: "garbage", refused: true},
				{name: "over one far ahead", term: "<3>", stored: "<20>"},
				{name: "over the farthest that counts", term: "<3>", stored: "<19>", refused: true},
				{name: "keeps rubbish, by GuardAs", stored: "rubbish", as: []string{"<3>"}},
				{name: "over a later, by GuardAs", stored: "<4>", as: []string{"<3>"}, refused: true},

				{name: "not a term: empty UID", term: "/3", refused: true},
				{name: "not a term: no number", term: "<>", refused: true},
				{name: "not a term: no slash", term: "3", refused: true},
				{name: "not a term: negative", term: "<-1>", refused: true},
				{name: "not a term: leading zero", term: "<03>", refused: true},
				{name: "not a term: plus", term: "<+3>", refused: true},
				{name: "not a term: space", term: "<3> ", refused: true},
				{name: "not a term: line", term: "<3>\n", refused: true},
				{name: "not a term: three parts", term: "<3>/3", refused: true},
				{name: "not a term: too large", term: "<99999999999>", refused: true},
				{name: "not a term: hexadecimal", term: "<0x3>", refused: true},
				{name: "not a term: long", term: "<3" + strings.Repeat("0", 100_000) + ">", refused: true},
				{name: "not a term, by GuardAs", as: []string{"rubbish"}, refused: true},
				{name: "two terms, by GuardAs", as: []string{"<3>", "<4>"}, refused: true},
			},
		},
		{
			name: "released after term 3",
			spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To(""), LeaseDurationSeconds: ptr.To[int32](1), LeaseTransitions: ptr.To[int32](3)},
			rows: []row{
				{name: "last", term: "<3>", refused: true},
				{name: "former", term: "<2>", refused: true},
				{name: "next", term: "<4>"},
				{name: "last, by GuardAs", as: []string{"<3>"}, refused: true},
				{name: "next, by GuardAs", as: []string{"<4>"}},
			},
		},
		{
			name: "held, no transitions", spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("b")},
			rows: []row{
				{name: "first", term: "<0>"},
				{name: "next", term: "<1>"},
			},
		},
		{
			name: "empty",
			rows: []row{
				{name: "first", term: "<0>", refused: true},
				{name: "next", term: "<1>"},
			},
		},
	} {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, fenceConfigMaps, state.spec)
			expand := strings.NewReplacer("<", string(s.uid)+"/", ">", "").Replace
			verbs := []string{"apply", "patch"}
			for i, tt := range state.rows {
				for _, verb := range verbs {
					if verb == "patch" || tt.stored != "" {
						if err := s.write(t, s.as(t, "person"), "create", fmt.Sprintf("%s-%d", verb, i), expand(tt.stored)); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			s.fence(t)
			for i, tt := range state.rows {
				t.Run(tt.name, func(t *testing.T) {
					for _, verb := range verbs {
						name := fmt.Sprintf("%s-%d", verb, i)
						var terms []string
						for _, term := range tt.as {
							terms = append(terms, expand(term))
						}
						s.judge(t, s.write(t, s.as(t, append(terms, "")[:max(1, len(terms))]...), verb, name, expand(tt.term)), tt.refused)
					}
				})
			}
		})
	}
}

// TestServerFenceMessages: who was refused reads why, and what to do.
func TestServerFenceMessages(t *testing.T) {
	t.Parallel()
	s := newFencedShop(t, fenceConfigMaps, held(3))
	if err := s.write(t, s.as(t, ""), "create", "later", s.term(5)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		object  string
		stamp   string
		want    string
		invalid bool
	}{
		{name: "malformed", object: "a", stamp: "x'y", want: `the leader's term is 'x'y': it must be <Lease UID>/<number>`, invalid: true},
		{
			name: "former", object: "a", stamp: s.term(2),
			want: "the write is of term " + s.term(2) + ", but Lease " + s.ns + "/shop is held in term " + s.term(3) + ": it is of an earlier leader",
		},
		{
			name: "stored", object: "later", stamp: s.term(4),
			want: "the write is of term " + s.term(4) + ", but the stored object has the stamp of a later one, " + s.term(5),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := s.write(t, s.as(t, ""), "apply", tt.object, tt.stamp)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want one that says %q", err, tt.want)
			}
			if apierrors.IsInvalid(err) != tt.invalid || apierrors.IsForbidden(err) == tt.invalid {
				t.Errorf("reason = %v, want Invalid: %v, else Forbidden", apierrors.ReasonForError(err), tt.invalid)
			}
		})
	}
}

// TestServerFenceLeaseDeleted: nobody is locked out while there is no Lease, and
// with the next one the terms of the deleted one are refused.
//
// Proves L12.
func TestServerFenceLeaseDeleted(t *testing.T) {
	t.Parallel()
	s := newFencedShop(t, fenceConfigMaps, held(3))
	former := s.as(t, s.term(3))
	if err := s.write(t, former, "apply", "a", ""); err != nil {
		t.Fatal(err)
	}
	if err := s.leases.Delete(t.Context(), "shop", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"create", "update", "patch", "apply", "delete"} {
		if err := s.write(t, s.as(t, "person"), verb, "of-a-person", ""); err != nil {
			t.Errorf("%s by a person while there is no Lease: %v", verb, err)
		}
	}
	eventually(t, "the fence is open while there is no Lease", func() error {
		return s.write(t, s.as(t, s.term(2)), "apply", "a", "")
	})
	lease, err := s.leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: held(0)}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	eventually(t, "the terms of the deleted Lease are refused", func() error {
		if err := s.write(t, former, "apply", "a", ""); err == nil {
			return errors.New("passed")
		}
		return nil
	})
	t.Logf("refused %v after the next Lease was created", time.Since(begun).Round(100*time.Microsecond))
	s.judge(t, s.write(t, former, "patch", "a", ""), true)
	s.judge(t, s.write(t, s.as(t, string(lease.UID)+"/0"), "patch", "a", ""), false)
	s.judge(t, s.write(t, s.as(t, ""), "patch", "a", s.term(3)), true)
	s.judge(t, s.write(t, s.as(t, ""), "patch", "a", string(lease.UID)+"/0"), false)
}

// TestServerFenceClosed: with Deny nobody at all writes while there is no Lease.
func TestServerFenceClosed(t *testing.T) {
	t.Parallel()
	s := newFencedShop(t, widgets(t, "closed.test.controllerkit.github.io"), held(3), func(f *leader.Fence) {
		f.ParameterNotFoundAction = admissionregistrationv1.DenyAction
	})
	if err := s.write(t, s.as(t, s.term(3)), "apply", "a", ""); err != nil {
		t.Fatal(err)
	}
	if err := s.leases.Delete(t.Context(), "shop", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, who := range []string{s.term(2), s.term(3), "", "person"} {
		eventually(t, fmt.Sprintf("closed to %q", who), func() error {
			if err := s.write(t, s.as(t, who), "apply", "a", ""); err == nil || !strings.Contains(err.Error(), "failed to configure binding") {
				return fmt.Errorf("apply: %v", err)
			}
			return nil
		})
	}
	lease, err := s.leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: held(0)}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "open to the next leader", func() error {
		return s.write(t, s.as(t, string(lease.UID)+"/0"), "apply", "a", "")
	})
	s.judge(t, s.write(t, s.as(t, s.term(3)), "patch", "a", ""), true)
	s.judge(t, s.write(t, s.as(t, "person"), "patch", "a", ""), false)
}

// TestServerFenceWindow: how long after a change of the term writes of the former
// leader pass, because the API server has not heard of it. The former leader
// writes without a pause.
//
// Proves L12.
func TestServerFenceWindow(t *testing.T) {
	t.Parallel()
	const changes = 60
	s := newFencedShop(t, fenceConfigMaps, held(0))
	client := s.as(t, "")
	var windows []time.Duration
	late := 0
	for number := range changes {
		obj := s.object("prices", s.term(number)) // nobody else stamps it
		var changed atomic.Pointer[time.Time]
		var last time.Duration // after the change was known to be stored, that a write was
		var wg sync.WaitGroup
		writing := make(chan struct{})
		wg.Go(func() {
			begin := sync.OnceFunc(func() { close(writing) })
			defer begin()
			for begun := time.Now(); time.Since(begun) < fencePatience; begin() {
				_, err := client.Apply(t.Context(), "prices", obj, metav1.ApplyOptions{FieldManager: "shop", Force: true})
				if apierrors.IsForbidden(err) {
					return // so it will be from now on
				}
				if err != nil {
					t.Errorf("term %d: %v", number, err)
					return
				}
				if at := changed.Load(); at != nil {
					last = time.Since(*at)
				}
			}
			t.Errorf("term %d: writes pass for %v", number, fencePatience)
		})
		<-writing
		lease, err := s.leases.Get(t.Context(), "shop", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		lease.Spec = held(int32(number + 1))
		if _, err := s.leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		changed.Store(&now)
		wg.Wait()
		windows = append(windows, last)
		if last > 0 {
			late++
		}
	}
	slices.Sort(windows)
	longest := windows[len(windows)-1]
	t.Logf("%d changes of the term: in %d a write of the former leader ended after the change and passed, the last %v after it (median %v)",
		changes, late, longest.Round(10*time.Microsecond), windows[len(windows)/2].Round(10*time.Microsecond))
	if longest >= time.Second {
		t.Errorf("a write of the former leader passed %v after the change, want less than 1s", longest)
	}
}

// TestServerGuardAsGroups: a user that is no ServiceAccount keeps the rights of
// the groups that GuardAs is given.
func TestServerGuardAsGroups(t *testing.T) {
	t.Parallel()
	s := newShop(t, fenceConfigMaps, held(3))
	s.user = "jane-" + s.ns
	group := "shop-" + s.ns
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: group},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "work"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
	}
	rbac := fenceClients(t, testserver.Config(t)).RbacV1()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "work"}, Rules: []rbacv1.PolicyRule{anything}}
	if _, err := rbac.Roles(s.ns).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := rbac.RoleBindings(s.ns).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	write := func(wrap func(http.RoundTripper) http.RoundTripper) error {
		config := rest.CopyConfig(testserver.Config(t))
		config.Wrap(wrap)
		client := fenceClients(t, config).CoreV1().ConfigMaps(s.ns)
		return shopElector(s.leases, s.ns, "a").Run(t.Context(), func(ctx context.Context) error {
			_, err := client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
			return err
		})
	}
	if err := write(leader.GuardAs(s.user)); !apierrors.IsForbidden(err) {
		t.Errorf("without its group: error = %v, want Forbidden", err)
	}
	if err := write(leader.GuardAs(s.user, group)); err != nil {
		t.Errorf("with its group: %v", err)
	}
}

// A road keeps writes under way until it is opened, whatever becomes of their
// contexts: as a network may.
type road struct {
	under chan struct{} // a write is under way
	open  chan struct{}
}

func newRoad() *road { return &road{under: make(chan struct{}, 1), open: make(chan struct{})} }

func (r *road) wrap(next http.RoundTripper) http.RoundTripper { return slowTransport{r, next} }

type slowTransport struct {
	road *road
	next http.RoundTripper
}

func (s slowTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	s.road.under <- struct{}{}
	<-s.road.open
	return s.next.RoundTrip(req.WithContext(context.WithoutCancel(req.Context())))
}

// cutLeases is a client without watches, whose calls fail once it is cut.
type cutLeases struct {
	leader.LeaseClient
	cut atomic.Bool
}

var errCut = errors.New("no route to host")

func (c *cutLeases) Get(ctx context.Context, name string, opts metav1.GetOptions) (*coordinationv1.Lease, error) {
	if c.cut.Load() {
		return nil, errCut
	}
	return c.LeaseClient.Get(ctx, name, opts)
}

func (c *cutLeases) Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if c.cut.Load() {
		return nil, errCut
	}
	return c.LeaseClient.Update(ctx, lease, opts)
}

func (c *cutLeases) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return nil, errCut
}

// shopAccount makes the ServiceAccount shop-controller of the manifests, for
// another name than shop, and returns its user name and a configuration with a
// token of it.
func shopAccount(t *testing.T, shop string) (user string, config *rest.Config) {
	t.Helper()
	accounts := fenceClients(t, testserver.Config(t)).CoreV1().ServiceAccounts(shop)
	name := shop + "-controller"
	if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := accounts.CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config = rest.AnonymousClientConfig(testserver.Config(t))
	config.BearerToken = token.Status.Token
	config.QPS = -1
	return "system:serviceaccount:" + shop + ":" + name, config
}

// shopElector is the Elector of the manifests, for another name than shop.
func shopElector(leases leader.LeaseClient, shop, identity string) *leader.Elector {
	return &leader.Elector{
		Leases: leases, Namespace: shop, Name: shop + "-controller", Identity: identity,
		LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 200 * time.Millisecond,
		StartTimeout: fencePatience, // a Role takes effect some time after it was created
	}
}

// TestServerWriteInFlight: a write that Guard let pass while its process led is
// under way when the process loses the Lease, and arrives when another leads.
// Without a fence it is stored, as no client can prevent; with one it is refused.
// All of it happens with the manifests and a token of their ServiceAccount.
//
// Proves L13.
func TestServerWriteInFlight(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		fenced  bool
		guardAs bool
		verb    string // updates are stamped
		refused bool
	}{
		{name: "no fence, update", verb: "update"},
		{name: "no fence, delete", verb: "delete"},
		{name: "stamp, update", fenced: true, verb: "update", refused: true},
		{name: "stamp, delete", fenced: true, verb: "delete"},
		{name: "GuardAs, update", fenced: true, guardAs: true, verb: "update", refused: true},
		{name: "GuardAs, delete", fenced: true, guardAs: true, verb: "delete", refused: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ns := testserver.Namespace(t)
			user, config := shopAccount(t, ns)
			s := &fencedShop{ns: ns, user: user, policy: ns + "-controller", resource: fenceConfigMaps}
			allow(t, ns, user, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"create", "patch", "update", "delete"}})
			for _, file := range []string{"role.yaml", "fence.yaml"} {
				for _, doc := range manifest(t, file, ns) {
					if tt.fenced || !strings.Contains(kindOf(t, doc), "Policy") {
						createAny(t, doc)
					}
				}
			}
			leases := fenceClients(t, config).CoordinationV1().Leases(ns)
			configMaps := fenceClients(t, testserver.Config(t)).CoreV1().ConfigMaps(ns)
			before := map[string]*corev1.ConfigMap{}
			for _, name := range []string{"of-old", "of-new"} {
				obj, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				before[name] = obj
			}
			write := func(ctx context.Context, config *rest.Config, name string) error {
				config = rest.CopyConfig(config)
				if tt.guardAs {
					config.Wrap(leader.GuardAs(user))
				} else {
					config.Wrap(leader.Guard)
				}
				guarded := fenceClients(t, config).CoreV1().ConfigMaps(ns)
				if tt.verb == "delete" {
					return guarded.Delete(ctx, name, metav1.DeleteOptions{})
				}
				obj := before[name].DeepCopy()
				obj.Data = map[string]string{"by": name}
				term, _ := leader.TermFrom(ctx)
				term.Stamp(obj)
				_, err := guarded.Update(ctx, obj, metav1.UpdateOptions{})
				return err
			}

			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer stop()
			slow := newRoad()
			slowConfig := rest.CopyConfig(config)
			slowConfig.Wrap(slow.wrap)
			oldLeads, fenceWorks := make(chan leader.Term, 10), make(chan struct{})
			oldWrote := make(chan error, 1)
			cut := &cutLeases{LeaseClient: leases}
			wg.Go(func() {
				err := shopElector(cut, ns, "old").Run(ctx, func(ctx context.Context) error {
					term, _ := leader.TermFrom(ctx)
					oldLeads <- term
					select {
					case <-fenceWorks:
						wg.Go(func() { oldWrote <- write(ctx, slowConfig, "of-old") })
					case <-ctx.Done():
					}
					<-ctx.Done()
					return nil
				})
				if err != nil {
					t.Errorf("old: Run() = %v", err)
				}
			})
			old := within(t, oldLeads, "the first leader")
			if tt.fenced {
				s.awaitFence(t)
			}
			close(fenceWorks)
			within(t, slow.under, "the write under way")
			cut.cut.Store(true)

			newWrote := make(chan error, 1)
			wg.Go(func() {
				err := shopElector(leases, ns, "new").Run(ctx, func(ctx context.Context) error {
					newWrote <- write(ctx, config, "of-new")
					<-ctx.Done()
					return nil
				})
				if err != nil {
					t.Errorf("new: Run() = %v", err)
				}
			})
			if err := within(t, newWrote, "the next leader"); err != nil {
				t.Errorf("the next leader: %v", err)
			}
			if tt.fenced {
				eventually(t, "the API server knows of the next leader", func() error {
					_, err := s.as(t, "").Create(t.Context(), s.object("probe", fmt.Sprintf("%s/%d", old.LeaseUID, old.Number)),
						metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
					if err == nil {
						return errors.New("a write of the former term passes")
					}
					return nil
				})
			}
			close(slow.open)
			err := within(t, oldWrote, "the write of the former leader")
			s.judge(t, err, tt.refused)
			after, err := configMaps.Get(t.Context(), "of-old", metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
			if changed := err != nil || after.ResourceVersion != before["of-old"].ResourceVersion; changed == tt.refused {
				t.Errorf("the object changed: %v, want %v", changed, !tt.refused)
			}
		})
	}
}

func within[T any](t *testing.T, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(fencePatience):
		t.Fatalf("%s: not within %v", what, fencePatience)
	}
	return v
}

// TestServerRoleManifest: the Role of the manifest suffices for an election with
// watches, hand-over and re-creation of the Lease, and allows nothing beyond it.
func TestServerRoleManifest(t *testing.T) {
	t.Parallel()
	ns := testserver.Namespace(t)
	_, config := shopAccount(t, ns)
	clients := fenceClients(t, config)
	before := allowedTo(t, clients, ns)
	for _, doc := range manifest(t, "role.yaml", ns) {
		createAny(t, doc)
	}
	leases := clients.CoordinationV1().Leases(ns)
	lease := ns + "-controller"
	eventually(t, "the Role takes effect", func() error {
		if _, err := leases.Get(t.Context(), lease, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	})

	want := append(slices.Clone(before),
		authorizationv1.ResourceRule{Verbs: []string{"get", "update", "watch"}, APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{lease}},
		authorizationv1.ResourceRule{Verbs: []string{"create"}, APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}},
	)
	byResource := func(a, b authorizationv1.ResourceRule) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }
	got := allowedTo(t, clients, ns)
	slices.SortFunc(want, byResource)
	slices.SortFunc(got, byResource)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what the ServiceAccount may do (-without Role and the election's +with Role):\n%s", diff)
	}
	_, err := leases.Get(t.Context(), "another", metav1.GetOptions{})
	others := map[string]error{"get of another Lease": err}
	_, err = leases.List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + lease})
	others["list"] = err
	others["delete"] = leases.Delete(t.Context(), lease, metav1.DeleteOptions{})
	for what, err := range others {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: error = %v, want Forbidden", what, err)
		}
	}

	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	leads := make(chan string, 10)
	watches := make(chan string, 100)
	stops := map[string]context.CancelFunc{}
	for _, name := range []string{"a", "b"} {
		ctx, stop := context.WithCancel(ctx)
		stops[name] = stop
		e := shopElector(watchTold{leases, name, watches}, ns, name)
		// The next poll is far away: what happens soon, happens by the watch.
		e.LeaseDuration, e.RenewDeadline, e.RetryPeriod = 5*time.Minute, 4*time.Minute, 2*time.Minute
		wg.Go(func() {
			err := e.Run(ctx, func(ctx context.Context) error {
				leads <- name
				<-ctx.Done()
				return nil
			})
			if err != nil {
				t.Errorf("%s: Run() = %v, want nil", name, err)
			}
		})
		within(t, watches, "a watch of "+name)
	}
	first := within(t, leads, "the first leader")
	stops[first]()
	if second := within(t, leads, "the second leader"); second == first {
		t.Errorf("%s leads again after it was stopped", first)
	}
	if err := fenceClients(t, testserver.Config(t)).CoordinationV1().Leases(ns).Delete(t.Context(), lease, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, leads, "the leader after the Lease was deleted")
}

// watchTold tells of watches that were established.
type watchTold struct {
	leader.LeaseClient
	name string
	told chan<- string
}

func (w watchTold) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	got, err := w.LeaseClient.Watch(ctx, opts)
	if err == nil {
		w.told <- w.name
	}
	return got, err
}

// allowedTo is what the API server says that the user of clients may do.
func allowedTo(t *testing.T, clients *kubernetes.Clientset, ns string) []authorizationv1.ResourceRule {
	t.Helper()
	review, err := clients.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(),
		&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: ns}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return review.Status.ResourceRules
}

// servedBy is a transport that keeps what the API server says about how it has
// classified the last request.
type servedBy struct {
	mu            sync.Mutex
	schema, level string
}

func (s *servedBy) wrap(next http.RoundTripper) http.RoundTripper { return servedTransport{s, next} }

func (s *servedBy) last() [2]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return [2]string{s.schema, s.level}
}

type servedTransport struct {
	served *servedBy
	next   http.RoundTripper
}

func (s servedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := s.next.RoundTrip(req)
	if err == nil {
		s.served.mu.Lock()
		s.served.schema = res.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
		s.served.level = res.Header.Get(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID)
		s.served.mu.Unlock()
	}
	return res, err
}

// TestServerFlowSchemaManifest: the requests of an election are served at the
// level of elections with the manifest, and at workload-low without.
func TestServerFlowSchemaManifest(t *testing.T) {
	t.Parallel()
	ns := testserver.Namespace(t)
	_, config := shopAccount(t, ns)
	for _, doc := range manifest(t, "role.yaml", ns) {
		createAny(t, doc)
	}
	var served servedBy
	config.Wrap(served.wrap)
	leases := fenceClients(t, config).CoordinationV1().Leases(ns)
	lease := ns + "-controller"
	eventually(t, "the Role takes effect", func() error {
		_, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: lease}}, metav1.CreateOptions{})
		return err
	})
	flow := fenceClients(t, testserver.Config(t)).FlowcontrolV1()
	uids := func(schemaName, levelName string) [2]string {
		s, err := flow.FlowSchemas().Get(t.Context(), schemaName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		level, err := flow.PriorityLevelConfigurations().Get(t.Context(), levelName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return [2]string{string(s.UID), string(level.UID)}
	}
	requests := func(when string, want [2]string) {
		t.Helper()
		got, err := leases.Get(t.Context(), lease, metav1.GetOptions{})
		if err != nil || served.last() != want {
			t.Errorf("%s: get was served by FlowSchema and level %v (%v), want %v", when, served.last(), err, want)
		}
		if _, err := leases.Update(t.Context(), got, metav1.UpdateOptions{}); err != nil || served.last() != want {
			t.Errorf("%s: update was served by %v (%v), want %v", when, served.last(), err, want)
		}
		w, err := leases.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + lease})
		if err != nil || served.last() != want {
			t.Errorf("%s: watch was served by %v (%v), want %v", when, served.last(), err, want)
		}
		if err == nil {
			w.Stop()
		}
		if _, err := leases.Create(t.Context(), got, metav1.CreateOptions{}); err == nil || served.last() != want {
			t.Errorf("%s: create was served by %v (%v), want %v", when, served.last(), err, want)
		}
	}
	low := uids("service-accounts", "workload-low")
	requests("without the FlowSchema", low)

	created := createAny(t, manifest(t, "flowschema.yaml", ns)[0])
	// The API server says in the status that it has taken it in.
	w, err := flow.FlowSchemas().Watch(t.Context(), metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, created.GetName()).String(), ResourceVersion: created.GetResourceVersion(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for taken := false; !taken; {
		event := within(t, w.ResultChan(), "the status of the FlowSchema")
		if schema, ok := event.Object.(*flowcontrolv1.FlowSchema); ok {
			for _, c := range schema.Status.Conditions {
				taken = taken || c.Type == flowcontrolv1.FlowSchemaConditionDangling && c.Status == flowcontrolv1.ConditionFalse
			}
		}
	}
	requests("with the FlowSchema", uids(created.GetName(), "leader-election"))

	// What else the ServiceAccount does stays where it was.
	_, err = fenceClients(t, config).CoreV1().ConfigMaps(ns).Get(t.Context(), "a", metav1.GetOptions{})
	if !apierrors.IsForbidden(err) || served.last() != low {
		t.Errorf("get of a ConfigMap was served by %v (%v), want %v", served.last(), err, low)
	}
}
