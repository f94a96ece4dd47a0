// Package store holds the objects of a crd.Fake: client-go's tracker with the resource
// versions, conflicts, finalizers and subresources of an API server.
package store

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
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
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
)

// Object is an object of the store.
type Object interface {
	runtime.Object
	metav1.Object
}

// Store has the objects of one kind, as JSON. It is not safe for concurrent use: the lock
// of clienttesting.Fake serializes the reactions.
type Store struct {
	scheme   *runtime.Scheme
	kind     schema.GroupVersionKind
	resource schema.GroupVersionResource
	tracker  clienttesting.ObjectTracker
	managers map[string]*managedfields.FieldManager // by subresource
	version  int                                    // the resourceVersion of the last write, which the tracker counts in step
	uids     int                                    // how many the store made
}

// New returns an empty Store. scheme knows the Go type of the kind and its list.
func New(scheme *runtime.Scheme, kind schema.GroupVersionKind, resource schema.GroupVersionResource) (*Store, error) {
	obj, err := scheme.New(kind)
	if err != nil {
		return nil, err
	}
	managers, err := newManagers(kind, reflect.TypeOf(obj))
	if err != nil {
		return nil, err
	}
	untyped := runtime.NewScheme()
	untyped.AddKnownTypeWithName(kind, &unstructured.Unstructured{})
	untyped.AddKnownTypeWithName(kind.GroupVersion().WithKind(kind.Kind+"List"), &unstructured.UnstructuredList{})
	return &Store{scheme, kind, resource, clienttesting.NewObjectTracker(untyped, nil), managers, 1, 0}, nil
}

// Add stores a copy of obj with a resourceVersion.
func (s *Store) Add(obj Object) error {
	u, err := s.from(obj)
	if err == nil {
		wipe(u, "resourceVersion")
		_, err = s.add(obj.GetNamespace(), u, nil)
	}
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

// React is the reaction to every request but a watch.
func (s *Store) React(action clienttesting.Action) (bool, runtime.Object, error) {
	obj, err := s.do(action)
	if u, ok := obj.(*unstructured.Unstructured); ok && err == nil {
		obj, err = s.typed(u)
	}
	if err != nil {
		return true, nil, err
	}
	return true, obj, nil
}

func (s *Store) do(action clienttesting.Action) (runtime.Object, error) {
	switch a := action.(type) {
	case clienttesting.ListActionImpl:
		return s.list(a.GetNamespace(), a.ListRestrictions)
	case clienttesting.GetActionImpl:
		return s.get(a.GetNamespace(), a.GetName())
	case clienttesting.CreateActionImpl:
		return s.create(a.GetNamespace(), a.GetObject(), a.CreateOptions)
	case clienttesting.UpdateActionImpl:
		return s.update(a)
	case clienttesting.PatchActionImpl:
		return s.patch(a)
	case clienttesting.DeleteActionImpl:
		return nil, s.delete(a.GetNamespace(), a.GetName(), a.DeleteOptions)
	case clienttesting.DeleteCollectionActionImpl:
		objects, err := s.selected(a.GetNamespace(), a.ListRestrictions)
		for i := 0; err == nil && i < len(objects); i++ {
			err = s.delete(objects[i].GetNamespace(), objects[i].GetName(), a.DeleteOptions)
		}
		return nil, err
	}
	return nil, fmt.Errorf("crdtest: the fake has no reaction to a %T", action)
}

func (s *Store) get(namespace, name string) (*unstructured.Unstructured, error) {
	obj, err := s.tracker.Get(s.resource, namespace, name)
	if err != nil {
		return nil, err
	}
	u := obj.(*unstructured.Unstructured)
	return u, s.normalize(u)
}

// selected returns the selected objects.
func (s *Store) selected(namespace string, by clienttesting.ListRestrictions) ([]*unstructured.Unstructured, error) {
	for _, r := range by.Fields.Requirements() {
		if r.Field != "metadata.name" && r.Field != "metadata.namespace" {
			return nil, apierrors.NewBadRequest("field label not supported: " + r.Field)
		}
	}
	list, err := s.tracker.List(s.resource, s.kind, namespace)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	err = meta.EachListItem(list, func(item runtime.Object) error {
		obj := item.(*unstructured.Unstructured)
		at := fields.Set{"metadata.name": obj.GetName(), "metadata.namespace": obj.GetNamespace()}
		if by.Labels.Matches(labels.Set(obj.GetLabels())) && by.Fields.Matches(at) {
			objects = append(objects, obj)
		}
		return nil
	})
	return objects, err
}

// list returns the list of the selected objects.
func (s *Store) list(namespace string, by clienttesting.ListRestrictions) (runtime.Object, error) {
	objects, err := s.selected(namespace, by)
	if err != nil {
		return nil, err
	}
	items := make([]runtime.Object, len(objects))
	for i, obj := range objects {
		if items[i], err = s.typed(obj); err != nil {
			return nil, err
		}
	}
	list, err := s.scheme.New(s.kind.GroupVersion().WithKind(s.kind.Kind + "List"))
	if err == nil {
		err = meta.SetList(list, items)
	}
	if l, ok := list.(metav1.ListInterface); ok {
		l.SetResourceVersion(strconv.Itoa(s.version))
	}
	return list, err
}

func (s *Store) create(namespace string, obj runtime.Object, opts metav1.CreateOptions) (*unstructured.Unstructured, error) {
	u, err := s.from(obj)
	if err != nil {
		return nil, err
	}
	if u.GetName() == "" && u.GetGenerateName() != "" {
		u.SetName(u.GetGenerateName() + utilrand.String(5))
	}
	wipe(u, "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
	u = s.managed(empty(s.kind), u, "", opts.FieldManager)
	delete(u.Object, "status")
	return s.add(namespace, u, opts.DryRun)
}

// wipe removes the fields of the metadata.
func wipe(u *unstructured.Unstructured, names ...string) {
	for _, name := range names {
		unstructured.RemoveNestedField(u.Object, "metadata", name)
	}
}

// add stores a new object with the fields that the API server sets.
func (s *Store) add(namespace string, u *unstructured.Unstructured, dryRun []string) (*unstructured.Unstructured, error) {
	u.SetNamespace(namespace)
	if u.GetUID() == "" {
		s.uids++
		u.SetUID(types.UID("uid-" + strconv.Itoa(s.uids)))
	}
	if created := u.GetCreationTimestamp(); created.IsZero() {
		u.SetCreationTimestamp(metav1.Now().Rfc3339Copy())
	}
	u.SetGeneration(max(u.GetGeneration(), 1))
	if err := s.validate(u, nil); err != nil {
		return nil, err
	}
	if rv, err := versionOf(u); err == nil && rv != 0 && len(dryRun) == 0 {
		return nil, failure(errors.New("resourceVersion should not be set on objects to be created"))
	}
	if _, err := s.get(namespace, u.GetName()); err == nil {
		return nil, apierrors.NewAlreadyExists(s.resource.GroupResource(), u.GetName())
	}
	if len(dryRun) > 0 {
		return u, nil
	}
	s.version++
	u.SetResourceVersion(strconv.Itoa(s.version))
	return u, s.tracker.Create(s.resource, u, namespace)
}

func (s *Store) update(a clienttesting.UpdateActionImpl) (*unstructured.Unstructured, error) {
	u, err := s.from(a.GetObject())
	if err != nil {
		return nil, err
	}
	old, err := s.get(a.GetNamespace(), u.GetName())
	if err != nil {
		return nil, err
	}
	if uid := u.GetUID(); uid != "" && uid != old.GetUID() {
		return nil, s.conflict(u, fmt.Sprintf("Precondition failed: UID in precondition: %s, UID in object meta: %s", uid, old.GetUID()))
	}
	u = s.managed(old, u, a.GetSubresource(), a.UpdateOptions.FieldManager)
	return s.replace(old, u, a.GetSubresource(), a.UpdateOptions.DryRun)
}

// replace stores u in the place of old as the API server does. It checks the version, keeps
// the fields that the request may not change, and removes an object in deletion that has no
// finalizer.
func (s *Store) replace(old, u *unstructured.Unstructured, subresource string, dryRun []string) (*unstructured.Unstructured, error) {
	switch rv, err := versionOf(u); {
	case err != nil:
		return nil, failure(err)
	case rv == 0:
		return nil, s.invalid(u, field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update"))
	case u.GetResourceVersion() != old.GetResourceVersion():
		return nil, s.conflict(old, "the object has been modified; please apply your changes to the latest version and try again")
	}
	if subresource == "status" {
		next := old.DeepCopy()
		next.SetManagedFields(u.GetManagedFields())
		u = moved(u, next)
	} else {
		u = moved(old, u)
	}
	keep(old, u)
	if !equality.Semantic.DeepEqual(body(old), body(u)) {
		u.SetGeneration(old.GetGeneration() + 1)
	}
	if err := s.validate(u, old); err != nil {
		return nil, err
	}
	stored, err := s.tracker.Get(s.resource, old.GetNamespace(), old.GetName())
	if err != nil || reflect.DeepEqual(untimed(stored.(*unstructured.Unstructured)), untimed(u)) {
		return old, err
	}
	return s.put(u, dryRun)
}

// moved returns to with the status of from.
func moved(from, to *unstructured.Unstructured) *unstructured.Unstructured {
	if status, ok := from.Object["status"]; ok {
		to.Object["status"] = status
	} else {
		delete(to.Object, "status")
	}
	return to
}

// keep sets the metadata that no update changes.
func keep(old, u *unstructured.Unstructured) {
	u.SetGeneration(old.GetGeneration())
	u.SetNamespace(old.GetNamespace())
	if u.GetUID() == "" {
		u.SetUID(old.GetUID())
	}
	u.SetCreationTimestamp(old.GetCreationTimestamp())
	if at := old.GetDeletionTimestamp(); at != nil {
		u.SetDeletionTimestamp(at)
	}
	if u.GetDeletionGracePeriodSeconds() == nil {
		u.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
	}
}

// put stores a changed object, or removes it.
func (s *Store) put(u *unstructured.Unstructured, dryRun []string) (*unstructured.Unstructured, error) {
	if len(dryRun) > 0 {
		return u, nil
	}
	if u.GetDeletionTimestamp() != nil && len(u.GetFinalizers()) == 0 {
		return u, s.tracker.Delete(s.resource, u.GetNamespace(), u.GetName())
	}
	s.version++
	u.SetResourceVersion(strconv.Itoa(s.version))
	return u, s.tracker.Update(s.resource, u, u.GetNamespace())
}

func (s *Store) delete(namespace, name string, opts metav1.DeleteOptions) error {
	u, err := s.get(namespace, name)
	if err != nil {
		return err
	}
	if p := opts.Preconditions; p != nil {
		if p.UID != nil && *p.UID != u.GetUID() {
			return s.conflict(u, fmt.Sprintf("Precondition failed: UID in precondition: %s, UID in object meta: %s", *p.UID, u.GetUID()))
		}
		if p.ResourceVersion != nil && *p.ResourceVersion != u.GetResourceVersion() {
			return s.conflict(u, fmt.Sprintf("Precondition failed: ResourceVersion in precondition: %s, ResourceVersion in object meta: %s", *p.ResourceVersion, u.GetResourceVersion()))
		}
	}
	if u.GetDeletionTimestamp() != nil {
		return nil
	}
	now := metav1.Now().Rfc3339Copy()
	u.SetDeletionTimestamp(&now)
	u.SetDeletionGracePeriodSeconds(new(int64))
	u.SetGeneration(u.GetGeneration() + 1)
	_, err = s.put(u, opts.DryRun)
	return err
}

// managed returns u with the managed fields after a write that is not an apply. A request
// without a field manager is of the client's user agent.
func (s *Store) managed(live, u *unstructured.Unstructured, subresource, manager string) *unstructured.Unstructured {
	if manager == "" {
		manager, _, _ = strings.Cut(rest.DefaultKubernetesUserAgent(), "/")
	}
	written, err := s.managers[subresource].Update(live.DeepCopy(), u.DeepCopy(), manager)
	if err != nil { // u does not fit the Go type
		u.SetManagedFields(live.GetManagedFields())
		return u
	}
	return written.(*unstructured.Unstructured)
}
