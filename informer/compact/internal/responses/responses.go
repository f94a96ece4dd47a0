// Package responses cuts the responses of the API server into objects without decoding them.
package responses

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apijson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit/informer/compact/internal/encoded"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// A Reader reads responses.
type Reader struct {
	// Kind is the kind of the objects. A response with another one is an error.
	Kind string
	// Custom allows a list of any kind with items of Kind: the definition of a custom resource names the
	// kind of its lists.
	Custom bool
	// Drop is what is not kept of the objects.
	Drop *encoded.Drop
}

// Dropped returns what is not kept of the object of an event. No cache holds a bookmark, and its annotation
// ends the initial list of a watch.
func (r Reader) Dropped(event watch.EventType) *encoded.Drop {
	if event == watch.Bookmark {
		return nil
	}
	return r.Drop
}

// List is a list of objects.
type List struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []*encoded.Object // nil if JSON has no array of them
}

// DeepCopyObject implements runtime.Object.
func (l *List) DeepCopyObject() runtime.Object {
	return &List{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy(), Items: append([]*encoded.Object(nil), l.Items...)}
}

// maxObject bounds the bytes of an object, as client-go bounds those of an event.
const maxObject = 16 << 20

var (
	errSize = fmt.Errorf("an object of more than %d bytes", maxObject)
	errName = errors.New("an object without metadata.name")
)

// The begin of a response tells its format, because client-go returns a stream without its headers.
const (
	envelope = "k8s\x00" // of each message in protobuf
	cbor     = 0xd9      // of each item in CBOR
)

// List reads a list, of which it holds one object at a time in both forms.
func (r Reader) List(body io.Reader) (*List, error) {
	b := bufio.NewReaderSize(body, 32<<10)
	begin, err := b.Peek(len(envelope))
	list := &List{}
	switch {
	case string(begin) == envelope:
		err = r.protobufList(b, list)
	case len(begin) == 0:
		err = fmt.Errorf("an empty response: %w", err)
	default:
		err = r.jsonList(b, list)
	}
	if err == nil {
		err = r.checkList(list)
	}
	if err != nil {
		return nil, fmt.Errorf("read a list of %s: %w", r.Kind, err)
	}
	return list, nil
}

func (r Reader) checkList(list *List) error {
	err := r.check(list.Kind, r.Kind+"List")
	if err != nil && r.Custom && list.Items != nil && !slices.ContainsFunc(list.Items, func(o *encoded.Object) bool { return o.Kind() != r.Kind }) {
		return nil
	}
	return err
}

// check compares kinds. Some responses have none.
func (r Reader) check(kind, want string) error {
	if kind != "" && kind != want {
		return fmt.Errorf("the API server sent a %s where a %s belongs: check type and resource", kube.Printable(kind, 64), want)
	}
	return nil
}

// add parses an item.
func (r Reader) add(list *List, data []byte, format encoded.Format, scratch *[]byte) error {
	o, err := encoded.Parse(data, format, r.Drop, scratch)
	switch {
	case err != nil:
		return fmt.Errorf("object %d: %w", len(list.Items), err)
	case o.GetName() == "":
		return fmt.Errorf("object %d: %w", len(list.Items), errName)
	}
	list.Items = append(list.Items, o)
	return nil
}

// bounded reads no more than left bytes, which is set again before each value. A json.Decoder
// holds a value whole before its size is known.
type bounded struct {
	io.Reader
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errSize
	}
	n, err := b.Reader.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// values decodes values of a response in JSON.
type values struct {
	*json.Decoder
	in    *bounded
	value json.RawMessage
}

// next returns the next value, which is valid until the next call.
func (v *values) next() (json.RawMessage, error) {
	v.value = v.value[:0]
	v.in.left = maxObject
	err := v.Decode(&v.value)
	v.in.left = maxObject // for the tokens up to the next value
	return v.value, err
}

func (r Reader) jsonList(body io.Reader, list *List) error {
	in := &bounded{body, maxObject}
	d := &values{Decoder: json.NewDecoder(in), in: in}
	if err := delimiter(d, '{'); err != nil {
		return err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		if key == "items" {
			if err := r.jsonItems(d, list); err != nil {
				return err
			}
			continue
		}
		value, err := d.next()
		if err == nil {
			switch key {
			case "kind":
				err = apijson.Unmarshal(value, &list.Kind)
			case "apiVersion":
				err = apijson.Unmarshal(value, &list.APIVersion)
			case "metadata":
				err = apijson.Unmarshal(value, &list.ListMeta)
			}
		}
		if err != nil {
			return err
		}
	}
	return delimiter(d, '}')
}

func (r Reader) jsonItems(d *values, list *List) error {
	switch t, err := d.Token(); {
	case err != nil:
		return err
	case t == nil:
		return nil
	case t != json.Delim('['):
		return fmt.Errorf("items: a %T in place of [", t)
	}
	list.Items = []*encoded.Object{}
	var scratch []byte
	for d.More() {
		value, err := d.next()
		if err == nil {
			err = r.add(list, value, encoded.JSON, &scratch)
		}
		if err != nil {
			return err
		}
	}
	return delimiter(d, ']')
}

func delimiter(d *values, want json.Delim) error {
	t, err := d.Token()
	if err == nil && t != want {
		err = fmt.Errorf("%v in place of %v", t, want)
	}
	return err
}
