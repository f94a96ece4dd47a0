package ssa

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/managedfields"
)

// ConflictError lists the fields of a configuration that other managers own. It wraps
// the response of the API server, or the same error if TryApply found the conflict
// before the request.
type ConflictError struct {
	Conflicts []Conflict // at least one, ordered by field
	Err       error
}

// Conflict is a field of a configuration that another manager owns with another value.
type Conflict struct {
	Field   string // the path, for example ".data.color" or ".spec.ports[port=80]"
	Manager string // the field manager that owns it; "" if the API server does not name it
}

// Error names the fields and their managers.
func (e *ConflictError) Error() string {
	fields := make([]string, len(e.Conflicts))
	for i, c := range e.Conflicts {
		fields[i] = fmt.Sprintf("%s by %q", c.Field, c.Manager)
	}
	return "ssa: other field managers own " + strings.Join(fields, ", ")
}

// Unwrap returns Err. apierrors.IsConflict is true for it.
func (e *ConflictError) Unwrap() error { return e.Err }

// Owner is a manager that owns a contested field, according to managedFields.
type Owner struct {
	Field       string                            // as in [Conflict]
	Manager     string                            // as in [Conflict]
	Operation   metav1.ManagedFieldsOperationType // "" if managedFields do not have the field
	Subresource string                            // of the write; "" is the main resource
	Time        time.Time                         // of the manager's last change; zero if managedFields do not have the field
}

// Owners finds the contested fields in the managedFields of live, and returns how and
// when the other managers wrote them. It makes no request.
//
// live is the object of the conflict, from a lister or from a Get. fm is the manager of
// the failed apply. Fields that fm applied are not contested; fields that it wrote by
// Update, or applied through another subresource such as scale, can be.
//
// The owners are in the order of the Conflicts, and each Conflict has at least one. If
// live does not show the manager with that field, only Field and Manager are set. That is
// also so for fields after the first 64 MiB of paths, which only hostile names reach.
func (e *ConflictError) Owners(fm FieldManager, live metav1.Object) []Owner {
	var entries []metav1.ManagedFieldsEntry
	if !kube.IsNil(live) {
		entries = live.GetManagedFields()
	}
	contested, longest := map[string][]Owner{}, 0
	for _, c := range e.Conflicts {
		contested[c.Field], longest = nil, max(longest, len(c.Field))
	}
	left := maxOwnerBytes
	for _, entry := range entries {
		if entry.Operation == metav1.ManagedFieldsOperationApply && entry.Manager == string(fm) && (entry.Subresource == "" || entry.Subresource == "status") {
			continue // the manager of the apply itself
		}
		set, err := managedfields.Set(entry)
		if err != nil {
			continue // malformed
		}
		owner := Owner{Manager: entry.Manager, Operation: entry.Operation, Subresource: entry.Subresource}
		if entry.Time != nil {
			owner.Time = entry.Time.Time
		}
		set.Iterate(func(p fieldpath.Path) {
			if len(p) > 500 {
				return // deeper than any schema
			}
			// TryApply reports the field that would replace a map or a list of owned
			// fields, so the field itself and all fields that it is in count.
			var path []byte
			for _, element := range p {
				next := len(path) + size(element)
				if left -= next; left < 0 || next > longest {
					return
				}
				path = append(path, element.String()...)
				owner.Field = string(path)
				if owners, ok := contested[owner.Field]; ok && !slices.Contains(owners[max(len(owners)-1, 0):], owner) {
					contested[owner.Field] = append(owners, owner)
				}
			}
		})
	}
	var owners []Owner
	// A manager that wrote in two versions of the API is in two conflicts.
	for _, c := range slices.Compact(slices.Clone(e.Conflicts)) {
		before := len(owners)
		for _, owner := range contested[c.Field] {
			if owner.Manager == c.Manager || c.Manager == "" {
				owners = append(owners, owner)
			}
		}
		if len(owners) == before {
			owners = append(owners, Owner{Field: c.Field, Manager: c.Manager})
		}
	}
	return owners
}

// maxOwnerBytes bounds the bytes of the paths that Owners compares. Names can be long.
const maxOwnerBytes = 64 << 20

// size returns about the number of bytes of an element's text, and never more.
func size(e fieldpath.PathElement) (n int) {
	switch {
	case e.FieldName != nil:
		n = len(*e.FieldName)
	case e.Key != nil:
		for _, k := range *e.Key {
			if n += len(k.Name); k.Value.IsString() {
				n += len(k.Value.AsString())
			}
		}
	case e.Value != nil && (*e.Value).IsString():
		n = len((*e.Value).AsString())
	}
	return n
}
