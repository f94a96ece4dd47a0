package managedfields

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IsFormer reports whether the entry, of the subresource, is of one of the former managers and is not that
// of the applies of fm.
func IsFormer(e metav1.ManagedFieldsEntry, fm, subresource string, former []string) bool {
	return e.Subresource == subresource && slices.Contains(former, e.Manager) &&
		(e.Manager != fm || e.Operation != metav1.ManagedFieldsOperationApply)
}
