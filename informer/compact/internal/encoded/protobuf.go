package encoded

import (
	"encoding/binary"
	"slices"
)

// Numbers of fields in protobuf: of an object, and of its metadata.
const (
	metadataNumber = 1

	nameNumber      = 1
	namespaceNumber = 3
	uidNumber       = 5
	versionNumber   = 6
)

// field is a field of a message in protobuf.
type field struct {
	number int32
	bytes  bool   // the value is a string, bytes or a message
	whole  []byte // with its tag
	value  []byte // if bytes is true
}

// Fields calls f with each field of a message in protobuf that is a string, bytes or a message.
func Fields(message []byte, f func(number int32, value []byte) error) error {
	for len(message) > 0 {
		field, rest, err := next(message)
		if err != nil {
			return err
		}
		message = rest
		if field.bytes {
			if err := f(field.number, field.value); err != nil {
				return err
			}
		}
	}
	return nil
}

// next returns the first field of a message, and the rest.
//
// It accepts what the generated code of k8s.io/api accepts, which is more than what the packages of
// google.golang.org/protobuf accept: a varint may lose bits, and groups, which the API does not have, may
// end with another number than they begin with.
func next(message []byte) (f field, rest []byte, err error) {
	tag, n := uvarint(message)
	if n == 0 || int32(tag>>3) <= 0 {
		return f, nil, errMalformed
	}
	f.number = int32(tag >> 3)
	switch wire := tag & 7; wire {
	case 2:
		length, m := uvarint(message[n:])
		if m == 0 || length > uint64(len(message)-n-m) {
			return f, nil, errMalformed
		}
		f.bytes, f.value = true, message[n+m:][:length]
		n += m + int(length)
	case 3:
		m := group(message[n:])
		if m == 0 {
			return f, nil, errMalformed
		}
		n += m
	default:
		m := scalar(message[n:], wire)
		if m == 0 {
			return f, nil, errMalformed
		}
		n += m
	}
	f.whole = message[:n]
	return f, message[n:], nil
}

// uvarint returns the varint at the begin of b and its length, or 0 if there is none.
func uvarint(b []byte) (v uint64, n int) {
	for n < len(b) && n < 10 {
		c := b[n]
		v |= uint64(c&0x7f) << (7 * n)
		if n++; c < 0x80 {
			return v, n
		}
	}
	return 0, 0
}

// scalar returns the length of a number at the begin of b, or 0 if there is none.
func scalar(b []byte, wire uint64) int {
	n := 0
	switch wire {
	case 0:
		_, n = uvarint(b)
	case 1:
		n = 8
	case 5:
		n = 4
	}
	if n > len(b) {
		return 0
	}
	return n
}

// group returns the length of the rest of a group behind its begin, or 0 if it does not end.
func group(b []byte) int {
	i := 0
	for depth := 1; depth > 0; {
		tag, n := uvarint(b[i:])
		if n == 0 {
			return 0
		}
		i += n
		switch wire := tag & 7; wire {
		case 2:
			length, m := uvarint(b[i:])
			if m == 0 || length > uint64(len(b)-i-m) {
				return 0
			}
			i += m + int(length)
		case 3:
			depth++
		case 4:
			depth--
		default:
			m := scalar(b[i:], wire)
			if m == 0 {
				return 0
			}
			i += m
		}
	}
	return i
}

// keepProtobuf appends what is kept of a message.
func keepProtobuf(out, message []byte, n *node) ([]byte, error) {
	for len(message) > 0 {
		f, rest, err := next(message)
		if err != nil {
			return nil, err
		}
		message = rest
		child := n.child(f.number)
		switch {
		case child != nil && child.all:
		case child == nil || !f.bytes:
			out = append(out, f.whole...)
		case child.keys != nil:
			key, err := keyOf(f.value)
			if err != nil {
				return nil, err
			}
			if !slices.Contains(child.keys, key) {
				out = append(out, f.whole...)
			}
		default:
			// The length stands before the value, and is known after it.
			begin := len(out)
			if out, err = keepProtobuf(out, f.value, child); err != nil {
				return nil, err
			}
			var head [2 * binary.MaxVarintLen64]byte
			tag := binary.AppendUvarint(binary.AppendUvarint(head[:0], uint64(f.number)<<3|2), uint64(len(out)-begin))
			out = slices.Insert(out, begin, tag...)
		}
	}
	return out, nil
}

// keyOf returns the key of an entry of a map.
func keyOf(entry []byte) (key string, err error) {
	err = Fields(entry, func(number int32, value []byte) error {
		if number == 1 {
			key = string(value)
		}
		return nil
	})
	return key, err
}

// locateProtobuf finds the strings of the header, and which parts there are. Of a field that occurs twice, the last one
// counts, as in protobuf.
func (o *Object) locateProtobuf() error {
	return o.eachMetadata(func(metadata []byte) error {
		return Fields(metadata, func(number int32, value []byte) error {
			switch number {
			case deletionNumber:
				o.present |= hasDeletion
			case labelsNumber:
				o.present |= hasLabels
			case annotationsNumber:
				o.present |= hasAnnotations
			case ownersNumber:
				o.present |= hasOwners
			case finalizersNumber:
				o.present |= hasFinalizers
			case nameNumber:
				o.set(name, value)
			case namespaceNumber:
				o.set(namespace, value)
			case uidNumber:
				o.set(uid, value)
			case versionNumber:
				o.set(version, value)
			}
			return nil
		})
	})
}

// eachMetadata calls f with each metadata of an object in protobuf. There is one, unless somebody
// else than the API server encoded it.
func (o *Object) eachMetadata(f func([]byte) error) error {
	return Fields(o.Bytes(), func(number int32, value []byte) error {
		if number == metadataNumber {
			return f(value)
		}
		return nil
	})
}
