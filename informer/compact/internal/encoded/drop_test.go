package encoded_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/controllerkit/controllerkit/informer/compact/internal/encoded"
)

// TestDropEachField drops each field of all kinds alone, in both formats: the decoder returns the
// object with that field unset, and every other one.
func TestDropEachField(t *testing.T) {
	for _, kind := range kinds {
		typ := reflect.TypeOf(kind).Elem()
		t.Run(typ.String(), func(t *testing.T) {
			t.Parallel()
			tried := 0
			for _, at := range structs(typ) {
				obj := newOf(kind)
				obj.SetName("a")
				for _, s := range at.find(reflect.ValueOf(obj).Elem(), true) {
					fill(s)
				}
				for _, field := range at.names() {
					path := strings.Join(append(slices.Clone(at.path), field.name), ".")
					drop, err := encoded.NewDrop(typ, path)
					if err != nil {
						if !strings.Contains(err.Error(), "a cache needs the field") {
							t.Error(err)
						}
						continue
					}
					for _, format := range []encoded.Format{encoded.JSON, encoded.Protobuf} {
						data := encode(t, obj, format)
						want := decode(t, kind, data, format)
						unset := 0
						for _, s := range at.find(reflect.ValueOf(want).Elem(), false) {
							if f := s.FieldByIndex(field.index); !f.IsZero() {
								unset++
								f.SetZero()
							}
						}
						if unset == 0 {
							continue // the empty value of a struct
						}
						tried++
						o, err := encoded.Parse(data, format, drop, nil)
						if err != nil {
							t.Fatalf("%s: %v", path, err)
						}
						got := newOf(kind)
						if err := o.Decode(got); err != nil {
							t.Fatalf("%s: %v", path, err)
						}
						want.GetObjectKind().SetGroupVersionKind(got.GetObjectKind().GroupVersionKind())
						if !reflect.DeepEqual(got, want) {
							t.Errorf("format %d without %s:\n%+v\nwant\n%+v", format, path, got, want)
						}
					}
				}
			}
			if tried < 30 {
				t.Errorf("%d fields dropped, want more", tried)
			}
		})
	}
}

// A position is a struct within a kind: the way to it through pointers and lists.
type position struct {
	typ    reflect.Type
	path   []string
	fields [][]int
}

// structs returns the positions of a kind's structs whose fields have paths.
func structs(kind reflect.Type) (all []position) {
	var add func(position)
	add = func(p position) {
		all = append(all, p)
		for _, field := range p.names() {
			t := p.typ.FieldByIndex(field.index).Type
			for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
				t = t.Elem()
			}
			if t.Kind() == reflect.Struct && !isLeaf(t) {
				add(position{t, append(slices.Clone(p.path), field.name), append(slices.Clone(p.fields), field.index)})
			}
		}
	}
	add(position{typ: kind})
	return all
}

// names returns the fields of the struct that protobuf has, with their names in JSON.
func (p position) names() []named { return namesOf(p.typ, nil) }

// A named field of a struct, or of one that is inline in it.
type named struct {
	index []int
	name  string
}

func namesOf(t reflect.Type, above []int) (all []named) {
	for f := range t.Fields() {
		index := slices.Concat(above, f.Index)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Tag.Get("protobuf") == "":
		case name != "" && name != "-":
			all = append(all, named{index, name})
		case name == "" && options == "inline":
			all = append(all, namesOf(f.Type, index)...)
		}
	}
	return all
}

// find returns the structs at the position in an object. If grow is true, it makes the missing ones.
func (p position) find(obj reflect.Value, grow bool) []reflect.Value {
	found := []reflect.Value{obj}
	for _, field := range p.fields {
		var inner []reflect.Value
		for _, v := range found {
			inner = append(inner, below(v.FieldByIndex(field), grow)...)
		}
		found = inner
	}
	return found
}

// below returns the structs in a value behind pointers and in lists.
func below(v reflect.Value, grow bool) (all []reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if grow && v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		if v.IsNil() {
			return nil
		}
		return below(v.Elem(), grow)
	case reflect.Slice:
		if grow && v.Len() == 0 {
			v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		}
		for i := range v.Len() {
			all = append(all, below(v.Index(i), grow)...)
		}
		return all
	default:
		return []reflect.Value{v}
	}
}

var leaves = map[reflect.Type]any{
	reflect.TypeFor[metav1.Time]():          metav1.Unix(1_700_000_000, 0),
	reflect.TypeFor[metav1.MicroTime]():     metav1.NewMicroTime(time.Unix(1_700_000_000, 1000)),
	reflect.TypeFor[metav1.Duration]():      metav1.Duration{Duration: time.Second},
	reflect.TypeFor[metav1.FieldsV1]():      *metav1.NewFieldsV1(`{"f:a":{}}`),
	reflect.TypeFor[resource.Quantity]():    resource.MustParse("1"),
	reflect.TypeFor[intstr.IntOrString]():   intstr.FromInt32(7),
	reflect.TypeFor[runtime.RawExtension](): runtime.RawExtension{Raw: []byte(`{"a":1}`)},
}

// isLeaf reports whether the fields of a struct have no paths, because it is no object in JSON.
func isLeaf(t reflect.Type) bool {
	_, ok := leaves[t]
	return ok
}

// fill sets the unset fields of a struct, and what they hold except the fields of other structs.
func fill(v reflect.Value) {
	for _, field := range namesOf(v.Type(), nil) {
		if inner := v.FieldByIndex(field.index); inner.IsZero() {
			inner.Set(filled(inner.Type()))
		}
	}
}

// filled returns a value of a type.
func filled(t reflect.Type) reflect.Value {
	v := reflect.New(t).Elem()
	switch t.Kind() {
	case reflect.Pointer:
		v.Set(filled(t.Elem()).Addr())
	case reflect.Slice:
		v.Set(reflect.Append(v, filled(t.Elem()), filled(t.Elem())))
	case reflect.Map:
		v.Set(reflect.MakeMap(t))
		v.SetMapIndex(filled(t.Key()), filled(t.Elem()))
	case reflect.Struct:
		if value, ok := leaves[t]; ok {
			v.Set(reflect.ValueOf(value))
		}
	case reflect.String:
		v.SetString("7")
	case reflect.Bool:
		v.SetBool(true)
	default:
		switch {
		case v.CanInt():
			v.SetInt(7)
		case v.CanUint():
			v.SetUint(7)
		case v.CanFloat():
			v.SetFloat(7)
		}
	}
	return v
}
