package applyset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/internal/apply"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/definition"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/parallel"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/rejection"
)

// batchCall is one call of a method of a Batch. A Set has one in each of its calls.
type batchCall struct {
	*Batch
	deletion bool                    // otherwise an apply
	objects  []*batchObject          // in the order of the caller
	failed   bool                    // whether an object or its check failed
	mapper   *meta.DefaultRESTMapper // of the kinds of the objects

	first, second []*batchObject            // the stages
	crds          []*batchObject            // the CustomResourceDefinitions among first
	definedKinds  []schema.GroupVersionKind // that crds define
}

// validate checks the Batch and all objects. An error is about the Batch. If an object is
// not valid, the call has failed before it begins.
func (b *Batch) validate(objects []any, deletion bool) (*batchCall, error) {
	if err := b.checkFields(deletion); err != nil {
		return nil, err
	}
	c := &batchCall{Batch: b, deletion: deletion, mapper: meta.NewDefaultRESTMapper(nil)}
	for _, object := range objects {
		c.add(object)
	}
	positions := map[identity]int{}
	for i, o := range c.objects {
		if o.err != nil {
			continue
		}
		id := idOf(o.manifest)
		if j, ok := positions[id]; ok {
			o.err = fmt.Errorf("metadata.name: object %d is the same one: merge the two", j)
			continue
		}
		positions[id] = i
		o.err = c.resolve(o)
	}
	c.failed = slices.ContainsFunc(c.objects, func(o *batchObject) bool { return o.err != nil })
	return c, nil
}

// add reads an object into its stage.
func (c *batchCall) add(object any) {
	o := &batchObject{manifest: new(unstructured.Unstructured)}
	o.manifest.Object, o.err = readObject(object, c.deletion)
	c.objects = append(c.objects, o)
	switch o.manifest.GroupVersionKind().GroupKind() {
	case crdKind():
		c.definedKinds = append(c.definedKinds, definition.AddKinds(c.mapper, o.manifest)...)
		c.crds = append(c.crds, o)
		c.first = append(c.first, o)
	case namespaceKind():
		c.first = append(c.first, o)
	default:
		c.second = append(c.second, o)
	}
}

// applyFirst applies the first stage, and waits until the API server serves its kinds.
func (c *batchCall) applyFirst(ctx context.Context, request func(context.Context, *batchObject) error) {
	c.run(ctx, c.first, func(ctx context.Context, o *batchObject) error {
		if err := request(ctx, o); err != nil || o.live == nil || o.live.GetDeletionTimestamp() == nil {
			return err
		}
		return errDeleting
	})
	if len(c.crds) > 0 && !c.failed {
		c.waitForCRDs(ctx)
		if !c.failed && ctx.Err() == nil && slices.ContainsFunc(c.definedKinds, func(gvk schema.GroupVersionKind) bool {
			_, err := c.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
			return meta.IsNoMatchError(err)
		}) {
			meta.MaybeResetRESTMapper(c.Mapper)
		}
	}
}

// applyObject applies one object.
func (c *batchCall) applyObject(ctx context.Context, o *batchObject, force bool) (err error) {
	config := o.manifest
	if !force {
		// The API server does not report all conflicts; see apply.Taken.
		live, err := c.client(o).Get(ctx, config.GetName(), metav1.GetOptions{})
		switch {
		case err == nil:
			encoded, err := apply.Encode(config)
			if err == nil {
				err = apply.Taken(ctx, c.Manager, encoded, live)
			}
			if err == nil {
				config, err = apply.Guard(encoded, config, live, true)
			}
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return err
			}
		case !kube.IsGone(err, config.GetName()) && !rejection.IsUnserved(err):
			return fmt.Errorf("read the object before the apply: %w", err)
		}
	}
	o.live, err = apply.Dynamic(ctx, func(gvr schema.GroupVersionResource, namespace string) apply.Patcher {
		return c.client(o)
	}, c.mapper, config, metav1.ApplyOptions{FieldManager: c.Manager, Force: force})
	if err != nil {
		return fmt.Errorf("apply as %q: %w", c.Manager, err)
	}
	return nil
}

// run calls f for the objects without an error, in parallel, and returns after all calls.
// If the call has failed before, it makes no calls.
func (c *batchCall) run(ctx context.Context, objects []*batchObject, f func(context.Context, *batchObject) error) {
	slots := semaphore.NewWeighted(int64(cmp.Or(c.Concurrency, parallel.Default)))
	var wg sync.WaitGroup
	for _, o := range objects {
		if o.err != nil {
			continue
		}
		if c.failed {
			o.err = errSkipped
			continue
		}
		if slots.Acquire(ctx, 1) != nil || ctx.Err() != nil {
			o.err = fmt.Errorf("%w: %w", ErrNotTried, context.Cause(ctx))
			continue
		}
		wg.Go(func() {
			defer slots.Release(1)
			err := parallel.ErrGoexit
			defer func() { o.err = err }()
			err = f(ctx, o)
		})
	}
	wg.Wait()
	c.failed = c.failed || slices.ContainsFunc(objects, func(o *batchObject) bool { return o.err != nil })
}

// retryDefined calls f a second time for the objects of a stage that failed because the API
// server did not yet serve their CustomResourceDefinition. No event shows when it does.
func (c *batchCall) retryDefined(ctx context.Context, stage []*batchObject, f func(context.Context, *batchObject) error) {
	var late []*batchObject
	var errs []error
	for _, o := range stage {
		if slices.Contains(c.definedKinds, o.manifest.GroupVersionKind()) && (rejection.IsUnserved(o.err) || rejection.IsUndeclared(o.err) || apierrors.IsInvalid(o.err)) {
			late, errs = append(late, o), append(errs, o.err)
		}
	}
	if len(late) == 0 {
		return
	}
	select {
	case <-ctx.Done(): // so run tries none
	case <-time.After(time.Second):
	}
	for _, o := range late {
		o.err = nil
	}
	c.failed = false
	c.run(ctx, late, f)
	for i, o := range late {
		if errors.Is(o.err, ErrNotTried) {
			o.err = errs[i] // its first request failed
		}
	}
	c.failed = slices.ContainsFunc(stage, func(o *batchObject) bool { return o.err != nil })
}

// err joins the errors of the objects.
func (c *batchCall) err() error {
	var errs []error
	for i, o := range c.objects {
		if o.err != nil {
			errs = append(errs, &ObjectError{
				Index: i, Kind: o.manifest.GroupVersionKind(), Namespace: o.manifest.GetNamespace(), Name: o.manifest.GetName(), Err: o.err,
			})
		}
	}
	return errors.Join(errs...)
}

// client returns the client for the resource of an object.
func (c *batchCall) client(o *batchObject) dynamic.ResourceInterface {
	if ns := o.manifest.GetNamespace(); ns != "" {
		return c.Client.Resource(o.resource).Namespace(ns)
	}
	return c.Client.Resource(o.resource)
}
