package kube_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/kube"
)

func statusError(code int32, reason metav1.StatusReason, message string, details *metav1.StatusDetails) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message, Details: details,
	}}
}

func TestIsGone(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for _, tt := range []struct {
		name string
		err  error
		want bool
	}{
		{"absent", apierrors.NewNotFound(pods, "a"), true},
		{"absent, wrapped", fmt.Errorf("get: %w", apierrors.NewNotFound(pods, "a")), true},
		{"no error", nil, false},
		{"another object", apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "b"), false},
		{"a proxy", apierrors.NewGenericServerResponse(http.StatusNotFound, "get", pods, "a", "404 page not found", 0, true), false},
		{"a resource that is not served", statusError(404, metav1.StatusReasonNotFound, "the server could not find the requested resource", nil), false},
		{"details without a name", statusError(404, metav1.StatusReasonNotFound, "", &metav1.StatusDetails{}), false},
		{"a conflict", apierrors.NewConflict(pods, "a", nil), false},
		{"not an API error", errors.New("not found"), false},
	} {
		if got := kube.IsGone(tt.err, "a"); got != tt.want {
			t.Errorf("%s: got %t, want %t", tt.name, got, tt.want)
		}
	}
}

const failedTest = "the server rejected our request due to an error in our request"

func TestAsConflict(t *testing.T) {
	invalid := func(message string, details *metav1.StatusDetails) error {
		return statusError(422, metav1.StatusReasonInvalid, message, details)
	}
	for _, tt := range []struct {
		name string
		err  error
		want bool
	}{
		{"failed test", invalid(failedTest, nil), true},
		{"failed test with empty details", invalid(failedTest+": testing path /metadata/uid", &metav1.StatusDetails{}), true},
		{"wrapped", fmt.Errorf("patch: %w", invalid(failedTest, nil)), true},
		{"validation", apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "a", nil), false},
		{"the kind of an object", invalid(failedTest, &metav1.StatusDetails{Kind: "Pod"}), false},
		{"the name of an object", invalid(failedTest, &metav1.StatusDetails{Name: "a"}), false},
		{"a cause", invalid(failedTest, &metav1.StatusDetails{Causes: []metav1.StatusCause{{Field: "spec"}}}), false},
		{"a webhook", invalid("denied", nil), false},
		{"another code", statusError(400, metav1.StatusReasonInvalid, failedTest, nil), false},
		{"another reason", statusError(422, metav1.StatusReasonBadRequest, failedTest, nil), false},
		{"not an API error", errors.New(failedTest), false},
	} {
		got := kube.AsConflict(tt.err)
		if apierrors.IsConflict(got) != tt.want {
			t.Errorf("%s: got %v, want a conflict: %t", tt.name, got, tt.want)
		}
		if !errors.Is(got, tt.err) {
			t.Errorf("%s: %v lost the response", tt.name, got)
		}
	}
	if kube.AsConflict(nil) != nil {
		t.Error("no error became one")
	}
}

// A 403 of admission is not about a role, and one of the authorizer is.
func TestIsDenied(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	forbid := func(text string) error {
		return fmt.Errorf("create: %w", apierrors.NewForbidden(pods, `a"b`, errors.New(text)))
	}
	answer := func(text string) error { return statusError(403, metav1.StatusReasonForbidden, text, nil) }
	const right = `User "x" cannot create resource "pods" in API group "" in the namespace "a"`
	for _, tt := range []struct {
		name          string
		err           error
		denied, lacks bool
	}{
		{"a full quota", forbid("exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"), true, false},
		{"no requests for a quota", forbid("failed quota: q: must specify limits.cpu for: app"), true, false},
		{"a new quota", forbid("status unknown for quota: q, resources: pods"), true, false},
		{"a scope without a quota", forbid("insufficient quota to match these scopes: [{PriorityClass In [high]}]"), true, false},
		{"a LimitRange", forbid("maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi"), true, false},
		{"several limits", forbid("[minimum cpu usage per Container is 1, but request is 100m, memory max limit to request ratio per Pod is 2, but provided ratio is 3]"), true, false},
		{"a ratio", forbid("memory max limit to request ratio per Pod is 2, but provided ratio is 3.000000"), true, false},
		{"PodSecurity", forbid(`violates PodSecurity "restricted:latest": hostPort (container "a" uses hostPort 80)`), true, false},
		{"a policy", forbid("ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"), true, false},
		{"no name", apierrors.NewForbidden(pods, "", errors.New("exceeded quota: q")), true, false},
		{"a webhook", answer(`admission webhook "a.example.com" denied the request: ` + right), true, false},
		{"a webhook without a reason", answer(`admission webhook "a.example.com" denied the request without explanation`), true, false},
		{"a namespace that is being deleted", statusError(403, metav1.StatusReasonForbidden, "x", &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "NamespaceTerminating"}}}), true, false},
		{"a missing right", forbid(right), false, true},
		{"a name like a denial", apierrors.NewForbidden(pods, `x" is forbidden: exceeded quota: `, errors.New(right)), false, true},
		{"a name like a webhook", apierrors.NewForbidden(pods, `admission webhook "a" denied the request`, errors.New(right)), false, true},
		{"a right of another verb", forbid(`User "x" cannot get resource "pods" in API group "" in the namespace "a"`), false, false},
		{"an owner reference", forbid("cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: no RBAC policy matched, <nil>"), false, false},
		{"an escalation", forbid(`user "x" (groups=["y"]) is attempting to grant RBAC permissions not currently held`), false, false},
		{"another code", statusError(422, metav1.StatusReasonInvalid, `admission webhook "a.example.com" denied the request: no`, nil), false, false},
		{"not an API error", errors.New("pods is forbidden: exceeded quota: q"), false, false},
		{"no error", nil, false, false},
	} {
		if got := kube.IsDenied(tt.err); got != tt.denied {
			t.Errorf("%s: IsDenied(%v) = %t", tt.name, tt.err, got)
		}
		if got := kube.LacksRight(tt.err, "create"); got != tt.lacks {
			t.Errorf("%s: LacksRight(%v) = %t", tt.name, tt.err, got)
		}
	}
}

// patcher returns its fields and keeps the patch.
type patcher struct {
	patched *corev1.Pod
	err     error
	sent    string
}

func (p *patcher) Patch(_ context.Context, _ string, pt types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*corev1.Pod, error) {
	p.sent = string(pt) + " " + string(data)
	return p.patched, p.err
}

func TestPatch(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u"}}
	operations := []kube.Operation{kube.TestUID(pod), kube.Test("/metadata/labels", nil), {Op: "remove", Path: "/spec"}}

	c := &patcher{patched: pod}
	got, err := kube.Patch[*corev1.Pod](t.Context(), c, "a", operations, metav1.PatchOptions{})
	if got != pod || err != nil {
		t.Errorf("got %v, %v; want what the client returned", got, err)
	}
	want := `application/json-patch+json [{"op":"test","path":"/metadata/uid","value":"u"},` +
		`{"op":"test","path":"/metadata/labels","value":null},{"op":"remove","path":"/spec","value":null}]`
	if diff := cmp.Diff(want, c.sent); diff != "" {
		t.Errorf("patch (-want +got):\n%s", diff)
	}

	c = &patcher{patched: pod, err: statusError(422, metav1.StatusReasonInvalid, failedTest, nil)}
	if got, err := kube.Patch[*corev1.Pod](t.Context(), c, "a", operations, metav1.PatchOptions{}); got != nil || !apierrors.IsConflict(err) {
		t.Errorf("failed test: got %v, %v; want nil and a conflict", got, err)
	}
	if _, err := kube.Patch[*corev1.Pod](t.Context(), &patcher{}, "a", operations, metav1.PatchOptions{}); err == nil {
		t.Error("a client that returns nothing: got no error")
	}
	c = &patcher{patched: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}}} // a fake that ignores a dry run
	if got, err := kube.Patch[*corev1.Pod](t.Context(), c, "a", operations, metav1.PatchOptions{}); got != nil || err == nil || apierrors.IsConflict(err) {
		t.Errorf("a response without the tested uid: got %v, %v; want nil and an error that is no Conflict", got, err)
	}
	c = &patcher{patched: pod}
	if got, err := kube.Patch[*corev1.Pod](t.Context(), c, "a", []kube.Operation{kube.Test("/a", func() {})}, metav1.PatchOptions{}); got != nil || err == nil || c.sent != "" {
		t.Errorf("a value that has no JSON: got %v, %v and sent %q; want an error and no request", got, err, c.sent)
	}
}

func TestController(t *testing.T) {
	kind := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	yes := true
	owner := &metav1.ObjectMeta{Namespace: "n", Name: "owner", UID: "u"}
	want := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "owner", UID: "u", Controller: &yes, BlockOwnerDeletion: &yes}
	plain := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "owner", UID: "u"}
	with := func(change func(*metav1.OwnerReference)) metav1.OwnerReference {
		ref := want
		change(&ref)
		return ref
	}
	other := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "o"}
	controller := other
	controller.Controller = &yes
	type refs = []metav1.OwnerReference
	for _, tt := range []struct {
		name    string
		before  refs
		after   refs
		changed bool
	}{
		{"none", nil, refs{want}, true},
		{"another", refs{other}, refs{other, want}, true},
		{"has it", refs{other, want}, refs{other, want}, false},
		{"is an owner only", refs{plain, other}, refs{want, other}, true},
		{"another version", refs{with(func(r *metav1.OwnerReference) { r.APIVersion = "apps/v0" })}, refs{want}, true},
		{"another kind", refs{with(func(r *metav1.OwnerReference) { r.Kind = "ReplicaSet" })}, refs{want}, true},
		{"another name", refs{with(func(r *metav1.OwnerReference) { r.Name = "o" })}, refs{want}, true},
		{"does not control", refs{with(func(r *metav1.OwnerReference) { r.Controller = nil })}, refs{want}, true},
		{"controls not", refs{with(func(r *metav1.OwnerReference) { r.Controller = new(bool) })}, refs{want}, true},
		{"does not block", refs{with(func(r *metav1.OwnerReference) { r.BlockOwnerDeletion = nil })}, refs{want}, true},
		{"twice, the second controls", refs{plain, other, want}, refs{want, other}, true},
		{"twice, both control", refs{want, want}, refs{want}, true},
	} {
		child := &metav1.ObjectMeta{Namespace: "n", Name: "child", OwnerReferences: tt.before}
		got, changed, err := kube.Controller(owner, kind, child)
		if err != nil || changed != tt.changed {
			t.Errorf("%s: got changed %t, error %v; want %t", tt.name, changed, err, tt.changed)
		}
		if diff := cmp.Diff(tt.after, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if diff := cmp.Diff(tt.before, child.OwnerReferences); diff != "" {
			t.Errorf("%s: the child was modified:\n%s", tt.name, diff)
		}
	}

	got, changed, err := kube.Controller(owner, kind, &metav1.ObjectMeta{Namespace: "n", OwnerReferences: refs{controller}})
	if got != nil || changed || !errors.Is(err, kube.ErrOtherController) {
		t.Errorf("another controller: got %v, %t, %v", got, changed, err)
	}
	for name, bad := range map[string]struct {
		owner metav1.Object
		kind  schema.GroupVersionKind
		child metav1.Object
		want  string
	}{
		"no owner":                    {nil, kind, &metav1.ObjectMeta{}, "the owner is nil"},
		"a nil owner":                 {(*corev1.Pod)(nil), kind, &metav1.ObjectMeta{}, "the owner is nil"},
		"an owner without uid":        {&metav1.ObjectMeta{Name: "owner"}, kind, &metav1.ObjectMeta{}, "metadata.uid"},
		"an owner without name":       {&metav1.ObjectMeta{UID: "u"}, kind, &metav1.ObjectMeta{}, "metadata.name"},
		"a kind without version":      {owner, schema.GroupVersionKind{Kind: "Deployment"}, &metav1.ObjectMeta{Namespace: "n"}, "set its version and kind"},
		"a kind without name":         {owner, schema.GroupVersionKind{Version: "v1"}, &metav1.ObjectMeta{Namespace: "n"}, "set its version and kind"},
		"a child in another":          {owner, kind, &metav1.ObjectMeta{Namespace: "m"}, `in namespace "n" and the child in "m"`},
		"a child without a namespace": {owner, kind, &metav1.ObjectMeta{}, "the child has no namespace"},
	} {
		got, changed, err := kube.Controller(bad.owner, bad.kind, bad.child)
		if got != nil || changed || err == nil || errors.Is(err, kube.ErrOtherController) || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: got %v, %t, error %v; want an error with %q", name, got, changed, err, bad.want)
		}
	}
	if _, _, err := kube.Controller(&metav1.ObjectMeta{Name: "owner", UID: "u"}, kind, &metav1.ObjectMeta{Namespace: "n"}); err != nil {
		t.Errorf("a cluster-scoped owner: %v", err)
	}
}

func TestWithoutOwner(t *testing.T) {
	child := &metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{UID: "a"}, {UID: "b"}, {UID: "a"}}}
	if got := kube.WithoutOwner(child, "a"); len(got) != 1 || got[0].UID != "b" || len(child.OwnerReferences) != 3 {
		t.Errorf("got %v of %v", got, child.OwnerReferences)
	}
}

func TestIsNil(t *testing.T) {
	for _, v := range []any{nil, (*corev1.Pod)(nil), map[string]any(nil), []int(nil), (func())(nil), (chan int)(nil)} {
		if !kube.IsNil(v) {
			t.Errorf("%T: got false", v)
		}
	}
	for _, v := range []any{&corev1.Pod{}, corev1.Pod{}, map[string]any{}, 0, func() {}} {
		if kube.IsNil(v) {
			t.Errorf("%T: got true", v)
		}
	}
}

func TestIsSame(t *testing.T) {
	pod := &corev1.Pod{}
	for _, same := range [][2]any{{pod, pod}, {1, 1}} {
		if !kube.IsSame(same[0], same[1]) {
			t.Errorf("%T: got false", same[0])
		}
	}
	slice := []int{1}
	for _, other := range [][2]any{{pod, &corev1.Pod{Spec: corev1.PodSpec{NodeName: "a"}}}, {slice, slice}, {pod, nil}, {struct{ v any }{slice}, struct{ v any }{slice}}} {
		if kube.IsSame(other[0], other[1]) {
			t.Errorf("%T: got true", other[0])
		}
	}
}

func TestNameOf(t *testing.T) {
	if got := kube.NameOf(&metav1.ObjectMeta{Namespace: "n", Name: "a"}); got != "n/a" {
		t.Errorf("got %q", got)
	}
	if got := kube.NameOf(&metav1.ObjectMeta{Name: "a"}); got != "a" {
		t.Errorf("got %q", got)
	}
}

func TestMessage(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", ""},
		{"short\xff", "short\uFFFD"},
		{strings.Repeat("a", kube.MaxMessage), strings.Repeat("a", kube.MaxMessage)},
		{strings.Repeat("a", kube.MaxMessage+1), strings.Repeat("a", kube.MaxMessage)},
		{strings.Repeat("a", kube.MaxMessage-1) + "ü", strings.Repeat("a", kube.MaxMessage-1)},
		{strings.Repeat("a", 40000), strings.Repeat("a", 32768)},
		{strings.Repeat("\xff", 8*kube.MaxMessage), "\uFFFD"},       // one for each run of invalid bytes
		{strings.Repeat("\xff", 8*kube.MaxMessage) + "a", "\uFFFD"}, // it does not read to the end of a long text
		{strings.Repeat("\xffa", kube.MaxMessage), strings.Repeat("\uFFFDa", kube.MaxMessage/4)},
	} {
		got := kube.Message(tt.text)
		if got != tt.want || !utf8.ValidString(got) || len(got) > kube.MaxMessage {
			t.Errorf("%.20q of %d bytes: got %.20q of %d bytes, want %d", tt.text, len(tt.text), got, len(got), len(tt.want))
		}
	}
}

type Embedded struct {
	Inner   string `json:"inner,omitempty"`
	Shadow  int    `json:"shadow"`
	private int
}

type Second struct {
	Second string `json:"second"`
}

type loop struct {
	*loop
	Name string `json:"name"`
}

func TestJSONField(t *testing.T) {
	_, _ = Embedded{}.private, loop{}.loop
	type object struct {
		*Embedded `json:",inline"`
		Shadow    string `json:"shadow,omitzero"`
		Plain     string
		Dash      string   `json:"-"`
		Named     Embedded `json:"named"`
		Second
	}
	typ := reflect.TypeFor[object]()
	for _, tt := range []struct {
		name, path string
		omits      bool
	}{
		{"inner", "[0 0]", true},
		{"shadow", "[1]", true},
		{"Plain", "[2]", false},
		{"named", "[4]", false},
		{"second", "[5 0]", false},
	} {
		f, omits, ok := kube.JSONField(typ, tt.name)
		if !ok || fmt.Sprint(f.Index) != tt.path || omits != tt.omits {
			t.Errorf("%s: got %v, %t, %t; want %s, %t", tt.name, f.Index, omits, ok, tt.path, tt.omits)
		}
		if got := typ.FieldByIndex(f.Index).Name; got != f.Name {
			t.Errorf("%s: the index leads to %s, not to %s", tt.name, got, f.Name)
		}
	}
	for _, name := range []string{"-", "Dash", "private", "Named", "Shadow", ""} {
		if f, omits, ok := kube.JSONField(typ, name); ok || omits || f.Index != nil {
			t.Errorf("%q: got field %s, %t, %v", name, f.Name, omits, f.Index)
		}
	}
	if _, _, ok := kube.JSONField(reflect.TypeFor[loop](), "absent"); ok {
		t.Error("found a field that is absent")
	}
	if _, omits, ok := kube.JSONField(reflect.TypeFor[map[string]int](), "a"); ok || omits {
		t.Error("found a field of a map")
	}
}

// TestJSONFieldAgreesWithJSON compares with encoding/json.
func TestJSONFieldAgreesWithJSON(t *testing.T) {
	var fields map[string]any
	data, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Fatal(err)
	}
	for name := range fields {
		if _, _, ok := kube.JSONField(reflect.TypeFor[corev1.Pod](), name); !ok {
			t.Errorf("%s not found", name)
		}
	}
	if _, _, ok := kube.JSONField(reflect.TypeFor[corev1.Pod](), "apiVersion"); !ok {
		t.Error("apiVersion, a field of the embedded TypeMeta, not found")
	}
}

// A conflict of the API server is not a failed test, and the other way round it is one.
func TestIsFailedTest(t *testing.T) {
	failed := kube.AsConflict(statusError(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, failedTest, nil))
	if !kube.IsFailedTest(fmt.Errorf("remove: %w", failed)) {
		t.Errorf("IsFailedTest(%v) = false", failed)
	}
	for _, err := range []error{nil, errors.New("x"), statusError(http.StatusConflict, metav1.StatusReasonConflict, "the object changed after it was read", nil)} {
		if kube.IsFailedTest(kube.AsConflict(err)) {
			t.Errorf("IsFailedTest(%v) = true", err)
		}
	}
}

// TestAsRemovedVersion: only the whole response of the API server counts.
func TestAsRemovedVersion(t *testing.T) {
	response := metav1.Status{Status: metav1.StatusFailure, Code: 500, Message: "request to convert CR to an invalid group/version: example.com/v1alpha1"}
	with := func(change func(s *metav1.Status)) error {
		s := response
		change(&s)
		return fmt.Errorf("step: %w", &apierrors.StatusError{ErrStatus: s})
	}
	for _, tt := range []struct {
		name string
		err  error
		want bool
	}{
		{"the response", with(func(*metav1.Status) {}), true},
		{"another code", with(func(s *metav1.Status) { s.Code = 400 }), false},
		{"a reason", with(func(s *metav1.Status) { s.Reason = metav1.StatusReasonInternalError }), false},
		{"text before it", with(func(s *metav1.Status) { s.Message = "failed: " + s.Message }), false},
		{"no response", errors.New(response.Message), false},
		{"no error", nil, false},
	} {
		got := kube.AsRemovedVersion(tt.err)
		var rejected controllerkit.RejectedError
		if is := errors.Is(got, kube.ErrRemovedVersion); is != tt.want || !errors.Is(got, tt.err) || (errors.As(got, &rejected) && rejected.Rejected()) != tt.want {
			t.Errorf("%s: got %v, want a removed version: %v", tt.name, got, tt.want)
		}
		if again := kube.AsRemovedVersion(got); again != got {
			t.Errorf("%s: twice: %v", tt.name, again)
		}
	}
}
