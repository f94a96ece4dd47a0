package encoded

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"

	apijson "k8s.io/apimachinery/pkg/util/json"
)

// errShort is returned for JSON that ends within a value.
var errShort = errors.New("the value does not end")

// space returns the index of the first byte from i on that is no white space.
func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skip returns the index behind the value that begins at b[i]. It does not check what is within
// the value more than that needs.
func skip(b []byte, i int) (int, error) {
	if i >= len(b) {
		return 0, errShort
	}
	if b[i] == '"' || b[i] == '{' || b[i] == '[' {
		s := Scanner{next: i}
		if !s.End(b) {
			return 0, errShort
		}
		return s.next, nil
	}
	begin := i
	for i < len(b) && !delimits(b[i]) {
		i++
	}
	if i == begin {
		return 0, errMalformed
	}
	return i, nil
}

// delimits reports whether a byte ends a number or a word.
func delimits(c byte) bool {
	switch c {
	case ',', ':', '"', '{', '}', '[', ']', ' ', '\n', '\t', '\r':
		return true
	}
	return false
}

// Scanner finds the end of an object, array or string in a buffer that grows.
type Scanner struct {
	next   int  // the first byte that was not scanned
	depth  int  // of objects and arrays
	quoted bool // the byte is in a string
	text   int  // the begin of that string, behind its quote
}

// Next returns the index behind the value.
func (s *Scanner) Next() int { return s.next }

// End goes on and reports whether the value has ended. b must begin as it did before.
func (s *Scanner) End(b []byte) bool {
	for {
		if s.quoted {
			n := bytes.IndexByte(b[s.next:], '"')
			if n < 0 {
				s.next = len(b)
				return false
			}
			end := s.next + n
			slashes := 0
			for end-1-slashes >= s.text && b[end-1-slashes] == '\\' {
				slashes++
			}
			s.next = end + 1
			if s.quoted = slashes%2 != 0; !s.quoted && s.depth == 0 {
				return true
			}
			continue
		}
		if s.next >= len(b) {
			return false
		}
		c := b[s.next]
		s.next++
		switch c {
		case '"':
			s.quoted, s.text = true, s.next
		case '{', '[':
			s.depth++
		case '}', ']':
			if s.depth--; s.depth <= 0 {
				return true
			}
		}
	}
}

// Members calls f with each member of the JSON object at the begin of b. Both slices are parts of b,
// unless the name is escaped in it.
func Members(b []byte, f func(name, value []byte) error) error {
	if len(b) == 0 || b[0] != '{' {
		return errMalformed
	}
	i := space(b, 1)
	if i < len(b) && b[i] == '}' {
		return nil
	}
	for {
		if i >= len(b) {
			return errShort
		}
		if b[i] != '"' {
			return errMalformed
		}
		end, err := skip(b, i)
		if err != nil {
			return err
		}
		key, err := literal(b[i:end])
		if err != nil {
			return err
		}
		if i = space(b, end); i >= len(b) || b[i] != ':' {
			return errMalformed
		}
		i = space(b, i+1)
		if end, err = skip(b, i); err != nil {
			return err
		}
		if err := f(key, b[i:end]); err != nil {
			return err
		}
		more, err := goOn(b, &end, '}')
		if err != nil || !more {
			return err
		}
		i = end
	}
}

// goOn reports whether another member or element follows the one that ends at b[*i], and moves *i to
// it. end is the last byte of the object or array.
func goOn(b []byte, i *int, end byte) (more bool, err error) {
	at := space(b, *i)
	switch {
	case at >= len(b):
		return false, errShort
	case b[at] == end:
		return false, nil
	case b[at] != ',':
		return false, errMalformed
	}
	*i = space(b, at+1)
	return true, nil
}

// literal returns what a string in quotes stands for. Without an escape it is a part of quoted.
func literal(quoted []byte) ([]byte, error) {
	for _, c := range quoted {
		if c == '\\' || c >= 0x80 || c < ' ' {
			var s string
			if err := json.Unmarshal(quoted, &s); err != nil {
				return nil, errMalformed
			}
			return []byte(s), nil
		}
	}
	return quoted[1 : len(quoted)-1], nil
}

// keepJSON appends what is kept of a value.
func keepJSON(out, value []byte, n *node) ([]byte, error) {
	switch {
	case len(value) > 0 && value[0] == '{':
		out = append(out, '{')
		begin := len(out)
		err := Members(value, func(name, v []byte) error {
			child := n.member(string(name))
			if child != nil && child.all || slices.Contains(n.keys, string(name)) {
				return nil
			}
			if len(out) > begin {
				out = append(out, ',')
			}
			quoted, err := json.Marshal(string(name))
			if err != nil {
				return err
			}
			out = append(append(out, quoted...), ':')
			if child == nil {
				out = append(out, v...)
				return nil
			}
			out, err = keepJSON(out, v, child)
			return err
		})
		return append(out, '}'), err
	case len(value) > 0 && value[0] == '[':
		return keepArray(out, value, n)
	}
	return append(out, value...), nil
}

func keepArray(out, value []byte, n *node) ([]byte, error) {
	out = append(out, '[')
	begin := len(out)
	err := elements(value, func(v []byte) (err error) {
		if len(out) > begin {
			out = append(out, ',')
		}
		out, err = keepJSON(out, v, n)
		return err
	})
	return append(out, ']'), err
}

// elements calls f with each element of a JSON array.
func elements(array []byte, f func(value []byte) error) error {
	i := space(array, 1)
	if i < len(array) && array[i] == ']' {
		return nil
	}
	for {
		end, err := skip(array, i)
		if err != nil {
			return err
		}
		if err := f(array[i:end]); err != nil {
			return err
		}
		more, err := goOn(array, &end, ']')
		if err != nil || !more {
			return err
		}
		i = end
	}
}

// locateJSON finds the strings of the header, and which parts there are. Of a member that occurs twice, the last one counts,
// as for apimachinery's decoder; null does not.
func (o *Object) locateJSON() error {
	return o.eachMember(func(member, value []byte) error {
		switch string(member) {
		case "deletionTimestamp":
			o.present |= hasDeletion
		case "labels":
			o.present |= hasLabels
		case "annotations":
			o.present |= hasAnnotations
		case "ownerReferences":
			o.present |= hasOwners
		case "finalizers":
			o.present |= hasFinalizers
		}
		i, ok := header(string(member))
		switch {
		case !ok || string(value) == "null":
			return nil
		case value[0] != '"':
			return errMalformed
		}
		text, err := literal(value)
		if err != nil {
			return err
		}
		o.set(i, text)
		return nil
	})
}

// Kind returns the kind of an object in JSON, which those of a built-in kind lack in a list.
func (o *Object) Kind() (kind string) {
	if o.format == JSON {
		_ = Members(o.Bytes(), func(member, value []byte) error {
			if string(member) == "kind" {
				return apijson.Unmarshal(value, &kind)
			}
			return nil
		})
	}
	return kind
}

// memberOf decodes a member of an object's metadata.
func (o *Object) memberOf(name string, into any) error {
	return o.eachMember(func(member, value []byte) error {
		if string(member) != name {
			return nil
		}
		return apijson.Unmarshal(value, into)
	})
}

// eachMember calls f with each member of the metadata of an object in JSON.
func (o *Object) eachMember(f func(member, value []byte) error) error {
	return Members(o.Bytes(), func(member, value []byte) error {
		if string(member) != "metadata" || string(value) == "null" {
			return nil
		}
		return Members(value, f)
	})
}
