// Package store holds the objects of a crd.Fake: client-go's tracker with the resource
// versions, conflicts, finalizers and subresources of an API server.
package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"strconv"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
)

// Object is an object of the store.
type Object interface {
	runtime.Object
	metav1.Object
}

// Store has the objects of one kind. It is not safe for concurrent use: the lock of
// clienttesting.Fake serializes the reactions.
type Store struct {
	scheme   *runtime.Scheme
	kind     schema.GroupVersionKind
	resource schema.GroupVersionResource
	tracker  clienttesting.ObjectTracker
	version  int // the resourceVersion of the last write, which the tracker counts in step
}

// New returns an empty Store. scheme knows the kind and its list.
func New(scheme *runtime.Scheme, kind schema.GroupVersionKind, resource schema.GroupVersionResource) *Store {
	return &Store{scheme: scheme, kind: kind, resource: resource, tracker: clienttesting.NewObjectTracker(scheme, nil), version: 1}
}

// Add stores a copy of obj with a resourceVersion.
func (s *Store) Add(obj Object) error {
	_, err := s.add(obj.GetNamespace(), obj.DeepCopyObject().(Object), nil)
	return err
}

// Watch is the reaction to a watch.
func (s *Store) Watch(action clienttesting.Action) (bool, watch.Interface, error) {
	opts := action.(clienttesting.WatchActionImpl).ListOptions
	if opts.SendInitialEvents != nil {
		return true, nil, apierrors.NewBadRequest("the fake streams no lists") // informers then list
	}
	w, err := s.tracker.Watch(s.resource, action.GetNamespace(), opts)
	return true, w, err
}

// React is the reaction to every request but a watch. Its action is a copy.
func (s *Store) React(action clienttesting.Action) (bool, runtime.Object, error) {
	obj, err := s.do(action)
	if err != nil {
		return true, nil, err
	}
	return true, obj, nil
}

func (s *Store) do(action clienttesting.Action) (runtime.Object, error) {
	switch a := action.(type) {
	case clienttesting.ListActionImpl:
		list, _, err := s.list(a.GetNamespace(), a.ListRestrictions)
		return list, err
	case clienttesting.GetActionImpl:
		return s.tracker.Get(s.resource, a.GetNamespace(), a.GetName())
	case clienttesting.CreateActionImpl:
		return s.create(a.GetNamespace(), a.GetObject().(Object), a.CreateOptions.FieldManager, a.CreateOptions.DryRun)
	case clienttesting.UpdateActionImpl:
		obj := a.GetObject().(Object)
		old, err := s.get(a.GetNamespace(), obj.GetName())
		if err != nil {
			return nil, err
		}
		return s.replace(old, obj, change{a.GetSubresource(), a.UpdateOptions.FieldManager, a.UpdateOptions.DryRun, false})
	case clienttesting.PatchActionImpl:
		return s.patch(a)
	case clienttesting.DeleteActionImpl:
		return nil, s.delete(a.GetNamespace(), a.GetName(), a.DeleteOptions)
	case clienttesting.DeleteCollectionActionImpl:
		_, objects, err := s.list(a.GetNamespace(), a.ListRestrictions)
		for i := 0; err == nil && i < len(objects); i++ {
			err = s.delete(objects[i].GetNamespace(), objects[i].GetName(), a.DeleteOptions)
		}
		return nil, err
	}
	return nil, fmt.Errorf("crd: the fake has no reaction to %Object", action)
}

// object returns an empty object.
func (s *Store) object() Object {
	obj, _ := s.scheme.New(s.kind) // New's caller registered it
	return obj.(Object)
}

func (s *Store) get(namespace, name string) (Object, error) {
	obj, err := s.tracker.Get(s.resource, namespace, name)
	if err != nil {
		return nil, err
	}
	return obj.(Object), nil
}

// list returns the list of the selected objects, and the objects.
func (s *Store) list(namespace string, selected clienttesting.ListRestrictions) (runtime.Object, []Object, error) {
	for _, r := range selected.Fields.Requirements() {
		if r.Field != "metadata.name" && r.Field != "metadata.namespace" {
			return nil, nil, apierrors.NewBadRequest("field label not supported: " + r.Field)
		}
	}
	list, err := s.tracker.List(s.resource, s.kind, namespace)
	if err != nil {
		return nil, nil, err
	}
	items := []runtime.Object{}
	var objects []Object
	err = meta.EachListItem(list, func(item runtime.Object) error {
		obj := item.(Object)
		at := fields.Set{"metadata.name": obj.GetName(), "metadata.namespace": obj.GetNamespace()}
		if selected.Labels.Matches(labels.Set(obj.GetLabels())) && selected.Fields.Matches(at) {
			items, objects = append(items, obj), append(objects, obj)
		}
		return nil
	})
	if err == nil {
		err = meta.SetList(list, items)
	}
	return list, objects, err
}

func (s *Store) create(namespace string, obj Object, manager string, dryRun []string) (Object, error) {
	if obj.GetResourceVersion() != "" {
		return obj, apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	}
	if obj.GetName() == "" && obj.GetGenerateName() != "" {
		obj.SetName(obj.GetGenerateName() + utilrand.String(5))
	}
	obj.SetUID("")
	obj.SetGeneration(0)
	obj.SetCreationTimestamp(metav1.Time{})
	obj.SetDeletionTimestamp(nil)
	content := contentOf(obj)
	delete(content, "status") // as the API server does
	obj, err := s.managed(s.object(), s.from(content), "", manager)
	if err != nil {
		return obj, err
	}
	return s.add(namespace, obj, dryRun)
}

// add stores a new object with the fields that the API server sets.
func (s *Store) add(namespace string, obj Object, dryRun []string) (Object, error) {
	if obj.GetName() == "" {
		return obj, apierrors.NewInvalid(s.kind.GroupKind(), "", field.ErrorList{field.Required(field.NewPath("metadata", "name"), "name or generateName is required")})
	}
	if _, err := s.get(namespace, obj.GetName()); err == nil {
		return obj, apierrors.NewAlreadyExists(s.resource.GroupResource(), obj.GetName())
	}
	obj.SetNamespace(namespace)
	if obj.GetUID() == "" {
		obj.SetUID(types.UID("uid-" + strconv.Itoa(s.version+1)))
	}
	if created := obj.GetCreationTimestamp(); created.IsZero() {
		obj.SetCreationTimestamp(metav1.Now().Rfc3339Copy())
	}
	obj.SetGeneration(max(obj.GetGeneration(), 1))
	if len(dryRun) > 0 {
		return obj, nil
	}
	s.version++
	obj.SetResourceVersion(strconv.Itoa(s.version))
	return obj, s.tracker.Create(s.resource, obj, namespace)
}

// change is a write of an object that exists.
type change struct {
	subresource, manager string
	dryRun               []string
	applied              bool // the managed fields come from an apply
}

// replace stores obj in the place of old as the API server does. It checks the
// preconditions, keeps the fields that the request may not change, and removes an object
// in deletion that has no finalizer.
func (s *Store) replace(old, obj Object, c change) (Object, error) {
	if rv := obj.GetResourceVersion(); rv != "" && rv != old.GetResourceVersion() {
		return obj, s.conflict(old, "the object has been modified; please apply your changes to the latest version and try again")
	}
	if uid := obj.GetUID(); uid != "" && uid != old.GetUID() {
		return obj, s.conflict(old, fmt.Sprintf("Precondition failed: UID in precondition: %s, UID in object meta: %s", uid, old.GetUID()))
	}
	before, after := contentOf(old), contentOf(obj)
	switch c.subresource {
	case "":
		delete(after, "status")
		if status, ok := before["status"]; ok {
			after["status"] = status
		}
	case "status":
		status, ok := after["status"]
		if after = maps.Clone(before); ok {
			after["status"] = status
		} else {
			delete(after, "status")
		}
	default:
		return obj, apierrors.NewNotFound(s.resource.GroupResource(), old.GetName())
	}
	next := s.from(after)
	next.SetName(old.GetName())
	next.SetNamespace(old.GetNamespace())
	next.SetUID(old.GetUID())
	next.SetResourceVersion(old.GetResourceVersion())
	next.SetCreationTimestamp(old.GetCreationTimestamp())
	next.SetDeletionTimestamp(old.GetDeletionTimestamp())
	next.SetGeneration(old.GetGeneration())
	if c.applied {
		next.SetManagedFields(obj.GetManagedFields())
	} else {
		var err error
		if next, err = s.managed(old, next, c.subresource, c.manager); err != nil {
			return obj, err
		}
	}
	after = contentOf(next)
	if reflect.DeepEqual(before, after) {
		return old, nil
	}
	for _, content := range []map[string]any{before, after} {
		delete(content, "metadata")
		delete(content, "status")
	}
	if !reflect.DeepEqual(before, after) {
		next.SetGeneration(old.GetGeneration() + 1)
	}
	return s.put(next, c.dryRun)
}

// put stores a changed object, or removes it.
func (s *Store) put(obj Object, dryRun []string) (Object, error) {
	if len(dryRun) > 0 {
		return obj, nil
	}
	if obj.GetDeletionTimestamp() != nil && len(obj.GetFinalizers()) == 0 {
		return obj, s.tracker.Delete(s.resource, obj.GetNamespace(), obj.GetName())
	}
	s.version++
	obj.SetResourceVersion(strconv.Itoa(s.version))
	return obj, s.tracker.Update(s.resource, obj, obj.GetNamespace())
}

func (s *Store) patch(a clienttesting.PatchActionImpl) (Object, error) {
	c := change{a.GetSubresource(), a.PatchOptions.FieldManager, a.PatchOptions.DryRun, false}
	old, err := s.get(a.GetNamespace(), a.GetName())
	if a.GetPatchType() == types.ApplyPatchType {
		return s.apply(old, err, a, c)
	}
	if err != nil {
		return old, err
	}
	before, err := json.Marshal(old)
	if err != nil {
		return old, err
	}
	var after []byte
	switch a.GetPatchType() {
	case types.JSONPatchType:
		patch, err := jsonpatch.DecodePatch(a.GetPatch())
		if err != nil {
			return old, apierrors.NewBadRequest(err.Error())
		}
		if after, err = patch.Apply(before); err != nil { // as the API server responds to a patch that does not apply
			return old, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "", 0, false)
		}
	case types.MergePatchType:
		if after, err = jsonpatch.MergePatch(before, a.GetPatch()); err != nil {
			return old, apierrors.NewBadRequest(err.Error())
		}
	default:
		return old, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch", s.resource.GroupResource(), a.GetName(), "a custom resource takes JSON patches, merge patches and applies", 0, false)
	}
	obj := s.object()
	if err := json.Unmarshal(after, obj); err != nil {
		return old, apierrors.NewBadRequest(err.Error())
	}
	return s.replace(old, obj, c)
}

// apply applies the configuration of the action to old. err is the error of reading old.
func (s *Store) apply(old Object, err error, a clienttesting.PatchActionImpl, c change) (Object, error) {
	config := &unstructured.Unstructured{}
	if err := config.UnmarshalJSON(a.GetPatch()); err != nil {
		return old, apierrors.NewBadRequest(err.Error())
	}
	absent := apierrors.IsNotFound(err)
	switch {
	case absent && c.subresource == "" && config.GetUID() == "":
		old = s.object()
	case absent && c.subresource == "":
		return old, s.conflict(config, fmt.Sprintf("uid mismatch: the provided object specified uid %s, and no existing object was found", config.GetUID()))
	case err != nil:
		return old, err
	}
	manager, err := s.manager(c.subresource)
	if err != nil {
		return old, err
	}
	live := old.DeepCopyObject().(Object)
	live.GetObjectKind().SetGroupVersionKind(s.kind)
	applied, err := manager.Apply(live, config, c.manager, a.PatchOptions.Force != nil && *a.PatchOptions.Force)
	if err != nil {
		return old, err
	}
	obj := applied.(Object)
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	if absent {
		return s.add(a.GetNamespace(), obj, c.dryRun)
	}
	c.applied = true
	return s.replace(old, obj, c)
}

func (s *Store) delete(namespace, name string, opts metav1.DeleteOptions) error {
	obj, err := s.get(namespace, name)
	if err != nil {
		return err
	}
	if p := opts.Preconditions; p != nil {
		if p.UID != nil && *p.UID != obj.GetUID() {
			return s.conflict(obj, fmt.Sprintf("Precondition failed: UID in precondition: %s, UID in object meta: %s", *p.UID, obj.GetUID()))
		}
		if p.ResourceVersion != nil && *p.ResourceVersion != obj.GetResourceVersion() {
			return s.conflict(obj, fmt.Sprintf("Precondition failed: ResourceVersion in precondition: %s, ResourceVersion in object meta: %s", *p.ResourceVersion, obj.GetResourceVersion()))
		}
	}
	if obj.GetDeletionTimestamp() != nil {
		return nil
	}
	now := metav1.Now().Rfc3339Copy()
	obj.SetDeletionTimestamp(&now)
	obj.SetGeneration(obj.GetGeneration() + 1)
	_, err = s.put(obj, opts.DryRun)
	return err
}

// managed returns obj with the managed fields after a write that is not an apply.
func (s *Store) managed(live, obj Object, subresource, name string) (Object, error) {
	manager, err := s.manager(subresource)
	if err != nil {
		return obj, err
	}
	live = live.DeepCopyObject().(Object)
	live.GetObjectKind().SetGroupVersionKind(s.kind)
	obj.GetObjectKind().SetGroupVersionKind(s.kind)
	written, err := manager.Update(live, obj, name)
	if err != nil {
		return obj, err
	}
	written.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return written.(Object), nil
}

func (s *Store) manager(subresource string) (*managedfields.FieldManager, error) {
	return managedfields.NewDefaultFieldManager(managedfields.NewDeducedTypeConverter(), s.scheme, s.scheme, s.scheme,
		s.kind, s.kind.GroupVersion(), subresource, nil)
}

func (s *Store) conflict(obj metav1.Object, message string) error {
	return apierrors.NewConflict(s.resource.GroupResource(), obj.GetName(), errors.New(message))
}

// contentOf returns the JSON of an object as maps. newKind has checked that it has one.
func contentOf(obj any) map[string]any {
	var content map[string]any
	if data, err := json.Marshal(obj); err == nil {
		_ = json.Unmarshal(data, &content)
	}
	return content
}

// from is the reverse of contentOf.
func (s *Store) from(content map[string]any) Object {
	obj := s.object()
	if data, err := json.Marshal(content); err == nil {
		_ = json.Unmarshal(data, obj)
	}
	return obj
}
