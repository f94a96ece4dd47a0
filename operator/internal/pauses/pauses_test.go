package pauses_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/enqueue/pause"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/operator/internal/objects"
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

// TestMarkedChild: a child of Elsewhere has no owner reference, and the line names the owner of its marks. An object
// without an owner gets no line.
func TestMarkedChild(t *testing.T) {
	for _, tt := range []struct{ name, uid, owner, want string }{
		{"marked", "u", "boxes.box.example.com/ns/a", "boxes.box.example.com/ns/a"},
		{"without the annotation", "u", "", "u"},
		{"without the label", "", "boxes.box.example.com/ns/a", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			logs := testlog.New()
			h := pauses.Children(pause.Annotations{}, func() klog.Logger { return klog.FromContext(logs.Context(t.Context())) })
			child := func(paused string) *corev1.ConfigMap {
				return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
					Name: "x", Namespace: "other", Labels: map[string]string{objects.OwnerUID: tt.uid},
					Annotations: map[string]string{objects.OwnerName: tt.owner, "controllerkit.github.io/paused": paused},
				}}
			}
			h.OnUpdate(child("false"), child("true"))
			got := ""
			for _, line := range logs.Find(pauses.Line) {
				got += line.Values["owner"].(string)
			}
			if got != tt.want {
				t.Errorf("the line names %q, want %q", got, tt.want)
			}
		})
	}
}
