// Package inventory stores which kinds and namespaces have members of a set, as labels
// and annotations of the set's parent. The format is KEP-3659's, as in kubectl apply
// --applyset.
//
// Errors of this package have no prefix.
package inventory

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

// PartOf is the label of a member. Its value is the ID of the set.
const PartOf = "applyset.kubernetes.io/part-of"

const (
	idLabel     = "applyset.kubernetes.io/id"
	toolingName = "applyset.kubernetes.io/tooling"
	kindsName   = "applyset.kubernetes.io/contains-group-kinds"
	spacesName  = "applyset.kubernetes.io/additional-namespaces"
)

// maxAnnotations is how many bytes the API server accepts in the annotations of an object.
const maxAnnotations = 256 << 10

// ID returns the id of the set whose parent has the kind, namespace and name.
func ID(kind schema.GroupKind, namespace, name string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{name, namespace, kind.Kind, kind.Group}, ".")))
	return "applyset-" + base64.RawURLEncoding.EncodeToString(sum[:]) + "-v1"
}

// Inventory has the kinds and namespaces that can have members. Namespaces excludes the
// namespace of the parent, which can always have members.
type Inventory struct {
	Kinds      sets.Set[schema.GroupKind]
	Namespaces sets.Set[string]
}

// New returns an empty inventory.
func New() Inventory {
	return Inventory{Kinds: sets.New[schema.GroupKind](), Namespaces: sets.New[string]()}
}

// Add adds the kind and, unless it is empty or the parent's, the namespace of a member.
func (i Inventory) Add(kind schema.GroupKind, namespace, parentNamespace string) {
	i.Kinds.Insert(kind)
	if namespace != "" && namespace != parentNamespace {
		i.Namespaces.Insert(namespace)
	}
}

// Union returns the entries of both.
func (i Inventory) Union(other Inventory) Inventory {
	return Inventory{Kinds: i.Kinds.Union(other.Kinds), Namespaces: i.Namespaces.Union(other.Namespaces)}
}

// Equal reports whether both have the same entries.
func (i Inventory) Equal(other Inventory) bool {
	return i.Kinds.Equal(other.Kinds) && i.Namespaces.Equal(other.Namespaces)
}

// Metadata returns the labels and annotations of the parent of the set.
func (i Inventory) Metadata(id, tool string) (labels, annotations map[string]string) {
	var kinds []string
	for kind := range i.Kinds {
		kinds = append(kinds, kind.String())
	}
	slices.Sort(kinds)
	return map[string]string{idLabel: id}, map[string]string{
		toolingName: tool + "/v1",
		kindsName:   strings.Join(kinds, ","),
		spacesName:  strings.Join(sets.List(i.Namespaces), ","),
	}
}

// Read returns the inventory that parent has for a set. found is false if parent was never
// the parent of a set. An inventory of another set or tool, or with other entries than
// Metadata writes, is an error.
func Read(parent metav1.Object, id, tool string) (i Inventory, found bool, err error) {
	i = New()
	labels, annotations := parent.GetLabels(), parent.GetAnnotations()
	label, hasID := labels[idLabel]
	tooling, hasTooling := annotations[toolingName]
	kinds, hasKinds := annotations[kindsName]
	spaces := annotations[spacesName]
	if !hasID && !hasTooling && !hasKinds && spaces == "" {
		return i, false, nil
	}
	switch name := tooling[:max(strings.LastIndexByte(tooling, '/'), 0)]; {
	case !hasTooling:
		return i, true, fmt.Errorf("metadata.annotations[%q] of the parent is missing, and it has an inventory: restore the annotation", toolingName)
	case name != tool:
		return i, true, fmt.Errorf("metadata.annotations[%q] of the parent is %.64q: the set belongs to another tool than %q, so use another parent or TakeOver", toolingName, tooling, tool)
	case label != id:
		return i, true, fmt.Errorf("metadata.labels[%q] of the parent is %.64q: set it to %q", idLabel, label, id)
	case !hasKinds:
		return i, true, fmt.Errorf("metadata.annotations[%q] of the parent is missing: restore the annotation", kindsName)
	}
	for text := range items(kinds) {
		kind := schema.ParseGroupKind(text)
		if wrong := content.IsDNS1123Subdomain(kind.Group); kind.Kind == "" || kind.Group != "" && len(wrong) > 0 {
			return i, true, fmt.Errorf("metadata.annotations[%q] of the parent has %.64q: use entries such as Deployment.apps", kindsName, text)
		}
		i.Kinds.Insert(kind)
	}
	for namespace := range items(spaces) {
		if wrong := content.IsDNS1123Label(namespace); len(wrong) > 0 {
			return i, true, fmt.Errorf("metadata.annotations[%q] of the parent has %.64q, which is no namespace: remove it, because it %s", spacesName, namespace, strings.Join(wrong, ", "))
		}
		i.Namespaces.Insert(namespace)
	}
	return i, true, nil
}

// CheckSize returns an error if the inventory is too large for the annotations of parent.
func (i Inventory) CheckSize(parent metav1.Object, tool string) error {
	_, own := i.Metadata("", tool)
	size, others := 0, 0
	for name, value := range own {
		size += len(name) + len(value)
	}
	for name, value := range parent.GetAnnotations() {
		if _, ok := own[name]; !ok {
			others += len(name) + len(value)
		}
	}
	if size+others > maxAnnotations {
		return fmt.Errorf("metadata.annotations of the parent would have %d bytes for %d kinds and %d namespaces of members and %d bytes of others, and the API server accepts %d: share the objects among several parents, or move them to other namespaces in several calls",
			size, len(i.Kinds), len(i.Namespaces), others, maxAnnotations)
	}
	return nil
}

// items yields the parts of a list with commas. An empty text is an empty list.
func items(text string) func(func(string) bool) {
	if text == "" {
		return func(func(string) bool) {}
	}
	return strings.SplitSeq(text, ",")
}
