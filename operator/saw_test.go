package operator

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/internal/calls"
)

// at is a store that has reached a version.
type at string

func (s at) LastStoreSyncResourceVersion() string { return string(s) }

// TestSaw: after a live read, the next call waits until the cache has reached what was read.
func TestSaw(t *testing.T) {
	configMaps := corev1.Resource("configmaps")
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u"}}
	for _, tc := range []struct {
		live    bool
		version string
		ready   bool
	}{
		{live: true, version: "9"}, {live: true, version: "5", ready: true}, {version: "9", ready: true},
	} {
		c := &Controller{writes: consistency.New(consistency.Config{
			Stores: map[schema.GroupResource]interface{ LastStoreSyncResourceVersion() string }{configMaps: at("5")},
		})}
		c.saw(context.WithValue(t.Context(), calls.LiveRead{}, tc.live), owner, configMaps, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: tc.version}})
		err := c.writes.EnsureReady(types.NamespacedName{Namespace: "ns", Name: "a"})
		if (err == nil) != tc.ready {
			t.Errorf("live %t at %s: the key is not ready: %v, want ready %t", tc.live, tc.version, err, tc.ready)
		}
	}
}
