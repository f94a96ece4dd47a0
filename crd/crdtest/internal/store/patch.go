package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clienttesting "k8s.io/client-go/testing"
)

func (s *Store) patch(a clienttesting.PatchActionImpl) (*unstructured.Unstructured, error) {
	subresource := a.GetSubresource()
	if s.managers[subresource] == nil {
		return nil, apierrors.NewNotFound(s.resource.GroupResource(), a.GetName())
	}
	old, err := s.get(a.GetNamespace(), a.GetName())
	if a.GetPatchType() == types.ApplyPatchType {
		return s.apply(old, err, a)
	}
	if !json.Valid(a.GetPatch()) {
		return nil, apierrors.NewBadRequest("the patch is not JSON")
	}
	if err != nil {
		return nil, err
	}
	after, err := s.patched(old, a)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(after, &u.Object); err != nil {
		return nil, s.invalid(old, field.Invalid(field.NewPath("patch"), string(after), err.Error()))
	}
	if u.GetKind() == "" {
		return nil, s.invalid(old, field.Invalid(field.NewPath("patch"), string(after), "kind is missing"))
	}
	if u.GetAPIVersion() == "" {
		return nil, apierrors.NewInternalError(errors.New("apiVersion is missing"))
	}
	if err := s.normalize(u); err != nil {
		return nil, err
	}
	if u.GetName() != old.GetName() || u.GetNamespace() != old.GetNamespace() {
		return nil, apierrors.NewBadRequest("the name or namespace of the object is not that of the request")
	}
	return s.replace(old, s.managed(old, u, subresource, a.PatchOptions.FieldManager), subresource, a.PatchOptions.DryRun)
}

// patched returns the JSON of old after the patch.
func (s *Store) patched(old *unstructured.Unstructured, a clienttesting.PatchActionImpl) ([]byte, error) {
	before, err := json.Marshal(old)
	if err != nil {
		return nil, err
	}
	var after []byte
	switch a.GetPatchType() {
	case types.JSONPatchType:
		patch, err := jsonpatch.DecodePatch(a.GetPatch())
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if after, err = patch.Apply(before); err != nil { // as the API server responds to a patch that does not apply
			return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "", 0, false)
		}
	case types.MergePatchType:
		if err := utiljson.Unmarshal(a.GetPatch(), &map[string]any{}); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if after, err = jsonpatch.MergePatch(before, a.GetPatch()); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	default:
		return nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch", s.resource.GroupResource(), a.GetName(), "a custom resource takes JSON patches, merge patches and applies", 0, false)
	}
	return after, nil
}

// apply applies the configuration of the action to old. err is the error of reading old.
func (s *Store) apply(old *unstructured.Unstructured, err error, a clienttesting.PatchActionImpl) (*unstructured.Unstructured, error) {
	config := &unstructured.Unstructured{}
	if err := config.UnmarshalJSON(a.GetPatch()); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	absent := apierrors.IsNotFound(err)
	switch {
	case absent && a.GetSubresource() == "":
		old = empty(s.kind)
	case err != nil:
		return nil, err
	}
	opts := a.PatchOptions
	applied, err := s.managers[a.GetSubresource()].Apply(old.DeepCopy(), config, opts.FieldManager, opts.Force != nil && *opts.Force)
	if status := apierrors.APIStatus(nil); err != nil && !errors.As(err, &status) {
		return nil, failure(err)
	} else if err != nil {
		return nil, err
	}
	u := applied.(*unstructured.Unstructured)
	if absent && u.GetUID() != "" {
		return nil, s.conflict(u, fmt.Sprintf("uid mismatch: the provided object specified uid %s, and no existing object was found", u.GetUID()))
	}
	if _, err := versionOf(u); err != nil {
		return nil, failure(err)
	}
	if absent {
		if len(opts.DryRun) == 0 {
			wipe(u, "resourceVersion") // the response to a dry run has it
		}
		wipe(u, "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
		delete(u.Object, "status")
		return s.add(a.GetNamespace(), u, opts.DryRun)
	}
	return s.replace(old, u, a.GetSubresource(), opts.DryRun)
}
