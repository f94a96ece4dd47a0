package finalizer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const name = "example.com/bucket"

var configMaps = schema.GroupResource{Resource: "configmaps"}

// model answers Patch as the API server does for one object: the same JSON patch
// library, 422 for a patch that does not apply and for a finalizer added too late,
// and deletion when the last finalizer of a deleting object goes. server_test.go
// holds it against the real one.
type model struct {
	live    *corev1.ConfigMap // nil: there is none
	patches int
	before  func(*model) // runs before each patch: others at work
	refuse  error        // the response to each patch that is no dry run; nil means none
}

func (m *model) Patch(_ context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*corev1.ConfigMap, error) {
	if pt != types.JSONPatchType || len(subresources) > 0 {
		panic(fmt.Sprintf("unexpected patch %s of %v", pt, subresources))
	}
	m.patches++
	if m.before != nil {
		m.before(m)
	}
	if m.refuse != nil && len(opts.DryRun) == 0 {
		return nil, m.refuse
	}
	if m.live == nil || m.live.Name != name {
		return nil, apierrors.NewNotFound(configMaps, name)
	}
	patch, err := jsonpatch.DecodePatch(data)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	before, err := json.Marshal(m.live)
	if err != nil {
		return nil, err
	}
	after, err := patch.Apply(before)
	if err != nil {
		return nil, failedPatch(err)
	}
	var next corev1.ConfigMap
	if err := json.Unmarshal(after, &next); err != nil {
		return nil, err
	}
	if added := sets.New(next.Finalizers...).Difference(sets.New(m.live.Finalizers...)); m.live.DeletionTimestamp != nil && len(added) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ConfigMap"}, name, field.ErrorList{
			field.Forbidden(field.NewPath("metadata", "finalizers"), "no new finalizers can be added if the object is being deleted"),
		})
	}
	if len(opts.DryRun) > 0 {
		return &next, nil
	}
	m.live = &next
	if next.DeletionTimestamp != nil && len(next.Finalizers) == 0 {
		m.live = nil
	}
	return next.DeepCopy(), nil
}

// failedPatch is the API server's answer to a patch that does not apply.
func failedPatch(err error) error {
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
}

// answering is a client with one answer to everything.
type answering struct {
	object *corev1.ConfigMap
	err    error
	calls  int
}

func (a *answering) Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*corev1.ConfigMap, error) {
	a.calls++
	return a.object, a.err
}

var errBoom = errors.New("boom")

func object(uid types.UID, deleting bool, finalizers ...string) *corev1.ConfigMap {
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "default", UID: uid, ResourceVersion: "1", Finalizers: finalizers}}
	if deleting {
		o.DeletionTimestamp = &metav1.Time{Time: epoch}
	}
	return o
}
