// Package hidden finds predicates that hide deletions.
package hidden

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// Line is the line of log.
const Line = "A predicate filters the deletion of an object whose creation it passes, so the key does not run: return true if Event.Deleted is set"

// Deletions returns predicates that pass the same events. If they filter the deletion of an object whose
// creation they pass, Deletions logs that once, and calls noted. A predicate that selects objects filters both.
func Deletions[T any](pass []enqueue.Predicate[T], logger func() klog.Logger, noted func()) []enqueue.Predicate[T] {
	if slices.ContainsFunc(pass, func(p enqueue.Predicate[T]) bool { return p == nil }) {
		return pass // an error of the registration
	}
	all := enqueue.And(pass...)
	var once sync.Once
	return []enqueue.Predicate[T]{func(e enqueue.Event[T]) bool {
		passed := all(e)
		if e.Deleted && !passed && all(enqueue.Event[T]{New: e.Old, Created: true}) {
			once.Do(func() {
				name := ""
				if o, ok := any(e.Old).(metav1.Object); ok {
					name = kube.NameOf(o)
				}
				noted()
				logger().Info(Line, "object", kube.Printable(name, 512))
			})
		}
		return passed
	}}
}
