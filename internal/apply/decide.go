package apply

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// Bare is the reason of Unchanged for a live object whose managedFields are empty.
const Bare = "live has no managedFields"

// Unchanged reports whether an apply of the configuration would leave live and its
// managedFields as they are. It makes no request and needs no schema. If it cannot decide,
// it reports false. why is the first difference or doubt, for logs.
//
// extract decides which fields are atomic. It is the generated ExtractX function of the
// kind. nil means that the kind has no such function.
//
// An apply has two effects, and Unchanged compares both:
//
//   - The API server merges the configuration into the object. The merge is a no-op
//     if the object has each value of the configuration, and the items of lists have the
//     same order.
//   - The API server makes the fields of the configuration the manager's entry in
//     managedFields. That is a no-op if the entry has exactly these fields.
//
// Unchanged spends a bounded amount of time and memory on any object. If the context ends,
// it reports false.
func Unchanged[T metav1.Object, C any](ctx context.Context, manager string, c *Config, live T, extract func(live T, fieldManager string) (C, error)) (unchanged bool, why string) {
	if c.forest == nil {
		return false, "the configuration is " + errLarge.Error()
	}
	c.forest.done = ctx.Done()
	values, ok := countable(live, maxNodes-len(c.forest.nodes))
	if !ok {
		return false, "live is " + errLarge.Error()
	}
	entries := live.GetManagedFields()
	d := &decider{forest: c.forest, config: c.root, owned: "{}"}
	own := slices.IndexFunc(entries, func(e metav1.ManagedFieldsEntry) bool { return isOwn(&e, manager, "") })
	size := 0
	for i := range entries {
		fields := entries[i].FieldsV1
		if fields == nil {
			return false, "live has an entry without fieldsV1"
		}
		raw := fields.GetRawString()
		if size += len(raw); i == own {
			d.owned, d.version = raw, entries[i].APIVersion
		} else {
			d.others = append(d.others, raw)
		}
	}
	switch {
	case len(entries) == 0:
		return false, Bare
	case 2*len(c.JSON)+size > maxCompared: // the object has what the configuration has
		return false, "live is " + errLarge.Error()
	}
	owned, err := d.parse(d.owned)
	switch {
	case err != nil:
		return false, "fieldsV1: " + err.Error()
	case slices.ContainsFunc(d.nodes[owned:], func(n node) bool { return n.kind != object }):
		return false, "fieldsV1 has other values than objects"
	case len(d.nodes)+values > maxNodes || d.exhausted():
		return false, "live is " + errLarge.Error()
	}
	trimmed, ok := withoutManagedFields(live)
	if !ok {
		return false, fmt.Sprintf("a %T cannot be copied", live)
	}
	encoded, err := encode(trimmed)
	if err != nil {
		return false, "live cannot be encoded"
	}
	if len(c.JSON)+size+len(encoded) > maxCompared {
		return false, "live is " + errLarge.Error()
	}
	root, err := d.parse(encoded)
	if err != nil {
		return false, "live: " + err.Error()
	}
	if _, ok := any(live).(unstructuredContent); !ok {
		d.live = reflect.TypeOf(live)
	}
	d.secret = c.apiVersion == "v1" && c.kind == "Secret"
	d.root(c.root, owned, root)
	switch {
	case d.why != "":
	case manager == "kubectl" && live.GetAnnotations()["kubectl.kubernetes.io/last-applied-configuration"] != "":
		d.differ("the API server changes an annotation for kubectl")
	case d.duplicates(c.root) || d.duplicates(root): // raw JSON in a field can have them
		d.differ("a member is there twice")
	case d.exhausted():
		d.differ(errLarge.Error())
	case !settled(manager, d, trimmed, extract):
		d.differ("the schema is not known")
	}
	return d.why == "", d.why
}

// maxCompared bounds the bytes that a decision reads.
const maxCompared = 3 << 20

// countable reports whether an unstructured object has few enough values to be encoded:
// its managedFields at most maxNodes, and the other fields at most most. values is the
// number of the latter. Typed objects hold fewer values in a byte, and their encoding is
// cheaper, so they are not counted.
func countable(live any, most int) (values int, ok bool) {
	u, ok := live.(unstructuredContent)
	if !ok {
		return 0, true
	}
	content := u.UnstructuredContent()
	metadata, _ := content["metadata"].(map[string]any)
	owners := count(metadata["managedFields"], maxNodes)
	if owners > maxNodes {
		return 0, false
	}
	values = count(content, owners+most) - owners
	return values, values <= most
}

// count returns the number of values in v. It stops behind most values, and at a value that
// is deeper than parse reads.
func count(v any, most int) int {
	n := 0
	var walk func(v any, depth int)
	walk = func(v any, depth int) {
		if n++; depth > maxDepth {
			n = most + 1
		}
		switch v := v.(type) {
		case map[string]any:
			for _, v := range v {
				if n > most {
					return
				}
				walk(v, depth+1)
			}
		case []any:
			for _, v := range v {
				if n > most {
					return
				}
				walk(v, depth+1)
			}
		}
	}
	walk(v, 0)
	return n
}

// isOwn reports whether an entry of managedFields has the fields that the manager
// applied through the subresource.
func isOwn(e *metav1.ManagedFieldsEntry, manager, subresource string) bool {
	return e.Manager == manager && e.Operation == metav1.ManagedFieldsOperationApply && e.Subresource == subresource
}

// decider compares a configuration with the fields that its manager owns, and with the
// live object. The names of owned fields have the prefix "f:".
type decider struct {
	*forest
	config  int32
	owned   string       // the manager's fieldsV1
	version string       // the apiVersion of owned
	others  []string     // fieldsV1 of the other entries
	live    reflect.Type // nil if the object is unstructured
	secret  bool         // the object is a Secret

	path      []step
	room      []indexed // for indexes
	questions []question
	why       string // the first difference; "" means no difference
}

// step is a part of a path: the name of a member, or any item of a list.
type step struct {
	name string
	item bool
}

// question is a field whose schema decides. An atomic field is owned as a whole; of a
// granular one, each member is owned by itself.
type question struct {
	field  schemaField
	atomic bool  // the value for which the decision stands
	shown  bool  // live has a value there, so that extract shows whether the field is atomic
	config int32 // the field in the configuration
	at     int   // the position in owned behind the brace of the field
}

// differ ends the comparison.
func (d *decider) differ(why string) {
	if d.why != "" {
		return
	}
	var b strings.Builder
	for _, s := range d.path {
		if s.item {
			b.WriteString("[]")
		} else {
			b.WriteString("." + s.name[:min(len(s.name), 64)])
		}
		if b.Len() > 256 {
			b.WriteString("...")
			break
		}
	}
	d.why = strings.TrimPrefix(b.String()+": "+why, ": ")
}

// in calls f with the step as part of the path.
func (d *decider) in(s step, f func()) {
	d.path = append(d.path, s)
	f()
	d.path = d.path[:len(d.path)-1]
}

// ask notes a question about the schema.
func (d *decider) ask(atomic bool, config, owned, live int32) {
	if p := d.path; len(p) == 3 && p[0].name == "metadata" && p[1].name == "ownerReferences" && p[2].item {
		// All kinds share the schema of metadata: owner references are atomic.
		if !atomic {
			d.differ("owned in another shape")
		}
		return
	}
	field, _ := d.field()
	d.questions = append(d.questions, question{field: field, atomic: atomic, shown: d.nodes[live].n > 0, config: config, at: int(d.nodes[owned].start) + 1})
}

// root compares whole objects.
func (d *decider) root(config, owned, live int32) {
	d.members(config, owned, live, func(c, o, l int32) {
		switch name := d.nodes[c].key; {
		case name == "apiVersion":
			switch version := d.nodes[c].value; {
			case d.version != "" && d.version != version:
				d.differ("the manager owns fields in another version")
			case d.nodes[l].value != "" && d.nodes[l].value != version: // typed clients leave it empty
				d.differ("live is of another version")
			}
		case name == "kind":
			// Typed clients leave it empty, and it is part of the address.
		case name == "metadata":
			d.members(c, o, l, d.metadata)
		case name == "stringData" && d.secret:
			d.stringData(c, o, d.member(live, 0, "", "data"))
		default:
			d.value(c, o, l, false)
		}
	})
}

// members calls compare for each member of a configuration, with the owned field and the
// live value of that name. Owned fields without a member make a difference.
func (d *decider) members(config, owned, live int32, compare func(c, o, l int32)) {
	d.fields(config, owned, live, 0, compare)
}

// fields is members for an object whose manager owns more than its members.
func (d *decider) fields(config, owned, live, used int32, compare func(c, o, l int32)) {
	hintO, hintL := int32(0), int32(0)
	for c := d.nodes[config].child; c != 0 && d.why == ""; c = d.nodes[c].next {
		name := d.nodes[c].key
		o := d.member(owned, hintO, "f:", name)
		l := d.member(live, hintL, "", name)
		hintO, hintL = cmp.Or(o, hintO), cmp.Or(l, hintL)
		if o != 0 {
			used++
		}
		d.in(step{name: name}, func() { compare(c, o, l) })
		if d.steps > maxSteps {
			d.differ(errLarge.Error())
		}
	}
	if used != d.nodes[owned].n {
		d.differ("a field is owned and not applied any more")
	}
}

// metadata compares a field of the metadata. The API server lets no manager own some of
// them.
func (d *decider) metadata(c, o, l int32) {
	config, live := d.nodes[c], d.nodes[l]
	switch config.key {
	case "name", "namespace", "selfLink":
		// They are part of the address, and Match has compared them.
	case "uid", "resourceVersion":
		if config.value != live.value {
			d.differ("a precondition does not hold")
		}
	case "creationTimestamp", "generation":
		if config.key == "creationTimestamp" && config.kind == null {
			break // encoders write it, and the API server keeps its own
		}
		if config.kind != live.kind || config.value != live.value {
			d.differ("the API server sets it")
		}
	case "labels", "annotations", "finalizers", "ownerReferences":
		// All kinds share the schema of metadata: these fields are granular.
		switch {
		case config.kind != null && config.n > 0:
			d.value(c, o, l, false)
		case d.nodes[o].n > 0, (o != 0) == (config.kind == list):
			d.differ("empty, and owned in another shape")
		case l == 0:
			d.dropped(config.key)
		}
	default:
		d.value(c, o, l, false)
	}
}

// dropped is about a field that the API server does not store: each apply merges it
// into the object again. That is a no-op unless another manager loses the field.
func (d *decider) dropped(name string) {
	for _, fields := range d.others {
		if !d.spend(len(fields)/64) || strings.Contains(fields, `"f:`+name+`"`) {
			d.differ("not stored, and owned by others too")
		}
	}
}

// value compares a field. An item of a list is owned as itself, by ".", and has fields.
func (d *decider) value(config, owned, live int32, item bool) {
	c, o, l := &d.nodes[config], &d.nodes[owned], &d.nodes[live]
	switch {
	case c.kind == null && o.kind == object && o.n == 0 && l.kind == null:
	case c.kind == null:
		d.differ("null")
	case c.kind == list && c.n == 0:
		if o.kind != object || o.n != 0 || l.kind != list || l.n != 0 {
			d.differ("an empty list")
		}
	case o.kind != object:
		d.differ("not owned")
	case c.kind == object && c.n == 0:
		d.emptyObject(config, owned, live)
	case c.kind < list && o.n != 0:
		d.differ("owned in another shape")
	case c.kind < list:
		d.scalar(config, live, "")
	case o.n == 0:
		d.ask(true, config, owned, live)
		d.whole(config, live, c.key)
	case l.kind != c.kind:
		d.differ("not there")
	case c.kind == list:
		d.items(config, owned, live)
	default:
		used := int32(0)
		if item {
			used = 1
		}
		if dot := d.member(owned, 0, "", ".") != 0; dot != item {
			// Granular members of a map are owned as themselves too, and only the API
			// server knows which members these are.
			d.differ("owned in another shape")
		}
		d.fields(config, owned, live, used, func(c, o, l int32) { d.value(c, o, l, false) })
	}
}

// emptyObject is owned as itself, whatever the schema.
func (d *decider) emptyObject(config, owned, live int32) {
	switch l := d.nodes[live]; {
	case d.nodes[owned].n != 0:
		d.differ("a field is owned and not applied any more")
	case l.kind != object:
		d.differ("empty, and not there")
	case l.n > 0 && d.live == nil:
		// client-go's extractor for unstructured objects reads OpenAPI v2, in which a nullable
		// field has no type, so an atomic map looks granular. Then the skip would be for ever.
		d.differ("empty, and only the API server knows whether it is atomic")
	case l.n > 0:
		d.ask(false, config, owned, live)
	}
}

// stringData compares the stringData of a Secret, which the API server stores in data.
func (d *decider) stringData(config, owned, data int32) {
	if d.nodes[config].kind != object || d.nodes[owned].kind != object || d.nodes[config].n != d.nodes[owned].n {
		d.differ("other fields are owned")
		return
	}
	d.dropped("stringData")
	d.members(config, owned, data, func(c, o, l int32) {
		value, stored := d.nodes[c], d.nodes[l]
		if o == 0 || value.kind != text || stored.kind != text || base64.StdEncoding.EncodeToString([]byte(value.value)) != stored.value {
			d.differ("not in data")
		}
	})
}

// whole compares a value that is owned as a whole. field is the name of the outermost
// one.
func (d *decider) whole(config, live int32, field string) {
	c, l := d.nodes[config], d.nodes[live]
	switch {
	case c.kind < list:
		d.scalar(config, live, field)
	case c.kind != l.kind:
		d.differ("not there")
	case c.kind == list:
		if c.n != l.n {
			d.differ("another number of items")
			return
		}
		d.in(step{item: true}, func() {
			for a, b := c.child, l.child; a != 0 && d.why == ""; a, b = d.nodes[a].next, d.nodes[b].next {
				d.whole(a, b, field)
			}
		})
	default:
		found := int32(0)
		d.members(config, 0, live, func(a, _, b int32) {
			if b != 0 {
				found++
			}
			d.whole(a, b, field)
		})
		if found != l.n {
			d.differ("more is there than is applied")
		}
	}
}

// scalar compares texts, numbers and booleans. field is the name of the outermost value
// that is owned as a whole; "" means the scalar itself.
func (d *decider) scalar(config, live int32, field string) {
	c, l := &d.nodes[config], &d.nodes[live]
	switch {
	case d.equal(config, live):
	case l.kind == absent && isZero(c):
		if f, ok := d.field(); ok && f.dropsZero {
			d.dropped(cmp.Or(field, c.key))
		} else {
			d.differ("empty, and not there")
		}
	case l.kind == text && c.kind == text && alike(c.value, l.value):
		d.differ("stored in other words")
	default:
		d.differ("another value")
	}
}

func isZero(n *node) bool {
	return n.kind == text && n.value == "" || n.kind == number && n.value == "0" || n.kind == boolean && n.value == "false"
}

func (d *decider) equal(a, b int32) bool {
	x, y := &d.nodes[a], &d.nodes[b]
	if x.kind != y.kind || x.kind >= list || x.kind <= null {
		return false
	}
	return d.same(x.value, y.value) || x.kind == number && canonical(x.value) == canonical(y.value)
}

// canonical returns equal texts for numbers that the API server takes for equal. Numbers
// beyond 64 bits are texts.
func canonical(number string) string {
	if len(number) > 64 {
		return number
	}
	if i, err := strconv.ParseInt(number, 10, 64); err == nil {
		return strconv.FormatInt(i, 10)
	}
	f, err := strconv.ParseFloat(number, 64)
	switch {
	case err != nil:
		return number
	case f == math.Trunc(f) && math.Abs(f) < 1<<53:
		return strconv.FormatInt(int64(f), 10)
	}
	return strconv.FormatFloat(f, 'g', -1, 64)
}

// alike reports whether two texts are one quantity or one time. Other users write the
// texts, so it compares no quantity whose value has many digits: 1e999999999 has eleven
// characters and a billion digits.
func alike(a, b string) bool {
	if !isShortNumber(a) || !isShortNumber(b) {
		return false
	}
	if t, err := time.Parse(time.RFC3339, a); err == nil {
		u, err := time.Parse(time.RFC3339, b)
		return err == nil && t.Equal(u)
	}
	p, errP := resource.ParseQuantity(a)
	q, errQ := resource.ParseQuantity(b)
	return errP == nil && errQ == nil && p.Cmp(q) == 0
}

// isShortNumber reports whether a text begins like a number, and has few digits before
// and behind its exponent.
func isShortNumber(s string) bool {
	if s == "" || len(s) > 40 || !strings.ContainsRune("+-.0123456789", rune(s[0])) {
		return false
	}
	i := strings.LastIndexAny(s, "eE")
	return i < 0 || len(s)-i <= 4 // as in 1e+18 and 1Ei; times have no exponent
}

// schemaField is a field of a Go type.
type schemaField struct {
	parent    reflect.Type
	index     string
	dropsZero bool // Go does not write the field when it is zero
}

// field finds the field of the path in the type of live. It reports false for fields
// of unstructured objects and of types with their own encoding, and for members of maps.
func (d *decider) field() (schemaField, bool) {
	marshaler := reflect.TypeFor[json.Marshaler]()
	t, last := d.live, schemaField{}
	for _, s := range d.path {
		for t != nil && t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		switch {
		case t == nil || t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler):
			return schemaField{}, false
		case s.item && t.Kind() == reflect.Slice, !s.item && t.Kind() == reflect.Map:
			t, last = t.Elem(), schemaField{}
		case !s.item && t.Kind() == reflect.Struct:
			f, omits, ok := kube.JSONField(t, s.name)
			if !ok {
				return schemaField{}, false
			}
			last = schemaField{parent: t, index: s.name, dropsZero: omits && f.Type.Kind() != reflect.Pointer}
			t = f.Type
		default:
			return schemaField{}, false
		}
	}
	return last, last.parent != nil
}
