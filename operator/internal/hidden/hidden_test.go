package hidden_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/operator/internal/hidden"
)

type event = enqueue.Event[*corev1.Pod]

func TestDeletions(t *testing.T) {
	selects := enqueue.Selects[*corev1.Pod](labels.SelectorFromSet(labels.Set{"a": "b"}))
	for _, tt := range []struct {
		name  string
		pass  []enqueue.Predicate[*corev1.Pod]
		lines int
	}{
		{name: "no deletion", pass: []enqueue.Predicate[*corev1.Pod]{func(e event) bool { return !e.Deleted }}, lines: 1},
		{name: "no deletion of the selected", pass: []enqueue.Predicate[*corev1.Pod]{selects, func(e event) bool { return !e.Deleted }}, lines: 1},
		{name: "generation", pass: []enqueue.Predicate[*corev1.Pod]{enqueue.GenerationChanged[*corev1.Pod]}},
		{name: "no generation", pass: []enqueue.Predicate[*corev1.Pod]{enqueue.Not(enqueue.GenerationChanged[*corev1.Pod])}},
		{name: "version", pass: []enqueue.Predicate[*corev1.Pod]{enqueue.ResourceVersionChanged[*corev1.Pod]}},
		{name: "selected", pass: []enqueue.Predicate[*corev1.Pod]{selects}},
		{name: "not selected", pass: []enqueue.Predicate[*corev1.Pod]{enqueue.Not(selects)}},
		{name: "several", pass: []enqueue.Predicate[*corev1.Pod]{selects, enqueue.Or(enqueue.GenerationChanged[*corev1.Pod], enqueue.Not(selects))}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			logs := testlog.New()
			all := enqueue.And(tt.pass...)
			noted := 0
			noting := enqueue.And(hidden.Deletions(tt.pass, func() klog.Logger { return klog.FromContext(logs.Context(t.Context())) }, func() { noted++ })...)
			for range 3 {
				for _, labels := range []map[string]string{{"a": "b"}, nil} {
					pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", Labels: labels}}
					for _, e := range []event{{New: pod, Created: true}, {Old: pod, New: pod}, {Old: pod, Deleted: true}} {
						if got, want := noting(e), all(e); got != want {
							t.Errorf("%+v passes: %t, want %t", e, got, want)
						}
					}
				}
			}
			if lines := logs.Find(hidden.Line); len(lines) != tt.lines || len(logs.All()) != tt.lines || noted != tt.lines {
				t.Errorf("noted %d times and logged %+v, want %d lines", noted, logs.All(), tt.lines)
			}
		})
	}
	if pass := hidden.Deletions([]enqueue.Predicate[*corev1.Pod]{nil}, nil, nil); len(pass) != 1 || pass[0] != nil {
		t.Errorf("a nil predicate became %v", pass)
	}
}
