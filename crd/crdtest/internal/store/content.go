package store

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// empty returns an object of the kind.
func empty(kind schema.GroupVersionKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(kind)
	return u
}

// from returns the JSON of an object.
func (s *Store) from(obj runtime.Object) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	data, err := json.Marshal(obj)
	if err == nil {
		err = utiljson.Unmarshal(data, &u.Object) // keeps int64
	}
	if err != nil {
		return nil, err
	}
	u.SetGroupVersionKind(s.kind)
	return u, s.normalize(u)
}

// typed is the reverse of from. Its object has no kind, as one that a client returns.
func (s *Store) typed(u *unstructured.Unstructured) (Object, error) {
	obj, err := s.scheme.New(s.kind)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(u.Object)
	if err == nil {
		err = json.Unmarshal(data, obj)
	}
	if err != nil {
		return nil, s.invalid(u, field.Invalid(nil, nil, err.Error()))
	}
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return obj.(Object), nil
}

// normalize removes nulls and unknown metadata, as the API server does.
func (s *Store) normalize(u *unstructured.Unstructured) error {
	var of metav1.PartialObjectMetadata
	data, err := json.Marshal(u.Object)
	if err == nil {
		err = utiljson.Unmarshal(data, &of)
	}
	if err != nil {
		return s.invalid(u, field.Invalid(field.NewPath("metadata"), nil, err.Error()))
	}
	u.Object["metadata"], err = runtime.DefaultUnstructuredConverter.ToUnstructured(&of.ObjectMeta)
	prune(u.Object)
	return err
}

// prune removes the nulls of objects.
func prune(value any) {
	if list, ok := value.([]any); ok {
		for _, v := range list {
			prune(v)
		}
	}
	if content, ok := value.(map[string]any); ok {
		maps.DeleteFunc(content, func(_ string, v any) bool { prune(v); return v == nil })
	}
}

// hasNull reports whether a null is in the value.
func hasNull(value any) bool {
	switch value := value.(type) {
	case []any:
		return slices.ContainsFunc(value, hasNull)
	case map[string]any:
		return slices.ContainsFunc(slices.Collect(maps.Values(value)), hasNull)
	}
	return value == nil
}

// versionOf returns the resourceVersion, or 0 if the object has none.
func versionOf(u *unstructured.Unstructured) (uint64, error) {
	if u.GetResourceVersion() == "" {
		return 0, nil
	}
	return strconv.ParseUint(u.GetResourceVersion(), 10, 64)
}

// body returns the fields whose changes the generation counts.
func body(u *unstructured.Unstructured) map[string]any {
	content := withoutMetadata(u)
	delete(content, "status")
	return content
}

func withoutMetadata(u *unstructured.Unstructured) map[string]any {
	content := maps.Clone(u.Object)
	delete(content, "metadata")
	return content
}

// untimed returns the object without the times of its managed fields.
func untimed(u *unstructured.Unstructured) map[string]any {
	u = u.DeepCopy()
	entries := u.GetManagedFields()
	for i := range entries {
		entries[i].Time = nil
	}
	u.SetManagedFields(entries)
	return u.Object
}

// validate checks the metadata, and that the object is of the kind and fits the Go type.
func (s *Store) validate(u, old *unstructured.Unstructured) error {
	if u.GroupVersionKind() != s.kind {
		return s.invalid(u, field.Invalid(field.NewPath("kind"), u.GetKind(), "must be "+s.kind.Kind+" of "+s.kind.GroupVersion().String()))
	}
	if hasNull(withoutMetadata(u)) {
		return s.invalid(u, field.TypeInvalid(nil, nil, "a field is null"))
	}
	if _, err := s.typed(u); err != nil {
		return err
	}
	at := field.NewPath("metadata")
	errs := validation.ValidateObjectMetaAccessor(u, u.GetNamespace() != "", validation.NameIsDNSSubdomain, at)
	if old != nil {
		errs = append(errs, validation.ValidateObjectMetaAccessorUpdate(u, old, at)...)
	}
	if len(errs) > 0 {
		return s.invalid(u, errs...)
	}
	return nil
}

func (s *Store) invalid(u *unstructured.Unstructured, errs ...*field.Error) error {
	return apierrors.NewInvalid(s.kind.GroupKind(), u.GetName(), errs)
}

func (s *Store) conflict(obj metav1.Object, message string) error {
	return apierrors.NewConflict(s.resource.GroupResource(), obj.GetName(), errors.New(message))
}

// failure returns the response of an API server that fails with the error.
func failure(err error) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error()}}
}
