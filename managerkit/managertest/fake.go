package managertest

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// Fake returns the fake client of b with the objects, and its reader in place of mgr.GetAPIReader, for the unit test
// of a reconciler:
//
//	c, live := managertest.Fake(fake.NewClientBuilder().WithStatusSubresource(&v1.Website{}), site)
//	sites, err := managerkit.NewClient[*v1.Website](c, live)
//
// An object without a uid gets one, as from an API server: one of objects, and one that Create, Apply or an
// apply by Patch makes. Objects of b.WithObjects keep an empty uid, which packages such as finalizer, owner and status reject.
// objects are not modified. Objects have their managedFields, as b.WithReturnManagedFields sets, so that
// ssa.ApplyChanged skips an apply that changes nothing. A JSON patch behaves as on an API server: a dry run returns the
// patched object, a patch that changes nothing makes no new version, and the packages see a failed test as a Conflict.
//
// Packages ssa, status and finalizer send patches, so a test that intercepts Create and Update sees no call:
// intercept Patch, with interceptor.NewClient around the result. A fake has no cache that is late and no garbage
// collector: see [Start] for tests with an API server.
func Fake(b *fake.ClientBuilder, objects ...client.Object) (c client.WithWatch, live client.Reader) {
	for _, obj := range objects {
		own := obj.DeepCopyObject().(client.Object)
		identify(own)
		b = b.WithObjects(own)
	}
	c = interceptor.NewClient(b.WithReturnManagedFields().Build(), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			uid := obj.GetUID()
			identify(obj)
			err := c.Create(ctx, obj, opts...)
			if err != nil {
				obj.SetUID(uid)
			}
			return err
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			var options client.PatchOptions
			options.ApplyOptions(opts)
			if patch.Type() == types.JSONPatchType {
				return patchJSON(ctx, c, obj, patch, &options)
			}
			if err := c.Patch(ctx, obj, patch, opts...); err != nil {
				return err
			}
			if patch.Type() != types.ApplyPatchType || !identify(obj) || len(options.DryRun) > 0 {
				return nil
			}
			return client.IgnoreNotFound(c.Update(ctx, obj)) // the apply can have removed the last finalizer
		},
		Apply: func(ctx context.Context, c client.WithWatch, config runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			if err := c.Apply(ctx, config, opts...); err != nil {
				return err
			}
			var options client.ApplyOptions
			options.ApplyOptions(opts)
			data, err := json.Marshal(config)
			if err != nil {
				return err
			}
			obj := &unstructured.Unstructured{}
			if err := obj.UnmarshalJSON(data); err != nil {
				return err
			}
			if !identify(obj) || len(options.DryRun) > 0 {
				return nil
			}
			if err := c.Update(ctx, obj); err != nil {
				return client.IgnoreNotFound(err)
			}
			if data, err = obj.MarshalJSON(); err != nil {
				return err
			}
			return json.Unmarshal(data, config)
		},
	})
	return c, struct{ client.Reader }{c}
}

// patchJSON is Patch for a JSON patch. The fake returns an empty object for a dry run, stores a new version for a patch
// that only tests, and returns a failed test as an error without a status. Interceptors of the builder see a Get before each JSON
// patch, and no JSON patch that is a dry run or changes nothing.
func patchJSON(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, options *client.PatchOptions) error {
	kind, err := c.GroupVersionKindFor(obj)
	if err != nil {
		return err
	}
	data, err := patch.Data(obj)
	if err != nil {
		return err
	}
	operations, err := jsonpatch.DecodePatch(data)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	live := &unstructured.Unstructured{} // all fields, also for a PartialObjectMetadata
	live.SetGroupVersionKind(kind)
	if err := c.Get(ctx, client.ObjectKeyFromObject(obj), live); err != nil {
		return err
	}
	before, err := live.MarshalJSON()
	if err != nil {
		return err
	}
	after, err := operations.Apply(before)
	if err != nil {
		return notApplied()
	}
	if len(options.DryRun) == 0 && !jsonpatch.Equal(before, after) {
		err := c.Patch(ctx, obj, patch, options)
		if errors.Is(err, jsonpatch.ErrTestFailed) { // the object changed after the Get
			return notApplied()
		}
		return err
	}
	reflect.ValueOf(obj).Elem().SetZero()
	return json.Unmarshal(after, obj)
}

// notApplied returns the response of an API server to a JSON patch that does not apply.
func notApplied() error {
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "", 0, false)
}

// identify gives an object without a uid one, and reports whether it did.
func identify(obj client.Object) bool {
	if obj.GetUID() != "" {
		return false
	}
	obj.SetUID(uuid.NewUUID())
	return true
}
