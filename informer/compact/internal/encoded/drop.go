package encoded

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Drop tells which fields a cache does not keep. Nil drops none. It is immutable.
type Drop struct{ protobuf, json *node }

// node is a field of which something is dropped. nil keeps everything.
type node struct {
	number int32  // in protobuf
	name   string // in JSON
	all    bool   // nothing of the field is kept
	keys   []string
	fields []*node
}

// child returns the node of a field in protobuf, or nil.
func (n *node) child(number int32) *node {
	for _, f := range n.fields {
		if f.number == number {
			return f
		}
	}
	return nil
}

// member returns the node of a field in JSON, or nil.
func (n *node) member(name string) *node {
	for _, f := range n.fields {
		if f.name == name {
			return f
		}
	}
	return nil
}

// step returns the child of a step, and adds it if it is missing.
func (n *node) step(s step) *node {
	for _, f := range n.fields {
		if f.number == s.number && f.name == s.name {
			return f
		}
	}
	f := &node{number: s.number, name: s.name}
	n.fields = append(n.fields, f)
	return f
}

// step is a field of a struct: its number in protobuf or its name in JSON.
type step struct {
	number int32
	name   string
}

// identifies reports whether each object of a cache needs the field.
func identifies(path string) bool {
	switch path {
	case "metadata", "metadata.name", "metadata.namespace", "metadata.uid", "metadata.resourceVersion":
		return true
	}
	return false
}

// NewDrop returns a Drop of the fields of t, a struct of the API. A path has the names of the
// fields in JSON, with dots between them, and applies to each element of a list on the way. A key
// in brackets at its end drops the one value of a map, as in
// metadata.annotations[example.com/large].
func NewDrop(t reflect.Type, paths ...string) (*Drop, error) {
	d := &Drop{protobuf: &node{}, json: &node{}}
	for _, path := range paths {
		if err := d.add(t, path); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func (d *Drop) add(t reflect.Type, path string) error {
	if identifies(path) {
		return fmt.Errorf("path %q: a cache needs the field", path)
	}
	fields, key, keyed := strings.Cut(path, "[")
	if keyed {
		var closed bool
		key, closed = strings.CutSuffix(key, "]")
		switch {
		case !closed && strings.Contains(key, "]"):
			return fmt.Errorf("path %q: a key in brackets must be at the end, and a list needs none", path)
		case !closed:
			return fmt.Errorf("path %q: no ] at the end", path)
		}
	}
	of := struct{ protobuf, json *node }{d.protobuf, d.json}
	for _, name := range strings.Split(fields, ".") {
		steps, of2, err := find(t, name)
		if err != nil {
			return fmt.Errorf("path %q: %w", path, err)
		}
		for _, s := range steps {
			if of.protobuf != nil && s.number > 0 {
				of.protobuf = of.protobuf.step(step{number: s.number})
			} else {
				of.protobuf = nil // the type has no protobuf
			}
		}
		of.json = of.json.step(step{name: name})
		t = of2
	}
	isMap := t.Kind() == reflect.Map
	if keyed && !isMap {
		return fmt.Errorf("path %q: the field is a %s and no map", path, t)
	}
	for _, n := range []*node{of.protobuf, of.json} {
		switch {
		case n == nil:
		case keyed:
			n.keys = append(n.keys, key)
		default:
			n.all = true
		}
	}
	return nil
}

// find returns the way to a field of t, and its type. In protobuf a struct that is inline in JSON
// is a field of its own.
func find(t reflect.Type, name string) ([]step, reflect.Type, error) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Array {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil, nil, fmt.Errorf("no field %q in a %s", name, t)
	}
	for i := range t.NumField() {
		f := t.Field(i)
		tagged, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		inline := tagged == "" && (f.Anonymous || slices.Contains(strings.Split(options, ","), "inline"))
		switch {
		case inline:
			steps, of, err := find(f.Type, name)
			if err != nil {
				continue
			}
			if n := number(f); n > 0 {
				steps = append([]step{{number: n}}, steps...)
			}
			return steps, of, nil
		case tagged == name && name != "" && name != "-":
			of := f.Type
			for of.Kind() == reflect.Pointer {
				of = of.Elem()
			}
			return []step{{number: number(f)}}, of, nil
		}
	}
	return nil, nil, fmt.Errorf("no field %q in a %s", name, t)
}

// number returns the field's number in protobuf, or 0.
func number(f reflect.StructField) int32 {
	parts := strings.Split(f.Tag.Get("protobuf"), ",")
	if len(parts) < 2 {
		return 0
	}
	n, err := strconv.ParseInt(parts[1], 10, 32)
	if err != nil {
		return 0
	}
	return int32(n)
}

// errMalformed is an encoding that no decoder accepts.
var errMalformed = errors.New("malformed encoding")
