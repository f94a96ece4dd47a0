package pauses_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/enqueue/pause"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/operator/internal/pauses"
)

// TestOwnerIsPrintable: an author of an object chooses the kind and the name in an owner reference. They begin no line of
// the log, and are cut.
func TestOwnerIsPrintable(t *testing.T) {
	logs := testlog.New()
	a := pause.Annotations{Prefix: "example.com"}
	h := pauses.Children(a, func() klog.Logger { return klog.FromContext(logs.Context(t.Context())) })
	controls := true
	child := func(value string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: "a", Namespace: "b", Annotations: map[string]string{"example.com/paused": value},
			OwnerReferences: []metav1.OwnerReference{{Kind: "x\n\x1b[2J", Name: strings.Repeat("y", 1<<20), Controller: &controls}},
		}}
	}
	h.OnUpdate(child("false"), child("true"))
	lines := logs.Find(pauses.Line)
	if len(lines) != 1 {
		t.Fatalf("%d lines, want 1", len(lines))
	}
	if owner, _ := lines[0].Values["owner"].(string); len(owner) > 700 || !strings.HasPrefix(owner, `x\n\x1b[2J yyy`) {
		t.Errorf("the owner has %d bytes and begins with %q", len(owner), owner[:min(40, len(owner))])
	}
}
