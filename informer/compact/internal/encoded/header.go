package encoded

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Numbers of further fields of the metadata in protobuf.
const (
	generateNameNumber = 2
	generationNumber   = 7
	creationNumber     = 8
	deletionNumber     = 9
	graceNumber        = 10
	labelsNumber       = 11
	annotationsNumber  = 12
	ownersNumber       = 13
	finalizersNumber   = 14
	managersNumber     = 17
)

// of decodes one field of the metadata. The other fields of the result are undefined. It is nil if
// the object has no such field, whose absence so costs no allocation.
func (o *Object) of(number int32, member string, into func(*metav1.ObjectMeta) any) (m *metav1.ObjectMeta) {
	if o.format == JSON {
		m = &metav1.ObjectMeta{}
		_ = o.memberOf(member, into(m)) // an object that does not decode has none
		return m
	}
	_ = o.eachMetadata(func(metadata []byte) error {
		begin, end := -1, 0
		for rest := metadata; len(rest) > 0; {
			f, after, err := next(rest)
			if err != nil {
				return err
			}
			if f.number == number {
				if begin < 0 {
					begin = len(metadata) - len(rest)
				}
				end = len(metadata) - len(after)
			}
			rest = after
		}
		if begin < 0 {
			return nil
		}
		if m == nil {
			m = &metav1.ObjectMeta{}
		}
		return m.Unmarshal(metadata[begin:end])
	})
	return m
}

// fields calls f with each value of a field of the metadata in protobuf. It allocates nothing, unlike of.
func (o *Object) fields(number int32, f func(value []byte) error) {
	_ = o.eachMetadata(func(metadata []byte) error { // an object that does not decode has none
		return Fields(metadata, func(n int32, value []byte) error {
			if n == number {
				return f(value)
			}
			return nil
		})
	})
}

// entries returns a map of the metadata in protobuf.
func (o *Object) entries(number int32) (m map[string]string) {
	o.fields(number, func(entry []byte) error {
		var key, value string
		err := Fields(entry, func(n int32, text []byte) error {
			switch n {
			case 1:
				key = string(text)
			case 2:
				value = string(text)
			}
			return nil
		})
		if m == nil {
			m = map[string]string{}
		}
		m[key] = value
		return err
	})
	return m
}

// GetName implements metav1.Object.
func (o *Object) GetName() string { return o.text(name) }

// GetNamespace implements metav1.Object.
func (o *Object) GetNamespace() string { return o.text(namespace) }

// GetUID implements metav1.Object.
func (o *Object) GetUID() types.UID { return types.UID(o.text(uid)) }

// GetResourceVersion implements metav1.Object.
func (o *Object) GetResourceVersion() string { return o.text(version) }

// GetGenerateName implements metav1.Object.
func (o *Object) GetGenerateName() (v string) {
	if m := o.of(generateNameNumber, "generateName", func(m *metav1.ObjectMeta) any { return &m.GenerateName }); m != nil {
		v = m.GenerateName
	}
	return v
}

// GetSelfLink implements metav1.Object. The API server has set none since version 1.20.
func (o *Object) GetSelfLink() string { return "" }

// GetGeneration implements metav1.Object.
func (o *Object) GetGeneration() (v int64) {
	if m := o.of(generationNumber, "generation", func(m *metav1.ObjectMeta) any { return &m.Generation }); m != nil {
		v = m.Generation
	}
	return v
}

// GetCreationTimestamp implements metav1.Object.
func (o *Object) GetCreationTimestamp() (v metav1.Time) {
	if m := o.of(creationNumber, "creationTimestamp", func(m *metav1.ObjectMeta) any { return &m.CreationTimestamp }); m != nil {
		v = m.CreationTimestamp
	}
	return v
}

// GetDeletionTimestamp implements metav1.Object.
func (o *Object) GetDeletionTimestamp() (v *metav1.Time) {
	if o.present&hasDeletion == 0 {
		return nil
	}
	if o.format == JSON {
		if m := o.of(deletionNumber, "deletionTimestamp", func(m *metav1.ObjectMeta) any { return &m.DeletionTimestamp }); m != nil {
			v = m.DeletionTimestamp
		}
		return v
	}
	o.fields(deletionNumber, func(value []byte) error {
		v = &metav1.Time{}
		return v.Unmarshal(value)
	})
	return v
}

// GetDeletionGracePeriodSeconds implements metav1.Object.
func (o *Object) GetDeletionGracePeriodSeconds() (v *int64) {
	if m := o.of(graceNumber, "deletionGracePeriodSeconds", func(m *metav1.ObjectMeta) any { return &m.DeletionGracePeriodSeconds }); m != nil {
		v = m.DeletionGracePeriodSeconds
	}
	return v
}

// GetLabels implements metav1.Object.
func (o *Object) GetLabels() (v map[string]string) {
	if o.present&hasLabels == 0 {
		return nil
	}
	if o.format == JSON {
		if m := o.of(labelsNumber, "labels", func(m *metav1.ObjectMeta) any { return &m.Labels }); m != nil {
			v = m.Labels
		}
		return v
	}
	return o.entries(labelsNumber)
}

// GetAnnotations implements metav1.Object.
func (o *Object) GetAnnotations() (v map[string]string) {
	if o.present&hasAnnotations == 0 {
		return nil
	}
	if o.format == JSON {
		if m := o.of(annotationsNumber, "annotations", func(m *metav1.ObjectMeta) any { return &m.Annotations }); m != nil {
			v = m.Annotations
		}
		return v
	}
	return o.entries(annotationsNumber)
}

// GetFinalizers implements metav1.Object.
func (o *Object) GetFinalizers() (v []string) {
	if o.present&hasFinalizers == 0 {
		return nil
	}
	if o.format == JSON {
		if m := o.of(finalizersNumber, "finalizers", func(m *metav1.ObjectMeta) any { return &m.Finalizers }); m != nil {
			v = m.Finalizers
		}
		return v
	}
	o.fields(finalizersNumber, func(value []byte) error {
		v = append(v, string(value))
		return nil
	})
	return v
}

// GetOwnerReferences implements metav1.Object.
func (o *Object) GetOwnerReferences() (v []metav1.OwnerReference) {
	if o.present&hasOwners == 0 {
		return nil
	}
	if o.format == JSON {
		if m := o.of(ownersNumber, "ownerReferences", func(m *metav1.ObjectMeta) any { return &m.OwnerReferences }); m != nil {
			v = m.OwnerReferences
		}
		return v
	}
	o.fields(ownersNumber, func(value []byte) error {
		v = append(v, metav1.OwnerReference{})
		return v[len(v)-1].Unmarshal(value)
	})
	return v
}

// GetManagedFields implements metav1.Object.
func (o *Object) GetManagedFields() (v []metav1.ManagedFieldsEntry) {
	if m := o.of(managersNumber, "managedFields", func(m *metav1.ObjectMeta) any { return &m.ManagedFields }); m != nil {
		v = m.ManagedFields
	}
	return v
}

// GetObjectKind implements runtime.Object. An object of a cache has no kind.
func (o *Object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object.
func (o *Object) DeepCopyObject() runtime.Object { return o }

// immutable has the methods of metav1.Object that an Object cannot have.
type immutable struct{}

const isImmutable = "compact: an object of the cache cannot be changed: decode it, and change that"

func (immutable) SetNamespace(string)                          { panic(isImmutable) }
func (immutable) SetName(string)                               { panic(isImmutable) }
func (immutable) SetGenerateName(string)                       { panic(isImmutable) }
func (immutable) SetUID(types.UID)                             { panic(isImmutable) }
func (immutable) SetResourceVersion(string)                    { panic(isImmutable) }
func (immutable) SetGeneration(int64)                          { panic(isImmutable) }
func (immutable) SetSelfLink(string)                           { panic(isImmutable) }
func (immutable) SetCreationTimestamp(metav1.Time)             { panic(isImmutable) }
func (immutable) SetDeletionTimestamp(*metav1.Time)            { panic(isImmutable) }
func (immutable) SetDeletionGracePeriodSeconds(*int64)         { panic(isImmutable) }
func (immutable) SetLabels(map[string]string)                  { panic(isImmutable) }
func (immutable) SetAnnotations(map[string]string)             { panic(isImmutable) }
func (immutable) SetFinalizers([]string)                       { panic(isImmutable) }
func (immutable) SetOwnerReferences([]metav1.OwnerReference)   { panic(isImmutable) }
func (immutable) SetManagedFields([]metav1.ManagedFieldsEntry) { panic(isImmutable) }
