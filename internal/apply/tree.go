package apply

import (
	"encoding/json"
	"errors"
	"iter"
	"strings"
	"sync"
)

// kind is the kind of a JSON value. The zero kind means that there is no value.
type kind byte

const (
	absent kind = iota
	null
	boolean
	number
	text
	list
	object
)

// node is a JSON value. Its children are a chain of siblings.
type node struct {
	key   string // the name, if the node is a member of an object
	value string // of a text without its escapes; of numbers and booleans as written
	child int32  // the first child, or 0
	next  int32  // the next sibling, or 0
	n     int32  // the number of children
	start int32  // the position in the source
	kind  kind
}

// forest holds JSON values in one slice, so that parsing takes few allocations. The
// node at 0 is absent, and failed lookups return it.
//
// A forest has a budget of nodes and of steps. Objects come from the API server, where
// other users write them, so no object may cost more than the budget.
type forest struct {
	nodes []node
	steps int             // spent steps
	done  <-chan struct{} // of the decision's context; nil never ends
	next  int             // the number of nodes and steps at which spend looks at done
}

const (
	maxDepth = 500     // far beyond the depth of any schema; keeps the stack small
	maxNodes = 1 << 15 // a Deployment with two containers takes about 1,000
	maxSteps = 1 << 18 // comparisons of names or items
	interval = 1 << 10 // nodes and steps between two looks at the context
)

var (
	errJSON  = errors.New("malformed JSON")
	errLarge = errors.New("too large to compare")
)

// forests holds released forests. A decision needs one, of about 100 KiB.
var forests sync.Pool

func newForest(size int) *forest {
	if f, ok := forests.Get().(*forest); ok {
		return f
	}
	return &forest{nodes: make([]node, 1, min(size, maxNodes)+1)}
}

// release makes the forest available to other decisions, unless it is large. The caller
// must not use it again.
func (f *forest) release() {
	if cap(f.nodes) > 1<<13 {
		return
	}
	clear(f.nodes) // drops the references to the sources
	*f = forest{nodes: f.nodes[:1]}
	forests.Put(f)
}

// spend takes n steps from the budget. It reports false if the budget is exhausted.
func (f *forest) spend(n int) bool {
	f.steps += n
	if cost := len(f.nodes) + f.steps; cost >= f.next {
		f.next = cost + interval
		return !f.exhausted()
	}
	return f.steps <= maxSteps
}

// exhausted reports whether the budget is exhausted. The end of the context exhausts it.
func (f *forest) exhausted() bool {
	select {
	case <-f.done:
		f.steps = maxSteps + 1
	default:
	}
	return f.steps > maxSteps
}

// same compares two texts, at a cost that depends on their length.
func (f *forest) same(a, b string) bool {
	return len(a) == len(b) && f.spend(len(a)/64) && a == b
}

// parse reads a JSON value and returns its node. Valid JSON is read exactly, including
// duplicate members. Most malformed JSON is an error, and no input makes parse panic.
func (f *forest) parse(src string) (int32, error) {
	p := parser{forest: f, src: src}
	root, err := p.value("", 0)
	if err != nil {
		return 0, err
	}
	p.space()
	if p.at != len(src) {
		return 0, errJSON
	}
	return root, nil
}

// members returns the names and the values of an object, which is valid JSON of any size.
func members(src string) iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		p := parser{src: src}
		for ok := p.next('{') && !p.next('}'); ok; ok = p.next(',') {
			p.space()
			name, err := p.text()
			if err != nil || !p.next(':') {
				return
			}
			p.space()
			start := p.at
			p.skip()
			if !yield(name, src[start:p.at]) {
				return
			}
		}
	}
}

// member finds the member of an object whose key is prefix+name. It begins behind hint,
// the member that the previous lookup found, because encoders write the members of two
// objects in the same order.
func (f *forest) member(of, hint int32, prefix, name string) int32 {
	match := func(i int32) bool {
		key := f.nodes[i].key
		return len(key) == len(prefix)+len(name) && key[:len(prefix)] == prefix && f.same(key[len(prefix):], name)
	}
	if hint != 0 {
		for i := f.nodes[hint].next; i != 0 && f.spend(1); i = f.nodes[i].next {
			if match(i) {
				return i
			}
		}
	}
	for i := f.nodes[of].child; i != 0 && f.spend(1); i = f.nodes[i].next {
		if match(i) {
			return i
		}
		if i == hint {
			break
		}
	}
	return 0
}

// duplicates reports whether an object in the value has two members of one name.
func (f *forest) duplicates(of int32) bool {
	var names map[string]bool // in a large object
	if f.nodes[of].kind == object && f.nodes[of].n > 16 {
		names = make(map[string]bool, f.nodes[of].n)
	}
	for i := f.nodes[of].child; i != 0 && f.spend(1); i = f.nodes[i].next {
		key := f.nodes[i].key
		switch {
		case f.nodes[of].kind != object:
		case names != nil:
			if names[key] {
				return true
			}
			names[key] = true
		default:
			for j := f.nodes[i].next; j != 0; j = f.nodes[j].next {
				if f.nodes[j].key == key {
					return true
				}
			}
		}
		if f.nodes[i].child != 0 && f.duplicates(i) {
			return true
		}
	}
	return false
}

type parser struct {
	*forest
	src   string
	at    int
	texts strings.Builder // strings without their escapes, one behind the other
}

func (p *parser) space() {
	for p.at < len(p.src) && (p.src[p.at] == ' ' || p.src[p.at] == '\n' || p.src[p.at] == '\t' || p.src[p.at] == '\r') {
		p.at++
	}
}

// next consumes c and the space before it.
func (p *parser) next(c byte) bool {
	p.space()
	if p.at < len(p.src) && p.src[p.at] == c {
		p.at++
		return true
	}
	return false
}

func (p *parser) value(key string, depth int) (at int32, err error) {
	p.space()
	switch {
	case p.at >= len(p.src):
		return 0, errJSON
	case depth > maxDepth || len(p.nodes) > maxNodes || !p.spend(0):
		return 0, errLarge
	}
	at = int32(len(p.nodes))
	p.nodes = append(p.nodes, node{key: key, start: int32(p.at)})
	var kind kind
	value := ""
	switch p.src[p.at] {
	case '{':
		kind = object
		err = p.children(at, '}', depth)
	case '[':
		kind = list
		err = p.children(at, ']', depth)
	case '"':
		kind = text
		value, err = p.text()
	default:
		kind, value, err = p.word()
	}
	n := &p.nodes[at]
	n.kind, n.value = kind, value
	return at, err
}

// skip moves behind a value of valid JSON.
func (p *parser) skip() {
	for depth := 0; p.at < len(p.src); p.at++ {
		switch p.src[p.at] {
		case '"':
			for p.at++; p.at < len(p.src) && p.src[p.at] != '"'; p.at++ {
				if p.src[p.at] == '\\' {
					p.at++
				}
			}
		case '{', '[':
			depth++
		case '}', ']':
			depth--
			if depth < 0 {
				return // of the object around a word
			}
		case ',':
			if depth == 0 {
				return
			}
		}
	}
}

// word reads a number, a boolean or null.
func (p *parser) word() (kind, string, error) {
	start := p.at
	for p.at < len(p.src) && strings.IndexByte(" \n\t\r,:]}", p.src[p.at]) < 0 {
		p.at++
	}
	word := p.src[start:p.at]
	switch {
	case word == "null":
		return null, "", nil
	case word == "true" || word == "false":
		return boolean, word, nil
	case word != "" && (word[0] == '-' || word[0] >= '0' && word[0] <= '9'):
		return number, word, nil
	}
	return absent, "", errJSON
}

// children reads the members of an object or the items of a list.
func (p *parser) children(of int32, closing byte, depth int) error {
	p.at++
	if p.next(closing) {
		return nil
	}
	last := int32(0)
	for {
		key := ""
		if closing == '}' {
			p.space()
			if p.at >= len(p.src) || p.src[p.at] != '"' {
				return errJSON
			}
			var err error
			if key, err = p.text(); err != nil {
				return err
			}
			if !p.next(':') {
				return errJSON
			}
		}
		child, err := p.value(key, depth+1)
		if err != nil {
			return err
		}
		if last == 0 {
			p.nodes[of].child = child
		} else {
			p.nodes[last].next = child
		}
		last = child
		p.nodes[of].n++
		if p.next(closing) {
			return nil
		}
		if !p.next(',') {
			return errJSON
		}
	}
}

// text reads a string.
func (p *parser) text() (string, error) {
	// Most strings have no escape, and IndexByte compares many bytes at once.
	rest := p.src[p.at+1:]
	if n := strings.IndexByte(rest, '"'); n >= 0 && strings.IndexByte(rest[:n], '\\') < 0 {
		p.at += n + 2
		return rest[:n], nil
	}
	start := p.at
	for p.at++; p.at < len(p.src); p.at++ {
		switch p.src[p.at] {
		case '\\':
			p.at++
		case '"':
			p.at++
			return p.unescape(p.src[start:p.at])
		}
	}
	return "", errJSON
}

// unescape reads a string with escapes. Most have few and short ones, such as the keys
// of list items in fieldsV1.
func (p *parser) unescape(quoted string) (string, error) {
	if p.texts.Cap()-p.texts.Len() < len(quoted) {
		p.texts = strings.Builder{} // strings of the previous one stay valid
		p.texts.Grow(max(len(quoted), 1<<10))
	}
	from := p.texts.Len()
	for i := 1; i < len(quoted)-1; i++ {
		c := quoted[i]
		if c == '\\' {
			i++
			escape := strings.IndexByte(`"\/bfnrt`, quoted[i])
			if escape < 0 {
				var s string
				err := json.Unmarshal([]byte(quoted), &s)
				return s, err
			}
			c = "\"\\/\b\f\n\r\t"[escape]
		}
		p.texts.WriteByte(c)
	}
	return p.texts.String()[from:], nil
}
