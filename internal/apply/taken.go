package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Taken returns an error like the API server's for a conflict if an apply without force
// would remove fields of other managers. It needs live and its managedFields.
//
// The API server reports a conflict if the value of an owned field changes. If a map or
// a list becomes a value of another type, the fields that others own in it are removed,
// and the API server reports no conflict. A field can change its type if its schema has
// no type. The API server also reports none if null replaces a map or a list that another
// manager owns as {} or [], and whose contents the manager owned. Taken reports these conflicts.
//
// Taken does not know whether the apply is to the main resource or to the status. It
// also compares the fields that the API server ignores.
//
// If the context ends, Taken returns its error.
func Taken(ctx context.Context, manager string, c *Config, live metav1.Object) error {
	err := taken(ctx, manager, c, live)
	return cmp.Or(ctx.Err(), err)
}

func taken(ctx context.Context, manager string, c *Config, live metav1.Object) error {
	if c.forest == nil {
		return c.wrong("size", "is %w with live: apply it in parts", errLarge)
	}
	c.forest.done = ctx.Done()
	if u, ok := live.(unstructuredContent); ok {
		if metadata, _ := u.UnstructuredContent()["metadata"].(map[string]any); count(metadata["managedFields"], maxNodes) > maxNodes {
			return fmt.Errorf("metadata.managedFields of live: %w", errLarge)
		}
	}
	entries := live.GetManagedFields()
	if len(entries) == 0 {
		return errors.New("metadata.managedFields of live is empty: pass an object whose managedFields no transform removed")
	}
	t := taker{decider: &decider{forest: c.forest}, entries: entries, manager: manager}
	for _, e := range entries {
		if e.FieldsV1 == nil || isOwn(&e, manager, "") || isOwn(&e, manager, "status") {
			continue
		}
		var owned int32
		owned, t.err = t.parse(e.FieldsV1.GetRawString())
		t.message = "conflict with " + strconv.Quote(e.Manager)
		if e.Operation == metav1.ManagedFieldsOperationUpdate {
			t.message += " using " + e.APIVersion
		}
		t.compare(c.root, owned)
		if t.err == nil && t.exhausted() {
			t.err = errLarge
		}
		if t.err != nil {
			return fmt.Errorf("metadata.managedFields of live: the fields of %q: %w", e.Manager, t.err)
		}
	}
	if len(t.causes) == 0 {
		return nil
	}
	return apierrors.NewApplyConflict(t.causes, fmt.Sprintf("Apply failed with %d conflicts: the configuration would remove fields of other managers", len(t.causes)))
}

// These bound the size of the error. An object can have keys of a megabyte.
const (
	maxCauses = 64
	maxFields = 64 << 10 // bytes of the fields of all causes but the first
)

type taker struct {
	*decider
	places  []place // the path
	message string
	causes  []metav1.StatusCause
	fields  int   // bytes of the fields of the causes
	err     error // of fields that cannot be compared

	entries []metav1.ManagedFieldsEntry
	manager string
	own     []int32 // the fields of manager, once they are needed
}

// place is a part of a path: a member, or an item if key is not 0.
type place struct {
	name  string
	key   int32  // the node of the item's key
	owned string // the name in fieldsV1
}

// field returns the path as the API server writes it. compare calls it only for a conflict,
// because names can be long.
func (t *taker) field() string {
	var b strings.Builder
	for _, s := range t.places {
		if s.key != 0 {
			b.WriteString(t.element(s.key))
		} else {
			b.WriteString("." + s.name)
		}
	}
	return b.String()
}

// report adds the conflict at the path, once.
func (t *taker) report() {
	if len(t.causes) >= maxCauses || t.fields > maxFields {
		return
	}
	cause := metav1.StatusCause{Type: metav1.CauseTypeFieldManagerConflict, Message: t.message, Field: t.field()}
	if !slices.Contains(t.causes, cause) {
		t.causes = append(t.causes, cause)
		t.fields += len(cause.Field)
	}
}

// compare reports the fields of the configuration that would replace a map or a list with
// fields of another manager.
func (t *taker) compare(config, owned int32) {
	holdsMembers, holdsItems := false, false
	for o := t.nodes[owned].child; o != 0 && t.spend(1); o = t.nodes[o].next {
		isMember := strings.HasPrefix(t.nodes[o].key, "f:")
		holdsMembers = holdsMembers || isMember
		holdsItems = holdsItems || !isMember && t.nodes[o].key != "."
	}
	kind := t.nodes[config].kind
	switch {
	case kind == null && t.nodes[owned].kind == object && t.nodes[owned].n == 0:
		if t.empties() {
			t.report()
		}
	case config == 0 || kind == null || !holdsMembers && !holdsItems: // null leaves a map of owned fields as it is
	case holdsMembers && kind != object || holdsItems && kind != list:
		t.report()
	case kind == object:
		hint := int32(0)
		for c := t.nodes[config].child; c != 0 && t.spend(1); c = t.nodes[c].next {
			name := t.nodes[c].key
			if o := t.member(owned, hint, "f:", name); o != 0 {
				hint = o
				t.at(place{name: name, owned: t.nodes[o].key}, c, o)
			}
		}
	default:
		for o := t.nodes[owned].child; o != 0 && t.spend(1); o = t.nodes[o].next {
			name, keyed := strings.CutPrefix(t.nodes[o].key, "k:")
			if !keyed || t.nodes[o].n == 0 {
				continue // owned without members
			}
			key, err := t.parse(name)
			if err != nil {
				t.err = err
				return
			}
			for c := t.nodes[config].child; c != 0 && t.spend(1); c = t.nodes[c].next {
				if t.maybeKeyed(key, c) {
					t.at(place{key: key, owned: t.nodes[o].key}, c, o)
				}
			}
		}
	}
}

// empties reports whether the manager owns members or items at the path. If it omits them, and
// another manager owns the field itself, the API server stores a null of the configuration there,
// and reports no conflict.
func (t *taker) empties() bool {
	if t.own == nil {
		t.own = []int32{}
		for _, e := range t.entries {
			if e.FieldsV1 == nil || !isOwn(&e, t.manager, "") && !isOwn(&e, t.manager, "status") {
				continue
			}
			var owned int32
			if owned, t.err = t.parse(e.FieldsV1.GetRawString()); t.err != nil {
				return false
			}
			t.own = append(t.own, owned)
		}
	}
	return slices.ContainsFunc(t.own, func(at int32) bool {
		for _, p := range t.places {
			at = t.member(at, 0, "", p.owned)
		}
		return t.nodes[at].n > 0
	})
}

func (t *taker) at(p place, config, owned int32) {
	t.places = append(t.places, p)
	t.compare(config, owned)
	t.places = t.places[:len(t.places)-1]
}

// maybeKeyed reports whether an item can have the key. The schema can have a default
// for a part that the item omits.
func (t *taker) maybeKeyed(key, item int32) bool {
	for k := t.nodes[key].child; k != 0; k = t.nodes[k].next {
		if part := t.member(item, 0, "", t.nodes[k].key); part != 0 && !t.equal(k, part) {
			return false
		}
	}
	return t.nodes[item].kind == object
}

// element writes a key as the API server does in a conflict.
func (t *taker) element(key int32) string {
	var parts []string
	for k := t.nodes[key].child; k != 0; k = t.nodes[k].next {
		value := t.nodes[k].value
		if t.nodes[k].kind == text {
			value = strconv.Quote(value)
		}
		parts = append(parts, t.nodes[k].key+"="+value)
	}
	return "[" + strings.Join(parts, ",") + "]"
}
