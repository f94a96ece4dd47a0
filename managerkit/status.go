package managerkit

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/controllerkit/controllerkit/internal/fields"
	"github.com/controllerkit/controllerkit/status"
)

// UpdateStatus writes the status of obj, which was read by the manager's client and changed in place. It takes
// the place of r.Status().Update(ctx, site):
//
//	site.Status.URL = url
//	err := managerkit.UpdateStatus(ctx, sites, site)
//
// It is status.Update from the object of the manager's cache to obj, with the rules of package status: if the
// two are equal, no request is sent. If the cache has another version than obj, UpdateStatus reads the object from the
// API server. If that has changed, it returns a Conflict. Changes outside of the status are not written. obj becomes
// the stored object, and after an error it is not modified. In place of UpdateStatus, use status.Update for a kind that
// the manager does not cache, because the manager's client begins to cache a kind with its first read.
func UpdateStatus[T client.Object](ctx context.Context, c *Client[T], obj T) error {
	if err := c.check("UpdateStatus", obj); err != nil {
		return err
	}
	before, err := c.before(ctx, obj)
	if err != nil {
		return fmt.Errorf("managerkit: UpdateStatus: %w", err)
	}
	stored, err := status.Update(ctx, c.Namespace(obj.GetNamespace()), before, func(target T) error { return setStatus(target, obj.DeepCopyObject()) })
	if err != nil {
		return err
	}
	reflect.ValueOf(obj).Elem().Set(reflect.ValueOf(stored).Elem()) // of one type: see check
	return nil
}

// before returns the object as it was when obj was read.
func (c *Client[T]) before(ctx context.Context, obj T) (T, error) {
	for _, reader := range []client.Reader{c.kind.writes, c.kind.live} {
		before := c.kind.empty()
		if err := reader.Get(ctx, client.ObjectKeyFromObject(obj), before); err != nil && !apierrors.IsNotFound(err) {
			return before, err
		}
		if before.GetResourceVersion() == obj.GetResourceVersion() && before.GetUID() == obj.GetUID() {
			return before, nil
		}
	}
	var none T
	return none, apierrors.NewConflict(schema.GroupResource{Group: c.kind.Group, Resource: c.kind.Kind}, obj.GetName(),
		errors.New("it has changed since it was read: reconcile again from a newer copy"))
}

// setStatus gives target the status of obj.
func setStatus(target, obj any) error {
	if u, ok := target.(fields.Unstructured); ok {
		content := u.UnstructuredContent()
		delete(content, "status")
		if s := fields.Of(obj); s != nil {
			content["status"] = s
		}
		return nil
	}
	to, from := fields.Member(reflect.ValueOf(target).Elem(), "status"), fields.Member(reflect.ValueOf(obj).Elem(), "status")
	if !to.CanSet() || !from.IsValid() {
		return fmt.Errorf("%T has no field status", target)
	}
	to.Set(from)
	return nil
}
