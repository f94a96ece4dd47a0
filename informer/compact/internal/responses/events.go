package responses

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apijson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit/informer/compact/internal/encoded"
)

// Events returns the decoder of a watch. It may be used by one goroutine at a time.
func (r Reader) Events(body io.ReadCloser) watch.Decoder {
	return &events{Reader: r, body: body, in: bufio.NewReaderSize(body, 4<<10)}
}

type events struct {
	Reader
	body    io.ReadCloser
	in      *bufio.Reader
	begun   bool
	json    bool
	frame   []byte // of the last event; in JSON also what follows it
	done    int    // bytes of frame that were used
	scratch []byte
}

// Close implements watch.Decoder.
func (e *events) Close() { _ = e.body.Close() }

// Decode implements watch.Decoder.
func (e *events) Decode() (watch.EventType, runtime.Object, error) {
	if !e.begun {
		begin, err := e.in.Peek(1)
		if err != nil {
			return "", nil, err
		}
		if begin[0] == cbor {
			return "", nil, errors.New("a watch in CBOR, which was not asked for")
		}
		e.begun, e.json = true, begin[0] >= '\t' // a frame in protobuf begins with its length, which is less
	}
	event, err := e.next()
	if err != nil {
		return "", nil, err
	}
	obj, err := e.object(event)
	e.trim()
	if err != nil {
		return "", nil, fmt.Errorf("read a watch of %s: %w", e.Kind, err)
	}
	return event.of, obj, nil
}

// maxKept bounds the buffers of a watch between two events: one large object must not cost memory as
// long as the watch lasts.
const maxKept = 256 << 10

func (e *events) trim() {
	if cap(e.scratch) > maxKept {
		e.scratch = nil
	}
	if cap(e.frame) > maxKept {
		e.frame, e.done = bytes.Clone(e.frame[e.done:]), 0
	}
}

// event is an event of a watch. Its fields are parts of the frame.
type event struct {
	of     watch.EventType
	kind   string
	format encoded.Format
	object []byte
}

func (e *events) next() (event, error) {
	if e.json {
		return e.nextJSON()
	}
	return e.nextProtobuf()
}

func (e *events) object(event event) (runtime.Object, error) {
	if event.of == watch.Error {
		status := &metav1.Status{}
		if event.format == encoded.Protobuf {
			return status, status.Unmarshal(event.object)
		}
		return status, apijson.Unmarshal(event.object, status)
	}
	if err := e.check(event.kind, e.Kind); err != nil {
		return nil, err
	}
	o, err := encoded.Parse(event.object, event.format, e.Dropped(event.of), &e.scratch)
	if err == nil && event.of != watch.Bookmark && o.GetName() == "" {
		err = errName
	}
	if err != nil {
		return nil, err // not a nil Object in an interface
	}
	return o, nil
}

func (e *events) nextProtobuf() (event, error) {
	var head [4]byte
	if _, err := io.ReadFull(e.in, head[:]); err != nil {
		return event{}, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxObject {
		return event{}, errSize
	}
	if cap(e.frame) < int(n) {
		e.frame = make([]byte, n+n/4)
	}
	frame := e.frame[:n]
	e.done = len(e.frame) // nothing of it is used again
	if _, err := io.ReadFull(e.in, frame); err != nil {
		return event{}, noEOF(err)
	}
	of := event{format: encoded.Protobuf}
	err := encoded.Fields(frame, func(number int32, value []byte) error {
		switch number {
		case eventTypeNumber:
			of.of = watch.EventType(value)
		case eventObjectNumber:
			return encoded.Fields(value, func(number int32, value []byte) (err error) {
				if number == extensionNumber {
					of.kind, of.object, err = open(value)
				}
				return err
			})
		}
		return nil
	})
	return of, err
}

func (e *events) nextJSON() (event, error) {
	value, err := e.value()
	if err != nil {
		return event{}, err
	}
	of := event{format: encoded.JSON}
	err = encoded.Members(value, func(name, value []byte) error {
		switch string(name) {
		case "type":
			return apijson.Unmarshal(value, (*string)(&of.of))
		case "object":
			of.object = value
		}
		return nil
	})
	if err != nil || len(of.object) == 0 || of.object[0] != '{' {
		return of, err // Parse says what is wrong with the object
	}
	return of, encoded.Members(of.object, func(name, value []byte) error {
		if string(name) == "kind" {
			return apijson.Unmarshal(value, &of.kind)
		}
		return nil
	})
}

// value returns the next value of the stream, which is valid until the next call.
func (e *events) value() ([]byte, error) {
	e.frame = append(e.frame[:0], e.frame[e.done:]...)
	e.done = 0
	var s *encoded.Scanner
	for {
		if s == nil {
			e.frame = bytes.TrimLeft(e.frame, " \n\t\r")
			if len(e.frame) > 0 && e.frame[0] != '{' {
				return nil, fmt.Errorf("an event begins with %q", e.frame[0])
			}
			if len(e.frame) > 0 {
				s = &encoded.Scanner{}
			}
		}
		if s != nil && s.End(e.frame) {
			e.done = s.Next()
			return e.frame[:e.done], nil
		}
		if len(e.frame) > maxObject {
			return nil, errSize
		}
		part, err := e.in.ReadSlice('\n')
		e.frame = append(e.frame, part...)
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) && len(part) == 0 {
			if len(e.frame) > 0 {
				err = noEOF(err)
			}
			return nil, err
		}
	}
}
