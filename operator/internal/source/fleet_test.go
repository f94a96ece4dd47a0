package source_test

import (
	"reflect"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/enqueue/pause"
	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/operator/internal/served"
	"github.com/controllerkit/controllerkit/operator/internal/source"
)

// spy is a source's informer, and has the handler that it got.
type spy struct {
	cache.SharedIndexInformer
	handler cache.ResourceEventHandler
}

func (s *spy) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	s.handler = h
	return s.SharedIndexInformer.AddEventHandler(h)
}

// TestOwn: a handler sees an event after it is counted, and the objects of a cache are decoded for it only if their
// type has conditions.
func TestOwn(t *testing.T) {
	for _, tt := range []struct {
		name     string
		typ      reflect.Type
		pausable bool
		alone    bool // the metadata suffices
	}{
		{"no conditions", reflect.TypeFor[*corev1.ConfigMap](), true, true},
		{"metadata", reflect.TypeFor[*metav1.PartialObjectMetadata](), true, true},
		{"no pointer", reflect.TypeFor[metav1.Object](), false, true},
		{"a status without conditions", reflect.TypeFor[*corev1.ResourceQuota](), true, true},
		{"conditions", reflect.TypeFor[*appsv1.Deployment](), true, false},
		{"conditions that cannot be paused", reflect.TypeFor[*appsv1.Deployment](), false, false},
	} {
		m, err := metrics.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		informer := &spy{SharedIndexInformer: cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, nil)}
		var set source.Set
		s, err := set.Of(served.Resource{GroupResource: corev1.Resource("pods")}, informer)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // of two controllers
			s.Own(tt.typ, true, tt.pausable, pause.Annotations{}, m)
		}
		if (s.Paused != nil) != tt.pausable {
			t.Errorf("%s: it can be paused: %t, want %t", tt.name, s.Paused != nil, tt.pausable)
		}
		paused := -1
		next := &handler{on: func() {
			if s.Paused != nil {
				paused = s.Paused.Len()
			}
		}}
		if _, err := s.AddEventHandler(next); err != nil {
			t.Fatal(err)
		}
		if got := headers.Alone(informer.handler); got != tt.alone {
			t.Errorf("%s: the metadata suffices: %t, want %t", tt.name, got, tt.alone)
		}
		want := 1
		if !tt.pausable {
			want = -1
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"controllerkit.github.io/paused": ""}}}
		running := pod.DeepCopy()
		running.Annotations = nil
		informer.handler.OnAdd(running, true)
		if tt.pausable && paused != 0 {
			t.Errorf("%s: during the first event %d objects are paused, want 0", tt.name, paused)
		}
		informer.handler.OnUpdate(running, pod)
		if paused != want {
			t.Errorf("%s: during the event %d objects are paused, want %d", tt.name, paused, want)
		}
		informer.handler.OnDelete(pod)
		if tt.pausable && paused != 0 {
			t.Errorf("%s: during the deletion %d objects are paused, want 0", tt.name, paused)
		}
	}
}

// handler calls on for each event, and needs the metadata alone.
type handler struct{ on func() }

func (*handler) MetadataAlone() bool { return true }
func (h *handler) OnAdd(any, bool)   { h.on() }
func (h *handler) OnUpdate(_, _ any) { h.on() }
func (h *handler) OnDelete(any)      { h.on() }
