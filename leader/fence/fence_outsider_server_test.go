package fence_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader/fence"
	"github.com/controllerkit/controllerkit/leader/internal/shop"
)

// TestServerFenceOutsiders: users outside the fence cannot set, change or remove a
// stamp of the Lease, and the fence refuses no other write of theirs.
//
// Proves L14.
func TestServerFenceOutsiders(t *testing.T) {
	t.Parallel()
	s := newFencedShop(t, widgets(t, "outsiders.test.controllerkit.github.io"), held(3))
	absurd := s.term(9) + strings.Repeat("0", 10_000)
	for i, tt := range []struct {
		name, verb string
		stored     string // what the leader has stamped; "-" if there is no object
		stamp      string // what the write makes of it; "=" leaves it alone, "" removes it
		refused    bool
	}{
		{name: "create, far term", verb: "create", stored: "-", stamp: s.term(2147483647), refused: true},
		{name: "create, next term", verb: "create", stored: "-", stamp: s.term(4), refused: true},
		{name: "create, present term", verb: "create", stored: "-", stamp: s.term(3), refused: true},
		{name: "create, former term", verb: "create", stored: "-", stamp: s.term(2), refused: true},
		{name: "create, number of absurd length", verb: "create", stored: "-", stamp: absurd, refused: true},
		{name: "create, nothing after the UID", verb: "create", stored: "-", stamp: s.term(0)[:37], refused: true},
		{name: "create by apply", verb: "apply", stored: "-", stamp: s.term(9), refused: true},
		{name: "create, no stamp", verb: "create", stored: "-", stamp: "="},
		{name: "create, stamp of another Lease", verb: "create", stored: "-", stamp: "c0ffee/3"},

		{name: "update, new stamp", verb: "update", stamp: s.term(9), refused: true},
		{name: "patch, new stamp", verb: "patch", stamp: s.term(9), refused: true},
		{name: "apply, new stamp", verb: "apply", stamp: s.term(9), refused: true},
		{name: "update, other stamp", verb: "update", stored: s.term(3), stamp: s.term(9), refused: true},
		{name: "patch, other stamp", verb: "patch", stored: s.term(3), stamp: s.term(9), refused: true},
		{name: "apply, other stamp", verb: "apply", stored: s.term(3), stamp: s.term(9), refused: true},
		{name: "patch, number of absurd length", verb: "patch", stored: s.term(3), stamp: absurd, refused: true},
		{name: "patch, rubbish over a stamp", verb: "patch", stored: s.term(3), stamp: "rubbish", refused: true},
		{name: "patch, stamp of another Lease over one", verb: "patch", stored: s.term(3), stamp: "c0ffee/3", refused: true},
		{name: "update removes the stamp", verb: "update", stored: s.term(3), stamp: "", refused: true},
		{name: "patch removes the stamp", verb: "patch", stored: s.term(3), stamp: "", refused: true},

		{name: "update leaves the stamp alone", verb: "update", stored: s.term(3), stamp: "="},
		{name: "patch leaves the stamp alone", verb: "patch", stored: s.term(3), stamp: "="},
		{name: "apply leaves the stamp alone", verb: "apply", stored: s.term(3), stamp: "="},
		{name: "update, no stamp", verb: "update", stamp: "="},
		{name: "status of a stamped object", verb: "status", stored: s.term(3), stamp: "="},
		{name: "delete of a stamped object", verb: "delete", stored: s.term(3)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name := fmt.Sprintf("w-%d", i)
			if tt.stored != "-" {
				if err := s.write(t, s.as(t, ""), "create", name, tt.stored); err != nil {
					t.Fatal(err)
				}
			}
			s.judgeOutsider(t, s.outsider(t, tt.verb, name, tt.stamp), tt.refused)
		})
	}
}

// outsider writes as a person. The stamp "=" is left alone, "" is removed.
func (s *fencedShop) outsider(t *testing.T, verb, name, stamp string) error {
	t.Helper()
	person := s.as(t, "person")
	if stamp == "" && verb != "delete" {
		switch verb {
		case "patch":
			_, err := person.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"annotations":null}}`), metav1.PatchOptions{})
			return err
		case "update":
			obj, err := person.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			obj.SetAnnotations(nil)
			_, err = person.Update(t.Context(), obj, metav1.UpdateOptions{})
			return err
		}
	}
	return s.write(t, person, verb, name, strings.TrimPrefix(stamp, "="))
}

// judgeOutsider holds that err is the refusal of a change of the stamp, or nil.
func (s *fencedShop) judgeOutsider(t *testing.T, err error, refused bool) {
	t.Helper()
	switch {
	case !refused && err != nil:
		t.Errorf("refused: %v; want it to pass", err)
	case refused && err == nil:
		t.Error("passed; want it refused")
	case refused && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "only the users of the fence")):
		t.Errorf("error = %v, want that of a change of the stamp", err)
	}
}

// TestServerFenceNotShutOut: a forged annotation from before the fence was in force blocks
// no write of the leader, by any verb.
//
// Proves L14.
func TestServerFenceNotShutOut(t *testing.T) {
	t.Parallel()
	s := newShop(t, fenceConfigMaps, held(3))
	forged := map[string]string{
		"far":     s.term(2147483647),
		"beyond":  s.term(3 + 17),
		"absurd":  s.term(9) + strings.Repeat("0", 200_000),
		"rubbish": "rubbish",
		"foreign": "c0ffee/99",
		"empty":   "",
	}
	verbs := []string{"create", "update", "patch", "apply", "delete", "deletecollection"}
	for what, stamp := range forged {
		for _, verb := range verbs[1:] {
			for _, how := range []string{"stamp", "guardas", "unstamped"} {
				obj := s.object(what+"-"+verb+"-"+how, stamp)
				obj.SetAnnotations(map[string]string{stampKey: stamp})
				obj.SetLabels(map[string]string{"case": obj.GetName()})
				if _, err := s.as(t, "person").Create(t.Context(), obj, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	s.fence(t)
	for what := range forged {
		for _, verb := range verbs[1:] {
			for how, by := range map[string]struct{ as, stamp string }{
				"stamp": {stamp: s.term(3)}, "guardas": {as: s.term(3)}, "unstamped": {},
			} {
				t.Run(what+"/"+verb+"/"+how, func(t *testing.T) {
					name := what + "-" + verb + "-" + how
					if verb == "deletecollection" {
						err := s.as(t, by.as).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "case=" + name})
						s.judge(t, err, false)
						return
					}
					s.judge(t, s.write(t, s.as(t, by.as), verb, name, by.stamp), false)
				})
			}
		}
	}
	// Stamps near the present term still count.
	near := newShop(t, fenceConfigMaps, held(3))
	if err := near.write(t, near.as(t, "person"), "create", "later", near.term(3+16)); err != nil {
		t.Fatal(err)
	}
	near.fence(t)
	near.judge(t, near.write(t, near.as(t, near.term(3)), "patch", "later", ""), true)
	near.judge(t, near.write(t, near.as(t, near.term(3+16)), "patch", "later", ""), false)
}

// TestServerFenceBinding: the annotations of a Binding become those of the Pod, so
// they are no way around the fence, whatever the annotation's value is.
//
// Proves L14.
func TestServerFenceBinding(t *testing.T) {
	t.Parallel()
	s := newFencedShop(t, fenceConfigMaps, held(3), func(f *fence.Fence) {
		f.Resources = append(f.Resources, schema.GroupResource{Resource: "pods"})
	})
	core := shop.Clients(t, testserver.Config(t)).CoreV1()
	if _, err := core.ServiceAccounts(s.ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pods := core.Pods(s.ns)
	create := func(name string, annotations map[string]string) {
		t.Helper()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}}}
		if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(name, stamp, node string) {
		t.Helper()
		got, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || got.Annotations[stampKey] != stamp || got.Spec.NodeName != node {
			t.Errorf("pod: annotations %v, node %q, error %v; want the stamp %q and the node %q", got.Annotations, got.Spec.NodeName, err, stamp, node)
		}
	}
	create("a", nil)
	binding := func(name string) *corev1.Binding {
		return &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"other": "x"}}, Target: corev1.ObjectReference{Kind: "Node", Name: "node"}}
	}
	ways := map[string]func(*corev1.Binding) error{
		"subresource": func(b *corev1.Binding) error { return pods.Bind(t.Context(), b, metav1.CreateOptions{}) },
		"resource": func(b *corev1.Binding) error {
			return core.RESTClient().Post().Namespace(s.ns).Resource("bindings").Body(b).Do(t.Context()).Error()
		},
	}
	for way, bind := range ways {
		for what, stamp := range map[string]string{"higher": s.term(9), "equal": s.term(3), "rubbish": "x", "foreign": "c0ffee/1", "empty": ""} {
			t.Run(way+"/"+what, func(t *testing.T) {
				b := binding("a")
				b.Annotations = map[string]string{stampKey: stamp, "other": "x"}
				s.judgeOutsider(t, bind(b), true)
			})
		}
		check("a", "", "")
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{stampKey: s.term(9)}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = pods.Patch(t.Context(), "a", types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	s.judgeOutsider(t, err, true)
	s.judgeOutsider(t, ways["subresource"](binding("a")), false)
	check("a", "", "node")
	create("b", nil)
	s.judgeOutsider(t, ways["resource"](binding("b")), false)
	check("b", "", "node")
}

// TestServerTwoFences: two controllers with a fence each may stamp objects of the
// same resource, and patch each other's.
func TestServerTwoFences(t *testing.T) {
	t.Parallel()
	a := newFencedShop(t, fenceConfigMaps, held(3))
	b := newFencedShop(t, fenceConfigMaps, held(7))
	allow(t, a.ns, b.user, anything)
	if err := a.write(t, a.as(t, ""), "create", "of-a", a.term(3)); err != nil {
		t.Errorf("the first controller: %v", err)
	}
	if err := b.write(t, b.as(t, ""), "create", "of-b", b.term(7)); err != nil {
		t.Errorf("the second controller: %v", err)
	}
	inA := *b
	inA.ns = a.ns
	if err := inA.write(t, inA.as(t, ""), "patch", "of-a", ""); err != nil {
		t.Errorf("the second controller patches an object of the first: %v", err)
	}
	a.judgeOutsider(t, inA.write(t, inA.as(t, ""), "patch", "of-a", b.term(7)), true)
}
