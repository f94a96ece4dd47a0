package ssa

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"hash/maphash"
	"reflect"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// verdict says what applying a configuration would do to an object.
type verdict byte

const (
	same    verdict = iota // nothing: a request is not needed
	doubt                  // nothing, if that is how the server stores what is applied
	differs                // something, or it cannot be told
)

// shape is what the schema says of a field, as far as it matters for ownership.
type shape byte

const (
	unknown  shape = iota
	atomic         // the manager owns all of it or nothing
	granular       // what is in it is owned one by one
	dotted         // granular, and itself a value of a map: owned as "." besides
)

// What a path consists of: names behind the one, and the other for the items of a
// list. Neither is found in names.
const (
	down  = "\x00"
	items = "\x01"
)

// ownerReference is the path of what is owned as one in objects of every kind.
const ownerReference = down + "metadata" + down + "ownerReferences" + items

// question is a field of which the shape has to be known.
type question struct {
	path   string // in the schema, and the kind of the value
	want   shape  // what it has to be for the verdict to hold
	config int32  // the field in the configuration
	at     int    // behind the brace of the owned field, for extraction
}

// decider compares a configuration with what a manager owns of an object, and with
// the object. What the server does, and the comparison mirrors, is:
//
//   - Merge the configuration into the object. It changes nothing if each value of the
//     configuration is there, and the items of lists are in the same order.
//   - Own what is in the configuration, and remove what was owned and is not in it any
//     more. It changes nothing if the owned fields are those of the configuration.
//
// Which fields a configuration has depends on the schema in few places, all about
// what is owned as one: those are the questions.
type decider struct {
	*forest
	version string       // the apiVersion at which the fields are owned
	live    reflect.Type // nil if the object is unstructured
	shapes  func(path []byte) shape
	others  func(name string) bool // whether others own a field of that name

	field string // the name of what is owned as one, while inside of it

	path      []byte // begins with prefix, which tells kinds apart
	prefix    int
	questions []question
	verdict   verdict
	why       string // what gave the verdict: for logs
}

// rule lowers the verdict.
func (d *decider) rule(v verdict, why string) {
	if v > d.verdict {
		d.verdict, d.why = v, strings.NewReplacer(down, ".", items, "[]").Replace(string(d.path[d.prefix:]))+": "+why
	}
}

func (d *decider) need(want shape, config, owned int32) {
	switch known := d.known(config); {
	case known == want || known == dotted && want == granular:
	case known != unknown:
		d.rule(differs, "owned in another shape")
	default:
		d.questions = append(d.questions, question{path: string(d.kinded(config)), want: want, config: config, at: int(d.nodes[owned].start) + 1})
	}
}

// known is what is known of the shape of the field of the path.
func (d *decider) known(config int32) shape {
	if string(d.path[d.prefix:]) == ownerReference {
		return atomic
	}
	return d.shapes(d.kinded(config))
}

// kinded is the path with the kind of the value: where there is no schema a list and
// an object of one path have different shapes.
func (d *decider) kinded(config int32) []byte {
	return append(d.path, byte(d.nodes[config].kind))
}

// root compares whole objects.
func (d *decider) root(config, owned, live int32) {
	used := int32(0)
	var hints [2]int32
	for c := d.nodes[config].child; c != 0 && d.verdict != differs; c = d.nodes[c].next {
		name := d.nodes[c].key
		o := d.member(owned, hints[0], "f:", name)
		l := d.member(live, hints[1], "", name)
		hints = [2]int32{cmp.Or(o, hints[0]), cmp.Or(l, hints[1])}
		length := d.down(name)
		switch name {
		case "apiVersion":
			switch version := d.nodes[c].value; {
			case d.version != "" && d.version != version:
				d.rule(differs, "fields are owned in another version")
			case d.nodes[l].value != "" && d.nodes[l].value != version: // objects of typed clients have none
				d.rule(differs, "live is of another version")
			}
		case "kind":
			// Objects of typed clients have none. It is in the address too.
		case "metadata":
			d.metadata(c, o, l)
			if o != 0 {
				used++
			}
		default:
			if o != 0 {
				used++
			}
			if name == "stringData" && string(d.path[:d.prefix]) == "v1"+down+"Secret"+down {
				d.stringData(c, o, d.member(live, 0, "", "data"))
			} else {
				d.value(c, o, l, false)
			}
		}
		d.path = d.path[:length]
	}
	if used != d.nodes[owned].n {
		d.rule(differs, "a field is owned and not applied any more")
	}
}

// metadata compares the metadata, of which the server lets nobody own a part.
func (d *decider) metadata(config, owned, live int32) {
	used := int32(0)
	for c := d.nodes[config].child; c != 0 && d.verdict != differs; c = d.nodes[c].next {
		name := d.nodes[c].key
		o, l := d.member(owned, 0, "f:", name), d.member(live, 0, "", name)
		length := d.down(name)
		switch name {
		case "name", "namespace", "selfLink":
			// In the address. That they are not those of live is refused before.
		case "uid", "resourceVersion":
			if d.nodes[c].value != d.nodes[l].value {
				d.rule(differs, "a precondition does not hold")
			}
		case "creationTimestamp", "generation":
			if name == "creationTimestamp" && d.nodes[c].kind == null {
				break // encoders write it, and the server keeps its own
			}
			if d.nodes[c].kind != d.nodes[l].kind || d.nodes[c].value != d.nodes[l].value {
				d.rule(doubt, "set by the server")
			}
		case "labels", "annotations", "finalizers", "ownerReferences":
			// The schema of these is that of every kind: all are granular. Of an owner
			// reference the manager owns all.
			if o != 0 {
				used++
			}
			switch n := d.nodes[c]; {
			case n.kind != null && n.n > 0:
				d.value(c, o, l, false)
			case d.nodes[o].n > 0, (o != 0) == (n.kind == list):
				d.rule(differs, "empty, and owned in another shape")
			case l == 0:
				d.added(name)
			}
		default:
			if o != 0 {
				used++
			}
			d.value(c, o, l, false)
		}
		d.path = d.path[:length]
	}
	if used != d.nodes[owned].n {
		d.rule(differs, "a field is owned and not applied any more")
	}
}

// added is for what is merged into the object on each apply, because the server does
// not store it. It changes nothing, unless it is taken from somebody.
func (d *decider) added(name string) {
	if d.others(name) {
		d.rule(differs, "not stored, and owned by others too")
	}
}

// down makes name part of the path, and returns the length to cut it to afterwards.
func (d *decider) down(name string) int {
	length := len(d.path)
	d.path = append(append(d.path, down...), name...)
	return length
}

// value compares a field. An item of a list is owned as itself besides its fields.
func (d *decider) value(config, owned, live int32, item bool) {
	c, o, l := &d.nodes[config], &d.nodes[owned], &d.nodes[live]
	switch {
	case c.kind == null && o.kind == object && o.n == 0 && l.kind == null:
	case c.kind == null:
		d.rule(differs, "null")
	case c.kind == list && c.n == 0:
		d.emptyList(config, owned, live)
	case o.kind != object:
		d.rule(differs, "not owned")
	case c.kind == object && c.n == 0:
		d.emptyObject(config, owned, live)
	case c.kind < list:
		if o.n != 0 {
			d.rule(differs, "owned in another shape")
		} else {
			d.scalar(config, live)
		}
	case o.n == 0:
		d.need(atomic, config, owned)
		d.field = c.key
		d.whole(config, live)
		d.field = ""
	case l.kind != c.kind:
		d.rule(differs, "not there")
	case c.kind == object:
		d.members(config, owned, live, item)
	default:
		d.items(config, owned, live)
	}
}

// emptyObject: owned as itself, whatever the shape.
func (d *decider) emptyObject(config, owned, live int32) {
	switch l := d.nodes[live]; {
	case d.nodes[owned].n != 0:
		d.rule(differs, "a field is owned and not applied any more")
	case l.kind == object && l.n == 0:
	case l.kind == object:
		d.need(granular, config, owned)
	default:
		d.rule(differs, "empty, and not there")
	}
}

// emptyList: owned as itself if it is atomic, and not at all if it is not.
func (d *decider) emptyList(config, owned, live int32) {
	o, l := d.nodes[owned], d.nodes[live]
	switch {
	case o.n != 0:
		d.rule(differs, "an item is owned and not applied any more")
	case o.kind == object && l.kind == list && l.n == 0:
	case o.kind == absent && l.kind == list && d.known(config) == granular:
	default:
		d.rule(differs, "an empty list")
	}
}

// members compares objects that are owned field by field.
func (d *decider) members(config, owned, live int32, item bool) {
	used := int32(0)
	dot := d.member(owned, 0, "", ".") != 0
	if dot {
		used++
	}
	switch {
	case item && !dot:
		d.rule(differs, "the item is not owned")
	case item:
	case dot:
		d.need(dotted, config, owned)
	default:
		if known := d.known(config); known == dotted || known == atomic {
			d.rule(differs, "owned in another shape")
		}
	}
	var hints [2]int32
	for c := d.nodes[config].child; c != 0 && d.verdict != differs; c = d.nodes[c].next {
		name := d.nodes[c].key
		o := d.member(owned, hints[0], "f:", name)
		l := d.member(live, hints[1], "", name)
		hints = [2]int32{cmp.Or(o, hints[0]), cmp.Or(l, hints[1])}
		if o != 0 {
			used++
		}
		length := d.down(name)
		d.value(c, o, l, false)
		d.path = d.path[:length]
	}
	if used != d.nodes[owned].n {
		d.rule(differs, "a field is owned and not applied any more")
	}
}

// stringData compares what is written to the stringData of a Secret, and stored in
// its data.
func (d *decider) stringData(config, owned, data int32) {
	if d.nodes[config].kind != object || d.nodes[owned].kind != object || d.nodes[config].n != d.nodes[owned].n {
		d.rule(differs, "other fields are owned")
		return
	}
	d.added("stringData")
	for c := d.nodes[config].child; c != 0; c = d.nodes[c].next {
		o, l := d.member(owned, 0, "f:", d.nodes[c].key), d.nodes[d.member(data, 0, "", d.nodes[c].key)]
		if o == 0 || d.nodes[c].kind != text || l.kind != text || base64.StdEncoding.EncodeToString([]byte(d.nodes[c].value)) != l.value {
			d.rule(differs, "not in data")
		}
	}
}

// owner is an owned item of a list.
type owner struct {
	key, item int32  // an object for k:, a value for v:
	hash      uint64 // of the only key; 0 if there are more
	used      bool
}

// hashed is an item of a list with the hash of its only key, as owner has it.
type hashed struct {
	item int32
	hash uint64
}

// items compares lists whose items are owned one by one.
func (d *decider) items(config, owned, live int32) {
	if d.nodes[config].n != d.nodes[owned].n {
		d.rule(differs, "other items are owned")
		return
	}
	if int64(d.nodes[owned].n)*int64(d.nodes[live].n) > 1<<22 {
		d.rule(differs, "too many items to compare")
		return
	}
	owners := make([]owner, 0, d.nodes[owned].n)
	for o := d.nodes[owned].child; o != 0; o = d.nodes[o].next {
		key := d.nodes[o].key
		if len(key) < 3 || key[1] != ':' || key[0] != 'k' && key[0] != 'v' {
			d.rule(differs, "owned by "+key)
			return
		}
		parsed, err := d.parse(key[2:])
		if err != nil || key[0] == 'k' && d.nodes[parsed].kind != object {
			d.rule(differs, "owned by "+key)
			return
		}
		owners = append(owners, owner{key: parsed, item: o})
	}
	// Most lists have one key, such as the name of a container, and some are long.
	name, seed := d.onlyKey(owners), maphash.Seed{}
	if name != "" {
		seed = maphash.MakeSeed()
		for i := range owners {
			owners[i].hash = maphash.String(seed, d.nodes[d.nodes[owners[i].key].child].value)
		}
	}
	hash := func(item int32) uint64 {
		if name == "" {
			return 0
		}
		return maphash.String(seed, d.nodes[d.member(item, 0, "", name)].value)
	}
	stored := make([]hashed, 0, d.nodes[live].n)
	for l := d.nodes[live].child; l != 0; l = d.nodes[l].next {
		stored = append(stored, hashed{item: l, hash: hash(l)})
	}
	length := len(d.path)
	d.path = append(d.path, items...)
	defer func() { d.path = d.path[:length] }()
	behind := 0
	for c := d.nodes[config].child; c != 0; c = d.nodes[c].next {
		own := d.ownerOf(owners, c, hash(c))
		if own == nil {
			d.rule(differs, "an item is not owned")
			return
		}
		own.used = true
		found, at := int32(0), 0
		for i, l := range stored {
			if l.hash != own.hash || !d.keyed(own.key, l.item, own.item) {
				continue
			}
			if found != 0 {
				d.rule(differs, "an item is there twice")
				return
			}
			found, at = l.item, i+1
		}
		switch {
		case found == 0:
			d.rule(differs, "an item is not there")
			return
		case at <= behind:
			d.rule(differs, "the items are in another order")
			return
		}
		behind = at
		d.value(c, own.item, found, true)
	}
}

// onlyKey returns the name of the one text that is the key of every item, or "".
func (d *decider) onlyKey(owners []owner) (name string) {
	for _, own := range owners {
		key := d.nodes[own.key]
		part := d.nodes[key.child]
		if key.kind != object || key.n != 1 || part.kind != text || part.value == "" || name != "" && name != part.key {
			return ""
		}
		name = part.key
	}
	return name
}

// ownerOf finds what is owned of an item of the configuration.
func (d *decider) ownerOf(owners []owner, item int32, hash uint64) *owner {
	for i := range owners {
		if own := &owners[i]; !own.used && own.hash == hash && d.keyed(own.key, item, own.item) {
			return own
		}
	}
	return nil
}

// keyed reports whether an item has the key of an owned one. Where it lacks a part of
// the key, the schema has a default for it, which is that of the owned item if that was
// applied without the part too.
func (d *decider) keyed(key, item, owned int32) bool {
	if d.nodes[key].kind != object {
		return d.equal(key, item)
	}
	if d.nodes[item].kind != object {
		return false
	}
	for k := d.nodes[key].child; k != 0; k = d.nodes[k].next {
		part := d.member(item, 0, "", d.nodes[k].key)
		if part == 0 {
			if d.member(owned, 0, "f:", d.nodes[k].key) != 0 {
				return false
			}
			continue
		}
		if !d.equal(k, part) {
			return false
		}
	}
	return true
}

// whole compares what is owned as one.
func (d *decider) whole(config, live int32) {
	c, l := d.nodes[config], d.nodes[live]
	switch {
	case c.kind < list:
		d.scalar(config, live)
	case c.kind != l.kind:
		d.rule(differs, "not there")
	case c.kind == list:
		if c.n != l.n {
			d.rule(differs, "another number of items")
			return
		}
		length := len(d.path)
		d.path = append(d.path, items...)
		for a, b := c.child, l.child; a != 0; a, b = d.nodes[a].next, d.nodes[b].next {
			d.whole(a, b)
		}
		d.path = d.path[:length]
	default:
		found := int32(0)
		hint := int32(0)
		for a := c.child; a != 0 && d.verdict != differs; a = d.nodes[a].next {
			b := d.member(live, hint, "", d.nodes[a].key)
			hint = cmp.Or(b, hint)
			if b != 0 {
				found++
			}
			length := d.down(d.nodes[a].key)
			d.whole(a, b)
			d.path = d.path[:length]
		}
		if found != l.n {
			d.rule(doubt, "more is there than is applied")
		}
	}
}

// scalar compares text, numbers and booleans.
func (d *decider) scalar(config, live int32) {
	c, l := d.nodes[config], d.nodes[live]
	switch {
	case d.equal(config, live):
	case l.kind == absent && zero(c) && d.dropsZero():
		d.added(cmp.Or(d.field, c.key))
	case l.kind == text && c.kind == text && alike(c.value, l.value):
		d.rule(doubt, "stored in other words")
	case l.kind == absent && zero(c):
		d.rule(doubt, "empty, and not there")
	default:
		d.rule(differs, "another value")
	}
}

func (d *decider) equal(a, b int32) bool {
	x, y := &d.nodes[a], &d.nodes[b]
	if x.kind != y.kind || x.kind >= list || x.kind <= null {
		return false
	}
	if x.value == y.value {
		return true
	}
	if x.kind != number {
		return false
	}
	// As the server does: integers exactly, others as floating point numbers.
	i, errI := strconv.ParseInt(x.value, 10, 64)
	j, errJ := strconv.ParseInt(y.value, 10, 64)
	if errI == nil && errJ == nil {
		return i == j
	}
	f, errF := strconv.ParseFloat(x.value, 64)
	g, errG := strconv.ParseFloat(y.value, 64)
	return errF == nil && errG == nil && f == g
}

func zero(n node) bool {
	return n.kind == text && n.value == "" || n.kind == number && n.value == "0" || n.kind == boolean && n.value == "false"
}

// alike reports whether two texts can be one quantity or one time.
func alike(a, b string) bool {
	if len(a) > 64 || len(b) > 64 || a == "" || b == "" {
		return false
	}
	if strings.IndexByte("+-.0123456789", a[0]) < 0 || strings.IndexByte("+-.0123456789", b[0]) < 0 {
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

// dropsZero reports whether the field of the path, of which the object has none, is
// one that Go leaves out when it is zero: the value is there then.
func (d *decider) dropsZero() bool {
	marshaler := reflect.TypeFor[json.Marshaler]()
	t := d.live
	for rest := string(d.path[d.prefix:]); rest != ""; {
		for t != nil && t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t == nil {
			return false
		}
		if tail, ok := strings.CutPrefix(rest, items); ok {
			if t.Kind() != reflect.Slice {
				return false
			}
			t, rest = t.Elem(), tail
			continue
		}
		if t.Kind() != reflect.Struct || t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler) {
			return false
		}
		name := rest[1:]
		if i := strings.IndexAny(name, down+items); i >= 0 {
			name = name[:i]
		}
		rest = rest[1+len(name):]
		f, omits, ok := jsonField(t, name)
		if !ok {
			return false
		}
		t = f.Type
		if rest == "" {
			return omits && f.Type.Kind() != reflect.Pointer
		}
	}
	return false
}

func jsonField(t reflect.Type, name string) (field reflect.StructField, omits, ok bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == name {
			return f, strings.Contains(options, "omitempty"), true
		}
		if f.Anonymous && tag == "" {
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct {
				if f, omits, ok := jsonField(inner, name); ok {
					return f, omits, true
				}
			}
		}
	}
	return field, false, false
}
