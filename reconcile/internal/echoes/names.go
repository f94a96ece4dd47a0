package echoes

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Names reports whether the key is the name of the object.
func Names[K comparable](key K, o metav1.Object) bool {
	switch key := any(key).(type) {
	case types.NamespacedName:
		return key.Name == o.GetName() && key.Namespace == o.GetNamespace()
	case cache.ObjectName:
		return key.Name == o.GetName() && key.Namespace == o.GetNamespace()
	default:
		namespace, name, found := strings.Cut(fmt.Sprint(key), "/")
		if !found {
			namespace, name = "", namespace
		}
		return name == o.GetName() && namespace == o.GetNamespace()
	}
}
