package apply

// index finds the items of a list by a value that equal items share, such as the name of
// a container. Items that share it without being equal are a chain.
type index struct {
	items []indexed
	last  map[string]int32 // by identity; nil if the items are so few that one looks at all
}

// few is a number of items among which a search is cheaper than a map.
const few = 8

type indexed struct {
	identity string
	key      int32 // of an owned item: an object for k:, a value for v:
	item     int32
	before   int32 // an earlier item with this identity, or -1; unused without a map
	used     bool
}

// newIndex returns an index with room for size items. An object has many short lists, so their
// indexes share memory.
func (d *decider) newIndex(size int32) index {
	n := int(size)
	if len(d.room) < n {
		d.room = make([]indexed, max(n, 64))
	}
	x := index{items: d.room[:0:n]}
	d.room = d.room[n:]
	if size > few {
		x.last = make(map[string]int32, size)
	}
	return x
}

func (x *index) add(identity string, key, item int32) {
	i := indexed{identity: identity, key: key, item: item}
	if x.last != nil {
		i.before = x.find(identity)
		x.last[identity] = int32(len(x.items))
	}
	x.items = append(x.items, i)
}

// find returns the position of the last item with the identity, or -1.
func (x *index) find(identity string) int32 {
	if x.last == nil {
		return x.search(identity, int32(len(x.items)))
	}
	if i, ok := x.last[identity]; ok {
		return i
	}
	return -1
}

// before returns the position of the last item before i with the same identity, or -1.
func (x *index) before(i int32) int32 {
	if x.last == nil {
		return x.search(x.items[i].identity, i)
	}
	return x.items[i].before
}

func (x *index) search(identity string, i int32) int32 {
	for i--; i >= 0 && x.items[i].identity != identity; i-- {
	}
	return i
}

// items compares lists whose items are owned one by one.
func (d *decider) items(config, owned, live int32) {
	if d.nodes[config].n != d.nodes[owned].n {
		d.differ("other items are owned")
		return
	}
	var name string // of the member that identifies items; "" if their value does
	owners, stored := d.newIndex(d.nodes[owned].n), d.newIndex(d.nodes[live].n)
	for o := d.nodes[owned].child; o != 0; o = d.nodes[o].next {
		field := d.nodes[o].key
		if len(field) < 3 || field[:2] != "k:" && field[:2] != "v:" {
			d.differ("owned neither by key nor by value")
			return
		}
		key, err := d.parse(field[2:])
		if err != nil || field[0] == 'k' && d.nodes[key].kind != object {
			d.differ("owned by a key that cannot be read")
			return
		}
		if len(owners.items) == 0 {
			name = d.identifying(key, config)
		}
		owners.add(d.identity(key, name), key, o)
	}
	for l := d.nodes[live].child; l != 0 && d.spend(1); l = d.nodes[l].next {
		stored.add(d.identity(l, name), 0, l)
	}
	d.in(step{item: true}, func() {
		behind := int32(-1)
		for c := d.nodes[config].child; c != 0 && d.why == ""; c = d.nodes[c].next {
			at := d.item(c, d.identity(c, name), &owners, &stored)
			if at <= behind {
				d.differ("the items are in another order")
			}
			behind = at
		}
	})
}

// item compares an item of the configuration, and returns its position in live.
func (d *decider) item(config int32, identity string, owners, stored *index) int32 {
	var own *indexed
	for i := owners.find(identity); i >= 0 && d.spend(1); i = owners.before(i) {
		if o := &owners.items[i]; !o.used && d.keyed(o.key, config, o.item) {
			own = o
			break
		}
	}
	if own == nil {
		d.differ("an item is not owned")
		return 0
	}
	own.used = true
	at, found := int32(-1), int32(0)
	for i := stored.find(identity); i >= 0 && d.spend(1); i = stored.before(i) {
		if item := stored.items[i].item; d.keyed(own.key, item, own.item) {
			if found != 0 {
				d.differ("an item is there twice")
			}
			at, found = i, item
		}
	}
	if found == 0 {
		d.differ("an item is not there")
		return 0
	}
	d.value(config, own.item, found, true)
	return at
}

// identifying returns the first part of a key that all items of the configuration have.
// They can omit parts that have a default.
func (d *decider) identifying(key, config int32) string {
	for k := d.nodes[key].child; k != 0; k = d.nodes[k].next {
		all := true
		for c := d.nodes[config].child; c != 0 && all; c = d.nodes[c].next {
			all = d.member(c, 0, "", d.nodes[k].key) != 0
		}
		if all {
			return d.nodes[k].key
		}
	}
	return ""
}

// identity returns the key of an item in an index.
func (d *decider) identity(item int32, name string) string {
	if name != "" {
		item = d.member(item, 0, "", name)
	}
	if d.nodes[item].kind == number {
		return canonical(d.nodes[item].value)
	}
	return d.nodes[item].value
}

// keyed reports whether an item has the key of an owned item. If the item omits a part
// of the key, the schema has a default for the part. The keys then agree if the manager
// also omitted the part when it applied the owned item.
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
