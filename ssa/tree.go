package ssa

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// kind is what a JSON value is. The zero kind is no value at all.
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
	key        string // the name in the object that it is a member of
	value      string // of a text without its escapes; of numbers and booleans as written
	child      int32  // the first one; 0 means none
	next       int32  // the next sibling; 0 means none
	n          int32  // how many children
	start, end int32  // where it stands in the source
	kind       kind
}

// forest holds JSON values in one slice, so that reading them takes few
// allocations. The node at 0 is absent, and so is all that is not found.
type forest struct{ nodes []node }

func newForest(size int) *forest { return &forest{nodes: make([]node, 1, size+1)} }

// maxDepth is far beyond what the API server stores, and keeps the stack small.
const maxDepth = 500

var errJSON = errors.New("malformed JSON")

// parse reads a value and returns its node. It accepts all of JSON up to maxDepth, and
// is lenient about one thing that no encoder writes: control characters in strings.
// Members that are there twice stay so, and invalid UTF-8 stays as it is.
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

// member finds a member of an object. It looks behind hint first, which is the
// one found before, because encoders write most objects in one order.
func (f *forest) member(of, hint int32, prefix, name string) int32 {
	match := func(i int32) bool {
		key := f.nodes[i].key
		return len(key) == len(prefix)+len(name) && key[len(prefix):] == name && key[:len(prefix)] == prefix
	}
	if hint != 0 {
		for i := f.nodes[hint].next; i != 0; i = f.nodes[i].next {
			if match(i) {
				return i
			}
		}
	}
	for i := f.nodes[of].child; i != 0; i = f.nodes[i].next {
		if match(i) {
			return i
		}
		if i == hint {
			break
		}
	}
	return 0
}

// twice reports whether an object in the value has a member twice.
func (f *forest) twice(of int32) bool {
	var names map[string]bool // of a large object, where comparing each with each takes too long
	if f.nodes[of].kind == object && f.nodes[of].n > 32 {
		names = make(map[string]bool, f.nodes[of].n)
	}
	for i := f.nodes[of].child; i != 0; i = f.nodes[i].next {
		switch {
		case f.nodes[of].kind != object:
		case names != nil:
			if names[f.nodes[i].key] {
				return true
			}
			names[f.nodes[i].key] = true
		default:
			for j := f.nodes[i].next; j != 0; j = f.nodes[j].next {
				if f.nodes[i].key == f.nodes[j].key {
					return true
				}
			}
		}
		if f.nodes[i].child != 0 && f.twice(i) {
			return true
		}
	}
	return false
}

type parser struct {
	*forest
	src   string
	at    int
	texts strings.Builder // those with escapes, one behind the other

	backslash int // where the next one is, if it is not behind at
}

func (p *parser) space() {
	for p.at < len(p.src) {
		switch p.src[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

// next takes c, after any space.
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
	if p.at >= len(p.src) || depth > maxDepth {
		return 0, errJSON
	}
	at = int32(len(p.nodes))
	p.nodes = append(p.nodes, node{key: key, start: int32(p.at)})
	var kind kind
	value, start := "", p.at
	switch c := p.src[p.at]; {
	case c == '{':
		kind = object
		err = p.children(at, true, depth)
	case c == '"':
		kind = text
		value, err = p.text()
	case c == '[':
		kind = list
		err = p.children(at, false, depth)
	case p.word("null"):
		kind = null
	case p.word("true"), p.word("false"):
		kind, value = boolean, p.src[start:p.at]
	case p.number():
		kind, value = number, p.src[start:p.at]
	default:
		err = errJSON
	}
	n := &p.nodes[at]
	n.kind, n.end = kind, int32(p.at)
	if value != "" {
		n.value = value
	}
	return at, err
}

func (p *parser) word(w string) bool {
	if !strings.HasPrefix(p.src[p.at:], w) {
		return false
	}
	p.at += len(w)
	return true
}

// number takes a number that begins here.
func (p *parser) number() bool {
	one := func(of string) bool {
		ok := p.at < len(p.src) && strings.IndexByte(of, p.src[p.at]) >= 0
		if ok {
			p.at++
		}
		return ok
	}
	digits := func() bool {
		start := p.at
		for p.at < len(p.src) && p.src[p.at] >= '0' && p.src[p.at] <= '9' {
			p.at++
		}
		return p.at > start
	}
	one("-")
	if !one("0") && !digits() || one(".") && !digits() {
		return false
	}
	if one("eE") {
		one("+-")
		return digits()
	}
	return true
}

// children reads what is in the object or list that begins here.
func (p *parser) children(of int32, members bool, depth int) error {
	closing := byte(']')
	if members {
		closing = '}'
	}
	p.at++
	if p.next(closing) {
		return nil
	}
	count, last := int32(0), int32(0)
	for {
		var key string
		if members {
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
		count++
		if p.next(closing) {
			p.nodes[of].n = count
			return nil
		}
		if !p.next(',') {
			return errJSON
		}
	}
}

// text reads a string that begins here.
func (p *parser) text() (string, error) {
	p.at++
	start := p.at
	end := strings.IndexByte(p.src[start:], '"')
	if end < 0 {
		return "", errJSON
	}
	if p.backslash < start {
		p.backslash = len(p.src)
		if i := strings.IndexByte(p.src[start:], '\\'); i >= 0 {
			p.backslash = start + i
		}
	}
	if p.backslash >= start+end {
		p.at += end + 1
		return p.src[start : start+end], nil
	}
	if p.texts.Cap()-p.texts.Len() < 256 {
		p.texts = strings.Builder{}
		p.texts.Grow(min(len(p.src)-p.at, 2<<10)) // nothing gets longer without its escapes
	}
	from := p.texts.Len()
	for part := p.at; p.at < len(p.src); {
		c := p.src[p.at]
		if c != '"' && c != '\\' {
			p.at++
			continue
		}
		p.texts.WriteString(p.src[part:p.at])
		if c == '"' {
			p.at++
			return p.texts.String()[from:], nil
		}
		if !p.escape() {
			break
		}
		part = p.at
	}
	return "", errJSON
}

// escape writes what the escape that begins here stands for.
func (p *parser) escape() bool {
	if p.at+1 >= len(p.src) {
		return false
	}
	c := p.src[p.at+1]
	if c == 'u' {
		r, ok := p.unicode()
		if !ok {
			return false
		}
		if high := r; high >= 0xd800 && high < 0xdc00 {
			r = utf8.RuneError
			before := p.at
			if low, ok := p.unicode(); ok && low >= 0xdc00 && low < 0xe000 {
				r = 0x10000 + (high-0xd800)<<10 + (low - 0xdc00)
			} else {
				p.at = before
			}
		}
		p.texts.WriteRune(r)
		return true
	}
	const escapes, means = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
	i := strings.IndexByte(escapes, c)
	if i < 0 {
		return false
	}
	p.at += 2
	p.texts.WriteByte(means[i])
	return true
}

// unicode takes an escape of four hexadecimal digits.
func (p *parser) unicode() (rune, bool) {
	if p.at+6 > len(p.src) || p.src[p.at] != '\\' || p.src[p.at+1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range []byte(p.src[p.at+2 : p.at+6]) {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 + rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 + rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	p.at += 6
	return r, true
}
