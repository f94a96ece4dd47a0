package wire

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// Refusal has the preconditions of a write that the API server rejected because the
// object had changed.
type Refusal struct {
	UID     types.UID // "" if absent
	Version string    // "" if absent, or if another object caused the conflict
}

// Refusal returns the preconditions of a write that was rejected with 409 or 422, and
// false if the response is not a conflict. A failed test of a JSON patch, which is a 422,
// is one. These are not: a create whose name is taken, an invalid object, and an apply
// of fields that other managers own.
//
// The caller can still read the whole body.
func (r *Reader) Refusal(req *http.Request, resp *http.Response, t Target) (Refusal, bool) {
	media := mediaType(req.Header)
	if req.Method == http.MethodPost && t.Subresource == "" || resp.StatusCode != http.StatusConflict && media != string(types.JSONPatchType) {
		return Refusal{}, false
	}
	body, complete := r.hold(resp)
	var status metav1.Status
	if !complete || decode(mediaType(resp.Header), body, &status) != nil {
		return Refusal{}, true // only the code is known, and a live read harms no caller
	}
	conflict := status.Reason == metav1.StatusReasonConflict
	// The response to a patch that does not apply names no object. The response to a
	// patch whose result is invalid does.
	inapplicable := status.Reason == metav1.StatusReasonInvalid && (status.Details == nil || status.Details.Name == "")
	if !conflict && (resp.StatusCode == http.StatusConflict || !inapplicable) {
		return Refusal{}, false
	}
	carried := preconditions(req, media, t)
	switch owned := ofFields(status.Details); {
	case owned && carried.Version == "":
		return Refusal{}, false // a cache does not show the managers in time or late
	case owned || !conflict || !ofObject(status.Details, t):
		return Refusal{}, true
	}
	return carried, true
}

// ofFields reports whether a server-side apply conflicts with other managers.
func ofFields(details *metav1.StatusDetails) bool {
	return details != nil && slices.ContainsFunc(details.Causes, func(c metav1.StatusCause) bool {
		return c.Type == metav1.CauseTypeFieldManagerConflict
	})
}

// ofObject reports whether the conflict is about the object of the request. It can be
// about another object, such as a quota, or come from an admission webhook. The
// object's version does not explain those.
func ofObject(details *metav1.StatusDetails, t Target) bool {
	if details == nil || t.Name == "" || details.Name != t.Name {
		return false
	}
	// The kind is the resource, or, for a deletion, the kind, which has capitals.
	kind, _, _ := strings.Cut(details.Kind, "/")
	return kind == t.Resource.Resource || kind != strings.ToLower(kind)
}

// preconditions returns the UID and the version that the request requires of its object.
func preconditions(req *http.Request, media string, t Target) (p Refusal) {
	if options := deleteOptions(req, t); options != nil {
		if options.Preconditions != nil && options.Preconditions.ResourceVersion != nil {
			p.Version = *options.Preconditions.ResourceVersion
			if options.Preconditions.UID != nil {
				p.UID = *options.Preconditions.UID
			}
		}
		return p
	}
	body := sent(req)
	switch types.PatchType(media) {
	case types.JSONPatchType:
		return Refusal{Version: patchedVersion(body)}
	case types.MergePatchType, types.StrategicMergePatchType:
		media = runtime.ContentTypeJSON
	case types.ApplyYAMLPatchType:
		media = runtime.ContentTypeJSON
		var err error
		if body, err = yaml.YAMLToJSON(body); err != nil {
			return p
		}
	case types.ApplyCBORPatchType:
		media = runtime.ContentTypeCBOR
	}
	var o object
	if decode(media, body, &o) != nil {
		return p
	}
	return Refusal{UID: o.Metadata.UID, Version: o.Metadata.ResourceVersion}
}

// patchedVersion returns the resource version that a JSON patch tests or sets.
func patchedVersion(patch []byte) (version string) {
	var operations []struct {
		Op    string
		Path  string
		Value any
	}
	if json.Unmarshal(patch, &operations) != nil {
		return ""
	}
	for _, o := range operations {
		if value, ok := o.Value.(string); ok && o.Path == "/metadata/resourceVersion" && o.Op != "remove" {
			version = value
		}
	}
	return version
}

// DryRun reports whether the body of a deletion or an eviction asks for a dry run.
func DryRun(req *http.Request, t Target) bool {
	options := deleteOptions(req, t)
	return options != nil && len(options.DryRun) > 0
}

// deleteOptions returns the options in the body of a deletion or an eviction. It returns
// nil for other writes, and if the body is unreadable.
func deleteOptions(req *http.Request, t Target) *metav1.DeleteOptions {
	var e *eviction
	var into message
	switch {
	case req.Method == http.MethodDelete:
		e = &eviction{}
		into = &e.DeleteOptions
	case req.Method == http.MethodPost && t.Subresource == "eviction":
		e = &eviction{}
		into = e
	default:
		return nil
	}
	if decode(mediaType(req.Header), sent(req), into) != nil {
		return nil
	}
	return &e.DeleteOptions
}

// DeleteOptions returns the options of a deletion from its body.
func DeleteOptions(header http.Header, body []byte) (*metav1.DeleteOptions, error) {
	var e eviction
	if err := decode(mediaType(header), body, &e.DeleteOptions); err != nil {
		return nil, err
	}
	return &e.DeleteOptions, nil
}

// sent returns the body of the request, nil if it cannot be read a second time.
func sent(req *http.Request) []byte {
	if req.GetBody == nil {
		return nil
	}
	r, err := req.GetBody()
	if err != nil {
		return nil
	}
	defer r.Close()
	body, err := io.ReadAll(io.LimitReader(r, maxHeld))
	if err != nil {
		return nil
	}
	return body
}
