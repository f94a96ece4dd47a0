package owner_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/fakeserver"
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

// cost is the CPU time, at least, and the memory that f takes.
func cost(f func()) (time.Duration, uint64) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	f()
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	return took, after.TotalAlloc - before.TotalAlloc
}

// use calls both functions with the child and checks what they leave behind.
func use(t *testing.T, cm *corev1.ConfigMap) {
	t.Helper()
	parent := fakeserver.Settings()
	own := cm.DeepCopy()
	if err := owner.SetController(parent, configMapKind, own); err == nil {
		controllers, mine := 0, 0
		for _, ref := range own.OwnerReferences {
			if ptr.Deref(ref.Controller, false) {
				controllers++
			}
			if ref.UID == parent.UID {
				mine++
			}
		}
		if controllers != 1 || mine != 1 {
			t.Errorf("%d controllers and %d references to the owner, want one of each", controllers, mine)
		}
	}
	server := fakeserver.New(parent, cm)
	claimed, err := owner.Claim(context.Background(), server, parent, configMapKind, server, labels.SelectorFromSet(labels.Set{"app": "web"}), []*corev1.ConfigMap{cm})
	if err == nil && len(claimed) == 1 && !metav1.IsControlledBy(claimed[0], parent) {
		t.Error("claimed a child that the owner does not control")
	}
}

// TestHostile proves OW6, four times the references cost some four times as much, and the
// largest object costs little.
func TestHostile(t *testing.T) {
	measure := func(n int) uint64 {
		cm := hostile(n*64, n, "x", true)
		_, memory := cost(func() { use(t, cm) })
		return memory
	}
	measure(100) // warm
	small, large := measure(2000), measure(8000)
	if large > 6*small {
		t.Errorf("2000 references take %d bytes and 8000 take %d: more than in proportion", small, large)
	}
	if took, memory := cost(func() { use(t, hostile(maxObject, 8000, "\x1b[2J\r\n", true)) }); took > 10*time.Second || memory > 400<<20 {
		t.Errorf("an object of 1 MiB took %v and %d bytes", took, memory)
	}
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
		if took, memory := cost(func() { use(t, cm) }); took > 10*time.Second || memory > 600<<20 {
			t.Errorf("%d references in %d bytes took %v and %d bytes", n, size, took, memory)
		}
	})
}
