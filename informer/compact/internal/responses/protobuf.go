package responses

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/controllerkit/controllerkit/informer/compact/internal/encoded"
)

// Numbers of fields: of a runtime.Unknown, which is the envelope, of a list, of a WatchEvent and
// of a runtime.RawExtension.
const (
	typeNumber = 1
	rawNumber  = 2

	listMetaNumber = 1
	itemsNumber    = 2

	eventTypeNumber   = 1
	eventObjectNumber = 2
	extensionNumber   = 1
)

// stream reads a message that is too large to hold.
type stream struct {
	*bufio.Reader
	left    int64 // bytes of the message
	scratch []byte
}

// ReadByte implements io.ByteReader.
func (s *stream) ReadByte() (byte, error) {
	if s.left <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	s.advance(1)
	return s.Reader.ReadByte()
}

// next returns the number and the length of the next field, which is a string, bytes or a message.
// Other fields are skipped. The error is io.EOF at the end of the message.
func (s *stream) next() (number int32, length int64, err error) {
	for {
		if s.left == math.MaxInt64 { // the end is that of the response
			if _, err := s.Peek(1); err != nil {
				return 0, 0, err
			}
		}
		if s.left == 0 {
			return 0, 0, io.EOF
		}
		tag, err := binary.ReadUvarint(s)
		if err != nil {
			return 0, 0, noEOF(err)
		}
		switch tag & 7 {
		case 2:
			n, err := binary.ReadUvarint(s)
			if err != nil {
				return 0, 0, noEOF(err)
			}
			if n > uint64(s.left) {
				return 0, 0, io.ErrUnexpectedEOF
			}
			return int32(tag >> 3), int64(n), nil
		case 0:
			_, err = binary.ReadUvarint(s)
		case 5:
			err = s.skip(4)
		case 1:
			err = s.skip(8)
		default:
			err = errors.New("malformed protobuf")
		}
		if err != nil {
			return 0, 0, noEOF(err)
		}
	}
}

func (s *stream) skip(n int64) error {
	if n > s.left {
		return io.ErrUnexpectedEOF
	}
	s.advance(n)
	_, err := io.CopyN(io.Discard, s.Reader, n)
	return noEOF(err)
}

// advance counts n bytes. A message whose end is that of the response has no count.
func (s *stream) advance(n int64) {
	if s.left != math.MaxInt64 {
		s.left -= n
	}
}

// bytes returns the next n bytes, which are valid until the next call.
func (s *stream) bytes(n int64) ([]byte, error) {
	if n > maxObject {
		return nil, errSize
	}
	if int64(cap(s.scratch)) < n {
		s.scratch = make([]byte, n+n/4)
	}
	b := s.scratch[:n]
	s.advance(n)
	_, err := io.ReadFull(s.Reader, b)
	return b, noEOF(err)
}

// noEOF makes an end within a message an error.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// each calls f with each field of the message, up to its end. f must read or skip the value.
func (s *stream) each(f func(number int32, length int64) error) error {
	for {
		number, length, err := s.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = f(number, length)
		}
		if err != nil {
			return err
		}
	}
}

func (r Reader) protobufList(b *bufio.Reader, list *List) error {
	if _, err := b.Discard(len(envelope)); err != nil {
		return err
	}
	s := &stream{Reader: b, left: math.MaxInt64}
	whole := false // a response that ends before the list is a message, too
	err := s.each(func(number int32, length int64) error {
		switch number {
		case rawNumber:
			whole = true
			s.advance(length)
			return r.protobufItems(&stream{Reader: b, left: length}, list)
		case typeNumber:
			value, err := s.bytes(length)
			if err == nil {
				list.TypeMeta, err = typeMeta(value)
			}
			return err
		}
		return s.skip(length)
	})
	if err == nil && !whole {
		err = io.ErrUnexpectedEOF
	}
	return err
}

func (r Reader) protobufItems(s *stream, list *List) error {
	var scratch []byte
	return s.each(func(number int32, length int64) error {
		if number != listMetaNumber && number != itemsNumber {
			return s.skip(length)
		}
		value, err := s.bytes(length)
		switch {
		case err != nil:
			return err
		case number == listMetaNumber:
			return list.ListMeta.Unmarshal(value)
		}
		return r.add(list, value, encoded.Protobuf, &scratch)
	})
}

func typeMeta(message []byte) (t metav1.TypeMeta, err error) {
	var of runtime.TypeMeta
	err = of.Unmarshal(message)
	return metav1.TypeMeta{APIVersion: of.APIVersion, Kind: of.Kind}, err
}

// open returns the kind and the content of an envelope.
func open(message []byte) (kind string, raw []byte, err error) {
	message, ok := bytes.CutPrefix(message, []byte(envelope))
	if !ok {
		return "", nil, fmt.Errorf("a message that does not begin with %q", envelope)
	}
	err = encoded.Fields(message, func(number int32, value []byte) error {
		switch number {
		case typeNumber:
			t, err := typeMeta(value)
			kind = t.Kind
			return err
		case rawNumber:
			raw = value
		}
		return nil
	})
	return kind, raw, err
}
