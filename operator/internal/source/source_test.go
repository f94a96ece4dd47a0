package source_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/operator/internal/served"
	"github.com/controllerkit/controllerkit/operator/internal/source"
)

// TestNames: what waits for the handlers of an informer names its resource.
func TestNames(t *testing.T) {
	var set source.Set
	pods, err := set.Of(served.Resource{GroupResource: corev1.Resource("pods")}, cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, nil))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		registration, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := registration.HasSyncedChecker().Name(), "the handlers of pods"; got != want {
			t.Errorf("the registration is %q, want %q", got, want)
		}
	}
}
