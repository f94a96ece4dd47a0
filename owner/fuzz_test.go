package owner_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/fakeserver"
	"github.com/controllerkit/controllerkit/internal/testcost"
	"github.com/controllerkit/controllerkit/owner"
)

// maxObject is the size in bytes of the largest object that the API server stores.
const maxObject = 1 << 20

// hostile returns a child of about the size with references and labels that its author
// chose: n references, each with a text of its own, of which some claim to be to the
// owner.
func hostile(size, n int, text string, forged bool) *corev1.ConfigMap {
	cm := child(func(cm *corev1.ConfigMap) { cm.Labels = map[string]string{"app": "web"} })
	if text == "" {
		text = "x"
	}
	for i := range n {
		ref := ref(fmt.Sprint(text, i), types.UID(strings.Repeat(text, max(1, min(size/n, 1<<16)/len(text)))), nil)
		if forged && i%3 == 0 {
			ref.UID, ref.Name = "uid-1", text
		}
		cm.OwnerReferences = append(cm.OwnerReferences, ref)
	}
	return cm
}

// stub is a client whose requests cost no more than their encoding.
type stub struct{ live *corev1.ConfigMap }

func (s stub) Get(context.Context, string, metav1.GetOptions) (*corev1.ConfigMap, error) {
	return s.live, nil
}

func (s stub) Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*corev1.ConfigMap, error) {
	return s.live, nil
}

// decide calls both functions for the child.
func decide(cm *corev1.ConfigMap) {
	parent, own := fakeserver.Settings(), cm.DeepCopy()
	_ = owner.SetController(parent, configMapKind, own)
	_, _ = owner.Claim(context.Background(), stub{parent}, parent, configMapKind, stub{cm}, labels.SelectorFromSet(labels.Set{"app": "web"}), []*corev1.ConfigMap{cm})
}

// checkCost fails the test if the child costs more than an object of its size may.
func checkCost(t *testing.T, cm *corev1.ConfigMap) {
	t.Helper()
	testcost.Cheap(t, fmt.Sprintf("a child with %d references", len(cm.OwnerReferences)), func() { _, _ = json.Marshal(cm) }, func() { decide(cm) })
}

// TestHostile proves CK3, with children of the largest size and of a growing number of
// references: four times the references cost some four times the memory.
func TestHostile(t *testing.T) {
	measure := func(n int) uint64 {
		cm := hostile(n*64, n, "x", true)
		_, memory := testcost.Of(func() { decide(cm) })
		return memory
	}
	measure(100) // warm
	small, large := measure(2000), measure(8000)
	if large > 6*small {
		t.Errorf("2000 references take %d bytes and 8000 take %d: more than in proportion", small, large)
	}
	for _, forged := range []bool{false, true} {
		checkCost(t, hostile(maxObject, 8000, "\x1b[2J\r\n", forged))
		checkCost(t, hostile(maxObject, 3, "\x1b[2J\r\n", forged))
	}
	use(t, hostile(1000, 50, "\x1b[2J\r\n", true))
}

// FuzzHostile gives SetController and Claim children as their authors can store them.
func FuzzHostile(f *testing.F) {
	f.Add(0, 1, "", false)
	f.Add(maxObject, 8000, "a", true)
	f.Add(maxObject, 3, "\x00\x1b[2J\r\n\u2028", true)
	f.Fuzz(func(t *testing.T, size, n int, text string, forged bool) {
		if n < 1 || n > 10000 || size < 0 || size > maxObject || len(text) > 1<<12 || n*len(text) > maxObject {
			t.Skip()
		}
		cm := hostile(size, n, text, forged)
		if data, err := json.Marshal(cm); err != nil || len(data) > testcost.Object {
			t.Skip() // escapes can make it too large
		}
		checkCost(t, cm)
		use(t, hostile(min(size, 1000), min(n, 50), text, forged))
	})
}
