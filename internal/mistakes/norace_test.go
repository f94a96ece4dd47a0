//go:build !race

package mistakes_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestMistakeCachedObject: a function changes an object of a lister.
func TestMistakeCachedObject(t *testing.T) {
	t.Parallel()
	pieces(t, lineMutated, func(s *stand, wrong bool) {
		s.configMap("x")
		s.touched = "x" // an event of own-a would replace the object
		s.call = func(_ context.Context, cm *corev1.ConfigMap) error {
			if !wrong {
				cm = cm.DeepCopy()
			}
			cm.Data["a"] = "changed"
			return nil
		}
	}, map[string]string{"object": "own-a", "path": "data"})
}
