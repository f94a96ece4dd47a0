// Package versions compares the resource versions of caches and of objects.
package versions

import (
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Floor knows which version was shown before.
type Floor struct {
	At      string      // of the view or the part before; "" if there was none
	reached atomic.Bool // the floor was reached
}

// Known returns the version. Until the floor is reached, it returns "", because a lower version
// would mean that etcd was restored.
func (f *Floor) Known(version string) string {
	if version == "" || f.At == "" || f.reached.Load() {
		return version
	}
	if order, err := resourceversion.CompareResourceVersion(version, f.At); err == nil && order < 0 {
		return ""
	}
	f.reached.Store(true)
	return version
}

// Same reports whether two objects are the same version of one object.
func Same(a, b any) bool {
	x, err := meta.Accessor(a)
	if err != nil {
		return false
	}
	y, err := meta.Accessor(b)
	if err != nil {
		return false
	}
	return x.GetResourceVersion() != "" && x.GetResourceVersion() == y.GetResourceVersion() && x.GetUID() == y.GetUID()
}
