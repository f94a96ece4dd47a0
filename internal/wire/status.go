package wire

import (
	"encoding/json"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// maxCompared bounds the bodies that Unstored compares.
const maxCompared = 64 << 10

// Metadata returns the metadata of the object in a response, and false if it is unreadable or has no
// UID. The caller can still read the whole body.
func (r *Reader) Metadata(resp *http.Response) (metav1.Object, bool) {
	body, complete := r.hold(resp)
	var o metav1.PartialObjectMetadata
	if !complete || decode(mediaType(resp.Header), body, &o) != nil {
		return nil, false
	}
	return &o, o.UID != ""
}

// Unstored reports whether the body of an update or of a merge patch has a status that the response
// lacks. It is false for an update that can have an old status, because it has no resource version, for
// bodies over 64 KiB, and if one of them is not JSON, as those of client-go's clients of built-in kinds. The caller can still read the whole body.
func (r *Reader) Unstored(req *http.Request, resp *http.Response) bool {
	switch media := mediaType(req.Header); {
	case req.Method == http.MethodPut && media == runtime.ContentTypeJSON:
	case req.Method == http.MethodPatch && (media == string(types.MergePatchType) || media == string(types.StrategicMergePatchType)):
	default:
		return false
	}
	if req.ContentLength > maxCompared || resp.ContentLength > maxCompared || mediaType(resp.Header) != runtime.ContentTypeJSON {
		return false
	}
	var wanted, stored struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Status any `json:"status"`
	}
	if json.Unmarshal(sent(req), &wanted) != nil || wanted.Status == nil || req.Method == http.MethodPut && wanted.Metadata.ResourceVersion == "" {
		return false
	}
	body, complete := r.hold(resp)
	return complete && len(body) <= maxCompared && json.Unmarshal(body, &stored) == nil && !has(stored.Status, wanted.Status)
}

// has reports whether a value has all that is not empty in another one.
func has(stored, wanted any) bool {
	switch wanted := wanted.(type) {
	case map[string]any:
		m, _ := stored.(map[string]any)
		for key, v := range wanted {
			if !has(m[key], v) {
				return false
			}
		}
		return true
	case []any:
		list, _ := stored.([]any)
		for i, v := range wanted {
			if i >= len(list) || !has(list[i], v) {
				return false
			}
		}
		return true
	case nil:
		return true
	case string:
		return wanted == "" || stored == wanted
	case bool:
		return !wanted || stored == wanted
	case float64:
		return wanted == 0 || stored == wanted
	}
	return false
}
