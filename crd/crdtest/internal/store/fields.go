package store

import (
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// newManagers returns the field managers of the resource and of its status.
func newManagers(kind schema.GroupVersionKind, t reflect.Type) (map[string]*managedfields.FieldManager, error) {
	c := converter{kind, typed.ParseableType{Schema: &smd.Schema{}}}
	c.of.TypeRef = (&goTypes{c.of.Schema, map[reflect.Type]string{}}).ref(t)
	managers := map[string]*managedfields.FieldManager{}
	for subresource, reset := range map[string]*fieldpath.Set{
		"":       fieldpath.NewSet(fieldpath.MakePathOrDie("status")),
		"status": fieldpath.NewSet(fieldpath.MakePathOrDie("metadata"), fieldpath.MakePathOrDie("spec")),
	} {
		filters := fieldpath.NewExcludeFilterSetMap(map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(kind.GroupVersion().String()): reset})
		manager, err := managedfields.NewDefaultCRDFieldManager(c, c, c, c, kind, kind.GroupVersion(), subresource, filters)
		if err != nil {
			return nil, err
		}
		managers[subresource] = manager
	}
	return managers, nil
}

// converter is what a field manager needs of a resource with one version.
type converter struct {
	kind schema.GroupVersionKind
	of   typed.ParseableType
}

func (c converter) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	return c.of.FromUnstructured(obj.(*unstructured.Unstructured).Object, opts...)
}

func (c converter) TypedToObject(value *typed.TypedValue) (runtime.Object, error) {
	content, ok := value.AsValue().Unstructured().(map[string]any)
	if !ok {
		return nil, errors.New("the configuration is not an object")
	}
	return &unstructured.Unstructured{Object: content}, nil
}

// ConvertToVersion knows one version: the managed fields of others are obsolete.
func (c converter) ConvertToVersion(obj runtime.Object, of runtime.GroupVersioner) (runtime.Object, error) {
	if _, ok := of.KindForGroupVersionKinds([]schema.GroupVersionKind{c.kind}); !ok {
		return nil, runtime.NewNotRegisteredErrForTarget("crdtest", reflect.TypeOf(obj), of)
	}
	return obj, nil
}

func (c converter) New(schema.GroupVersionKind) (runtime.Object, error) { return empty(c.kind), nil }

func (converter) Default(runtime.Object)      {}
func (converter) Convert(any, any, any) error { return errors.New("unused") }
func (converter) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// goTypes makes the schema of a Go type, as controller-gen does without markers: each list
// is atomic. Only those of the metadata are known better.
type goTypes struct {
	*smd.Schema
	names map[reflect.Type]string
}

func (s *goTypes) ref(t reflect.Type) smd.TypeRef {
	if t.Kind() == reflect.Pointer {
		return s.ref(t.Elem())
	}
	for _, marshaler := range []reflect.Type{reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler]()} {
		if reflect.PointerTo(t).Implements(marshaler) {
			return s.deduced()
		}
	}
	switch t.Kind() {
	case reflect.Struct:
		return s.named(t, func() smd.Atom { return smd.Atom{Map: s.structure(t)} })
	case reflect.Map:
		return s.named(t, func() smd.Atom { return smd.Atom{Map: &smd.Map{ElementType: s.ref(t.Elem())}} })
	case reflect.Slice, reflect.Array:
		if t.Kind() == reflect.Array || t.Elem().Kind() != reflect.Uint8 {
			return list(s.ref(t.Elem()), smd.Atomic)
		}
		return scalar(smd.String) // base64
	case reflect.String:
		return scalar(smd.String)
	case reflect.Bool:
		return scalar(smd.Boolean)
	case reflect.Interface:
		return s.deduced()
	}
	return scalar(smd.Numeric)
}

func scalar(of smd.Scalar) smd.TypeRef { return smd.TypeRef{Inlined: smd.Atom{Scalar: &of}} }

func list(element smd.TypeRef, relationship smd.ElementRelationship, keys ...string) smd.TypeRef {
	return smd.TypeRef{Inlined: smd.Atom{List: &smd.List{ElementType: element, ElementRelationship: relationship, Keys: keys}}}
}

// named defines a type once, also if it contains itself.
func (s *goTypes) named(t reflect.Type, atom func() smd.Atom) smd.TypeRef {
	name, ok := s.names[t]
	if !ok {
		name = fmt.Sprint("type", len(s.names))
		s.names[t] = name
		s.Types = append(s.Types, smd.TypeDef{Name: name, Atom: atom()})
	}
	return smd.TypeRef{NamedType: &name}
}

// deduced returns the type of a value whose Go type does not show its fields.
func (s *goTypes) deduced() smd.TypeRef {
	return s.named(nil, func() smd.Atom {
		untyped, name := smd.Untyped, s.names[nil]
		self := smd.TypeRef{NamedType: &name}
		return smd.Atom{Scalar: &untyped, List: &smd.List{ElementType: self, ElementRelationship: smd.Atomic}, Map: &smd.Map{ElementType: self, ElementRelationship: smd.Separable}}
	})
}

func (s *goTypes) structure(t reflect.Type) *smd.Map {
	m := &smd.Map{ElementType: s.deduced()} // of fields that T lacks
	owner, isMeta := reflect.TypeFor[metav1.OwnerReference](), t == reflect.TypeFor[metav1.ObjectMeta]()
	if t == owner {
		m.ElementRelationship = smd.Atomic
	}
	for field := range t.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		of := field.Type
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		switch {
		case name == "" && field.Anonymous && of.Kind() == reflect.Struct:
			m.Fields = append(m.Fields, s.structure(of).Fields...)
		case !field.IsExported() || name == "-":
		case isMeta && name == "finalizers":
			m.Fields = append(m.Fields, smd.StructField{Name: name, Type: list(s.deduced(), smd.Associative)})
		case isMeta && name == "ownerReferences":
			m.Fields = append(m.Fields, smd.StructField{Name: name, Type: list(s.ref(owner), smd.Associative, "uid")})
		default:
			ref := s.ref(field.Type)
			if strings.Contains(options, "string") {
				ref = s.deduced()
			}
			m.Fields = append(m.Fields, smd.StructField{Name: cmp.Or(name, field.Name), Type: ref})
		}
	}
	return m
}
