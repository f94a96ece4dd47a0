package consistency

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/bits"
)

// peek steps over white space and returns the next byte, 0 at the end.
func (r *names) peek() byte {
	for ; r.at < len(r.data); r.at++ {
		switch c := r.data[r.at]; c {
		case ' ', '\t', '\n', '\r':
		case 0:
			return 1 // not the end, nor anything else
		default:
			return c
		}
	}
	return 0
}

// expect steps over one byte.
func (r *names) expect(want byte) error {
	switch r.peek() {
	case want:
		r.at++
		return nil
	case 0:
		return errCut
	}
	return errSyntax
}

func (r *names) objectJSON(field func(key []byte) error) error {
	if err := r.expect('{'); err != nil {
		return err
	}
	if r.peek() == '}' {
		r.at++
		return nil
	}
	for {
		key, err := r.textJSON()
		if err != nil {
			return err
		}
		if err := r.expect(':'); err != nil {
			return err
		}
		if err := field(key); err != nil {
			return err
		}
		if r.peek() == '}' {
			r.at++
			return nil
		}
		if err := r.expect(','); err != nil {
			return err
		}
	}
}

func (r *names) textJSON() ([]byte, error) {
	if err := r.expect('"'); err != nil {
		return nil, err
	}
	from := r.at
	if !r.skipString() {
		return nil, errCut
	}
	if raw := r.data[from : r.at-1]; bytes.IndexByte(raw, '\\') < 0 {
		return raw, nil
	}
	var text string
	err := json.Unmarshal(r.data[from-1:r.at], &text)
	return []byte(text), err
}

func emptyJSON(raw []byte) bool {
	return raw[0] == 'n' || raw[0] == '0' || raw[0] == '[' && len(bytes.TrimSpace(raw[1:len(raw)-1])) == 0
}

func (r *names) skipJSON() error {
	first := r.peek()
	from := r.at
	r.at++
	switch first {
	case 0:
		return errCut
	case '"':
		if !r.skipString() {
			return errCut
		}
	case '{', '[':
		if !r.skipNested() {
			return errCut
		}
	default:
		for r.at = from; r.at < len(r.data) && bytes.IndexByte([]byte(",}] \t\n\r"), r.data[r.at]) < 0; r.at++ {
		}
		if r.at == from {
			return errSyntax
		}
	}
	return nil
}

// skipString steps over what follows the quote that begins a string, and reports
// whether it ends.
func (r *names) skipString() bool {
	for ; r.at < len(r.data); r.at++ {
		switch r.data[r.at] {
		case '"':
			r.at++
			return true
		case '\\':
			r.at++
		}
	}
	return false
}

const (
	ones  = 0x0101010101010101
	highs = 0x80 * ones
)

// equal sets the high bit of every byte of the word that is c. It is for ASCII.
func equal(word uint64, c byte) uint64 {
	return ^((word ^ ones*uint64(c)) + 0x7f*ones) & highs
}

// skipNested steps over what follows the bracket that begins an object or a list, and
// reports whether it ends. It passes most of what is read of an answer, the managed
// fields: so it takes eight bytes at a time, of which it counts the brackets outside of
// strings. It takes single ones where the end may be near, and where text is not ASCII
// or has two backslashes side by side.
func (r *names) skipNested() bool {
	const fold = 0x20 // makes [ a { and ] a }, and nothing else
	data, at := r.data, r.at
	depth := 1
	quoted := uint64(0)  // high bits: what is next is in a string
	escaped := uint64(0) // the high bit of the lowest byte: a backslash was before it
	for at < len(data) {
		for ; len(data)-at >= 8; at += 8 {
			word := binary.LittleEndian.Uint64(data[at:])
			slashes := equal(word, '\\')
			escapes := slashes<<8 | escaped
			// A byte is in a string if the number of quotes up to it is odd.
			quotes := equal(word, '"') &^ escapes
			inside := quotes>>7*ones<<7&highs ^ quoted
			folded := word | fold*ones
			ends := bits.OnesCount64(equal(folded, '}') &^ inside)
			if word&highs|slashes&escapes != 0 || ends >= depth {
				break
			}
			depth += bits.OnesCount64(equal(folded, '{')&^inside) - ends
			quoted = -(inside >> 63) & highs
			escaped = slashes >> 63 << 7
		}
		at += int(escaped >> 7)
		escaped = 0
		for stop := min(at+8, len(data)); at < stop; at++ {
			switch c := data[at]; {
			case c == '"':
				quoted ^= highs
			case quoted != 0:
				if c == '\\' {
					at++
				}
			case c|fold == '{':
				depth++
			case c|fold == '}':
				if depth--; depth == 0 {
					r.at = at + 1
					return true
				}
			}
		}
	}
	return false
}
