package consistency

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math/bits"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// answer is what is read of the answer to a write.
type answer struct {
	rv         string    // metadata.resourceVersion
	uid        types.UID // metadata.uid
	deleting   bool      // metadata.deletionTimestamp is set
	finalizers bool      // metadata.finalizers is not empty
	grace      bool      // metadata.deletionGracePeriodSeconds is not zero
	deleted    types.UID // details.uid of a Status
}

// The readers below go through an answer once and step over what they do not want:
// decoding whole objects would cost more than the rest of the transport. They notice
// every answer that is cut off. Other mistakes may pass where they step over them;
// the caller's own decoder finds those.
var (
	errContentType = errors.New("not JSON, protobuf or CBOR")
	errCut         = errors.New("the answer is cut off")
	errSyntax      = errors.New("the answer cannot be read")
)

// errEnough ends the reading of an answer that is known to be whole.
var errEnough = errors.New("enough was read")

// read reads an answer of any content type that client-go asks for. Of one that is
// known to be whole it reads no further than the metadata of an object, or the details
// of a Status.
func read(contentType string, body []byte, whole bool) (a answer, err error) {
	media, _, _ := strings.Cut(contentType, ";")
	switch media = strings.TrimSpace(media); {
	case strings.EqualFold(media, runtime.ContentTypeJSON):
		a, err = readJSON(body, whole)
	case strings.EqualFold(media, runtime.ContentTypeProtobuf):
		a, err = readProtobuf(body)
	case strings.EqualFold(media, runtime.ContentTypeCBOR):
		a, err = readCBOR(body, whole)
	default:
		return answer{}, errContentType
	}
	if err == errEnough { //nolint:errorlint // it is never wrapped
		err = nil
	}
	return a, err
}

// enough says whether a reader may stop after the metadata. That of a Status has no
// UID, and the details are still to come.
func (a *answer) enough(whole bool, err error) error {
	if err == nil && whole && a.uid != "" {
		return errEnough
	}
	return err
}

// JSON

type jsonReader struct {
	data []byte
	at   int
}

func readJSON(body []byte, whole bool) (answer, error) {
	r := jsonReader{data: body}
	var a answer
	err := r.object(func(key []byte) error {
		switch string(key) {
		case "metadata":
			a = answer{deleted: a.deleted}
			err := r.objectOrNull(func(key []byte) (err error) {
				switch string(key) {
				case "resourceVersion":
					a.rv, err = r.text()
				case "uid":
					var uid string
					uid, err = r.text()
					a.uid = types.UID(uid)
				case "deletionTimestamp":
					var raw []byte
					raw, err = r.value()
					a.deleting = string(raw) != "null"
				case "deletionGracePeriodSeconds":
					var raw []byte
					raw, err = r.value()
					a.grace = string(raw) != "null" && string(raw) != "0"
				case "finalizers":
					var raw []byte
					raw, err = r.value()
					a.finalizers = !emptyJSON(raw)
				default:
					_, err = r.value()
				}
				return err
			})
			return a.enough(whole, err)
		case "details":
			if r.peek() == '{' {
				a.deleted = ""
				return r.object(func(key []byte) error {
					raw, err := r.value()
					if string(key) == "uid" && len(raw) > 1 && raw[0] == '"' && err == nil {
						var uid string
						uid, err = unquote(raw)
						a.deleted = types.UID(uid)
					}
					return err
				})
			}
		}
		_, err := r.value()
		return err
	})
	if err == nil && r.peek() != 0 {
		err = errSyntax
	}
	return a, err
}

func emptyJSON(raw []byte) bool {
	return string(raw) == "null" || len(raw) > 1 && raw[0] == '[' && len(bytes.TrimSpace(raw[1:len(raw)-1])) == 0
}

// peek steps over white space and returns the next byte, 0 at the end.
func (r *jsonReader) peek() byte {
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
func (r *jsonReader) expect(want byte) error {
	switch r.peek() {
	case want:
		r.at++
		return nil
	case 0:
		return errCut
	}
	return errSyntax
}

func (r *jsonReader) objectOrNull(field func(key []byte) error) error {
	if r.peek() == '{' {
		return r.object(field)
	}
	raw, err := r.value()
	if err == nil && string(raw) != "null" {
		err = errSyntax
	}
	return err
}

// object calls field for every key; field steps over the value.
func (r *jsonReader) object(field func(key []byte) error) error {
	if err := r.expect('{'); err != nil {
		return err
	}
	if r.peek() == '}' {
		r.at++
		return nil
	}
	for {
		if r.peek() != '"' {
			return r.expect('"')
		}
		key, err := r.value()
		if err != nil {
			return err
		}
		if bytes.IndexByte(key, '\\') < 0 {
			key = key[1 : len(key)-1]
		} else {
			plain, err := unquote(key)
			if err != nil {
				return err
			}
			key = []byte(plain)
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

// text returns a string, "" for null.
func (r *jsonReader) text() (string, error) {
	raw, err := r.value()
	switch {
	case err != nil:
		return "", err
	case string(raw) == "null":
		return "", nil
	case raw[0] != '"':
		return "", errSyntax
	}
	return unquote(raw)
}

func unquote(raw []byte) (string, error) {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1]), nil
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err
}

// value steps over a value and returns it, never empty unless with an error.
func (r *jsonReader) value() ([]byte, error) {
	first := r.peek()
	from := r.at
	switch first {
	case 0:
		return nil, errCut
	case '"':
		end := stringEnd(r.data, r.at)
		if end < 0 {
			return nil, errCut
		}
		r.at = end
	case '{', '[':
		if !r.skipNested() {
			return nil, errCut
		}
	default:
		for ; r.at < len(r.data) && bytes.IndexByte([]byte(",}] \t\n\r"), r.data[r.at]) < 0; r.at++ {
		}
		if r.at == from {
			return nil, errSyntax
		}
	}
	return r.data[from:r.at], nil
}

// skipNested steps over an object or a list, and reports whether it ends.
func (r *jsonReader) skipNested() bool {
	data, depth := r.data, 0
	for at := r.at; at < len(data); {
		switch data[at] {
		case '"':
			if at = stringEnd(data, at); at < 0 {
				return false
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				r.at = at + 1
				return true
			}
		}
		at++
	}
	return false
}

// stringEnd returns the index after the string that begins at the index, -1 if it has
// no end. It looks at eight bytes at a time: most of an answer is strings.
func stringEnd(data []byte, at int) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for at++; at < len(data); {
		if at+8 <= len(data) {
			word := binary.LittleEndian.Uint64(data[at:])
			// A byte is zero where the word has a quote or a backslash. The borrow of a
			// subtraction spoils only what comes after the first of them.
			quote, slash := word^ones*'"', word^ones*'\\'
			found := ((quote-ones)&^quote | (slash-ones)&^slash) & highs
			if found == 0 {
				at += 8
				continue
			}
			at += bits.TrailingZeros64(found) / 8
		}
		switch data[at] {
		case '"':
			return at + 1
		case '\\':
			at++
		}
		at++
	}
	return -1
}

// Protobuf

// protobufMagic precedes every protobuf message of Kubernetes.
const protobufMagic = "k8s\x00"

// The numbers of the fields, from the generated.proto files of apimachinery.
const (
	unknownTypeMeta, unknownRaw, unknownEncoding = 1, 2, 3 // runtime.Unknown
	typeAPIVersion, typeKind                     = 1, 2    // runtime.TypeMeta
	kindMetadata, statusDetails, detailsUID      = 1, 5, 6 // any kind; Status; StatusDetails

	metaUID, metaResourceVersion, metaDeletionTimestamp, metaGrace, metaFinalizers = 5, 6, 9, 10, 14
)

func readProtobuf(body []byte) (answer, error) {
	var a answer
	envelope, ok := bytes.CutPrefix(body, []byte(protobufMagic))
	if !ok {
		return a, errContentType
	}
	var raw []byte
	found, status := false, false
	err := protobufFields(envelope, func(number uint64, _ uint64, data []byte) error {
		switch number {
		case unknownTypeMeta:
			var version, kind []byte
			err := protobufFields(data, func(number, _ uint64, data []byte) error {
				switch number {
				case typeAPIVersion:
					version = data
				case typeKind:
					kind = data
				}
				return nil
			})
			status = string(version) == "v1" && string(kind) == "Status"
			return err
		case unknownRaw:
			raw, found = data, true
		case unknownEncoding:
			if len(data) > 0 {
				return errContentType
			}
		}
		return nil
	})
	if err != nil {
		return a, err
	}
	if !found {
		return a, errCut
	}
	return a, protobufFields(raw, func(number, _ uint64, data []byte) error {
		switch {
		case number == kindMetadata && !status:
			return protobufFields(data, func(number, value uint64, data []byte) error {
				switch number {
				case metaUID:
					a.uid = types.UID(data)
				case metaResourceVersion:
					a.rv = string(data)
				case metaDeletionTimestamp:
					a.deleting = true
				case metaGrace:
					a.grace = value != 0
				case metaFinalizers:
					a.finalizers = true
				}
				return nil
			})
		case number == statusDetails && status:
			return protobufFields(data, func(number, _ uint64, data []byte) error {
				if number == detailsUID {
					a.deleted = types.UID(data)
				}
				return nil
			})
		}
		return nil
	})
}

// protobufFields calls field for every field of a message: with the value of a
// number, or the data of anything with a length.
func protobufFields(message []byte, field func(number, value uint64, data []byte) error) error {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 {
			return errCut
		}
		message = message[n:]
		var value uint64
		var data []byte
		size := 0
		switch tag & 7 {
		case 0:
			if value, size = binary.Uvarint(message); size <= 0 {
				return errCut
			}
		case 1:
			size = 8
		case 2:
			length, n := binary.Uvarint(message)
			if n <= 0 || length > uint64(len(message)-n) {
				return errCut
			}
			data = message[n : n+int(length)]
			size = n + int(length)
		case 5:
			size = 4
		default:
			return errSyntax
		}
		if size > len(message) {
			return errCut
		}
		message = message[size:]
		if err := field(tag>>3, value, data); err != nil {
			return err
		}
	}
	return nil
}

// CBOR (RFC 8949)

const (
	cborBytes, cborText, cborArray, cborMap, cborTag, cborSimple = 2, 3, 4, 5, 6, 7

	cborSelfDescribed = 55799
	cborNull          = 22
	cborMaxDepth      = 10000 // what Kubernetes accepts
)

type cborReader struct {
	data []byte
	at   int
}

func readCBOR(body []byte, whole bool) (answer, error) {
	r := cborReader{data: body}
	var a answer
	err := r.object(func(key []byte) error {
		switch string(key) {
		case "metadata":
			a = answer{deleted: a.deleted}
			err := r.objectOrNull(func(key []byte) (err error) {
				switch string(key) {
				case "resourceVersion":
					var data []byte
					data, err = r.text()
					a.rv = string(data)
				case "uid":
					var data []byte
					data, err = r.text()
					a.uid = types.UID(data)
				case "deletionTimestamp":
					a.deleting, err = r.isSet()
				case "deletionGracePeriodSeconds":
					a.grace, err = r.isSet()
				case "finalizers":
					a.finalizers, err = r.isSet()
				default:
					err = r.skip(0)
				}
				return err
			})
			return a.enough(whole, err)
		case "details":
			if r.at < len(r.data) && r.data[r.at]>>5 == cborMap {
				a.deleted = ""
				return r.object(func(key []byte) error {
					if string(key) != "uid" {
						return r.skip(0)
					}
					data, err := r.text()
					a.deleted = types.UID(data)
					return err
				})
			}
		}
		return r.skip(0)
	})
	if err == nil && r.at != len(r.data) {
		err = errSyntax
	}
	return a, err
}

// head reads what precedes every item: its type, and its value or length. Of an item
// of indefinite length open is true.
func (r *cborReader) head() (major byte, value uint64, open bool, err error) {
	if r.at >= len(r.data) {
		return 0, 0, false, errCut
	}
	first := r.data[r.at]
	r.at++
	major = first >> 5
	switch info := first & 31; {
	case info < 24:
		return major, uint64(info), false, nil
	case info < 28:
		size := 1 << (info - 24)
		if len(r.data)-r.at < size {
			return 0, 0, false, errCut
		}
		for _, b := range r.data[r.at : r.at+size] {
			value = value<<8 | uint64(b)
		}
		r.at += size
		return major, value, false, nil
	case info == 31 && major >= cborBytes && major != cborTag:
		return major, 0, true, nil
	}
	return 0, 0, false, errSyntax
}

// chunk takes the data of a string.
func (r *cborReader) chunk(length uint64) ([]byte, error) {
	if length > uint64(len(r.data)-r.at) {
		return nil, errCut
	}
	r.at += int(length)
	return r.data[r.at-int(length) : r.at], nil
}

// ends reports whether the items of something of the length are all read, and steps
// over the break that ends an indefinite length.
func (r *cborReader) ends(n, length uint64, open bool) bool {
	if !open {
		return n >= length
	}
	if r.at < len(r.data) && r.data[r.at] == 0xff {
		r.at++
		return true
	}
	return false
}

// text returns a string, nil for null. Kubernetes writes byte strings; text strings
// are as good. One in chunks, which it never writes, is an error.
func (r *cborReader) text() ([]byte, error) {
	major, length, open, err := r.head()
	switch {
	case err != nil:
		return nil, err
	case major == cborSimple && length == cborNull && !open:
		return nil, nil
	case open || major != cborBytes && major != cborText:
		return nil, errSyntax
	}
	return r.chunk(length)
}

// isSet steps over a value and reports whether it is one: not null, not 0, and not an
// empty string or list.
func (r *cborReader) isSet() (bool, error) {
	from := r.at
	if err := r.skip(0); err != nil {
		return false, err
	}
	switch r.data[from] {
	case 0xf6, 0x00, 0x40, 0x60, 0x80:
		return false, nil
	case 0x9f: // a list of indefinite length
		return r.data[from+1] != 0xff, nil
	}
	return true, nil
}

func (r *cborReader) objectOrNull(field func(key []byte) error) error {
	if r.at < len(r.data) && r.data[r.at] == cborSimple<<5|cborNull {
		r.at++
		return nil
	}
	return r.object(field)
}

// object calls field for every key; field steps over the value.
func (r *cborReader) object(field func(key []byte) error) error {
	major, length, open, err := r.head()
	for err == nil && major == cborTag && length == cborSelfDescribed {
		major, length, open, err = r.head()
	}
	if err != nil {
		return err
	}
	if major != cborMap {
		return errSyntax
	}
	for n := uint64(0); !r.ends(n, length, open); n++ {
		key, err := r.text()
		if err != nil {
			return err
		}
		if err := field(key); err != nil {
			return err
		}
	}
	return nil
}

// skip steps over an item. Depth counts only what has an indefinite length, since the
// rest needs no stack: it is a number of items that are still to come.
func (r *cborReader) skip(depth int) error {
	for items := uint64(1); items > 0; items-- {
		// What Kubernetes writes most: a string of up to 23 bytes.
		if r.at < len(r.data) {
			first := r.data[r.at]
			if end := r.at + 1 + int(first&31); (first>>5 == cborBytes || first>>5 == cborText) && first&31 < 24 && end <= len(r.data) {
				r.at = end
				continue
			}
		}
		major, value, open, err := r.head()
		switch {
		case err != nil:
			return err
		case open:
			if err := r.skipOpen(major, depth); err != nil {
				return err
			}
		case major == cborBytes || major == cborText:
			if _, err := r.chunk(value); err != nil {
				return err
			}
		case major == cborTag:
			items++
		case major == cborArray || major == cborMap:
			if value > uint64(len(r.data)-r.at) {
				return errCut // an item has a byte at least
			}
			items += value << (major - cborArray)
		}
	}
	return nil
}

// skipOpen steps over what follows the head of an item of indefinite length.
func (r *cborReader) skipOpen(major byte, depth int) error {
	if major == cborSimple || depth > cborMaxDepth {
		return errSyntax // a break that nothing began
	}
	for !r.ends(0, 0, true) {
		if err := r.skip(depth + 1); err != nil {
			return err
		}
		if major == cborMap {
			if err := r.skip(depth + 1); err != nil {
				return err
			}
		}
	}
	return nil
}
