package consistency

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"
)

// refusal is a write that the server refused because the object had changed.
type refusal struct {
	resource schema.GroupResource
	object   string    // namespace/name
	uid      types.UID // what the write carried; "" means none
	rv       string    // what the write carried
	shown    bool      // the store held the object after the refusal
	history  int       // of the store, when it was recorded
}

// Refused records that a write of the object was refused with a conflict, when it
// carried the version rv: the owner is ready when the resource's store holds the object
// at a newer version, or holds it no more, as for a write MaxWait after the last
// recorded one at latest. An rv that is not a version (empty, "0", not a number) stands
// for a write that carried none: it is not waited for, and LiveRead is true in the
// owner's next run; so it is when the store has no GetByKey and List, or has reached rv
// and never holds the object. A transport from Wrap calls it by itself. ownerUID is as
// for WroteAt.
func (s *Store) Refused(owner types.NamespacedName, ownerUID types.UID, resource schema.GroupResource, object types.NamespacedName, rv string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusedLocked(owner, ownerUID, refusal{resource: resource, object: cache.NamespacedNameAsObjectName(object).String(), rv: rv})
}

func (s *Store) refusedLocked(owner types.NamespacedName, ownerUID types.UID, r refusal) {
	rec := s.recordLocked(owner, ownerUID)
	if _, err := resourceversion.CompareResourceVersion(r.rv, r.rv); err != nil {
		rec.live = time.Now()
		return
	}
	r.history = s.historyLocked(r.resource)
	same := func(old refusal) bool { return old.resource == r.resource && old.object == r.object }
	if i := slices.IndexFunc(rec.refused, same); i < 0 {
		rec.refused = append(rec.refused, r)
	} else if old := rec.refused[i]; old.history != r.history || reached(r.rv, old.rv) {
		rec.refused[i] = r
	} // else an older version was tried: what passes the newer one passes this one too
	rec.last = time.Now()
}

// refusalsLocked forgets the refusals of which the cause is in the cache, and returns
// the first other one with the version that its object has there.
func (s *Store) refusalsLocked(rec *record) (lag StaleError, _ verdict) {
	for len(rec.refused) > 0 {
		r := &rec.refused[0]
		held, ok := s.objectsLocked(r.resource)
		if !ok || r.history != s.historyLocked(r.resource) {
			rec.live = time.Now() // nothing will tell
		} else if read, seen := r.seen(held, s.stores[r.resource].version()); !seen {
			return StaleError{GroupResource: r.resource, ReadRV: read, RefusedRV: r.rv, RefusedObject: r.object}, behind
		} else if read == "" && !r.shown {
			// It was there when the write was refused, and the store should know it.
			rec.live = time.Now()
		}
		rec.refused = slices.Delete(rec.refused, 0, 1)
	}
	return StaleError{}, ready
}

// seen reports whether the store, which has reached version, shows what came after the
// refused version, and returns the version of its copy, "" if it has none.
func (r *refusal) seen(store objects, version string) (read string, _ bool) {
	item, exists, err := store.GetByKey(r.object)
	if err != nil {
		return "", false
	}
	if !exists {
		// A store that is not there yet may still come to show the refused version
		// itself. One that is holds the object no more, or never does.
		order, err := resourceversion.CompareResourceVersion(version, r.rv)
		return "", err == nil && order >= 0
	}
	r.shown = true
	object, err := meta.Accessor(item)
	if err != nil {
		return "", false
	}
	read = object.GetResourceVersion()
	order, err := resourceversion.CompareResourceVersion(read, r.rv)
	return read, err == nil && order > 0 || r.uid != "" && object.GetUID() != "" && object.GetUID() != r.uid
}

// refused records the answer to a write that may be a conflict: 409, or the 422 of a
// JSON patch of which a test has failed.
func (w *write) refused(req *http.Request, resp *http.Response, t target) {
	media, body := sent(req)
	if req.Method == http.MethodPost && t.subresource == "" || resp.StatusCode != http.StatusConflict && media != string(types.JSONPatchType) {
		return // creates have no version, and what is not valid is no conflict
	}
	r := refusal{resource: t.resource, object: cache.ObjectName{Namespace: t.namespace, Name: t.name}.String()}
	answer, complete := hold(resp)
	var status metav1.Status
	// Of what cannot be read only the code is known; a live read harms nothing.
	if complete && decode(mediaType(resp.Header), answer, &status) == nil {
		conflict := status.Reason == metav1.StatusReasonConflict
		// A patch that does not apply names no object. One that makes an object that is
		// not valid does.
		inapplicable := status.Reason == metav1.StatusReasonInvalid && (status.Details == nil || status.Details.Name == "")
		if !conflict && (resp.StatusCode == http.StatusConflict || !inapplicable) {
			return // AlreadyExists, or not valid
		}
		uid, rv := carried(req, t, media, body)
		switch fields := ofFields(status.Details); {
		case fields && rv == "":
			return // another manager's fields; no cache has to do with it
		case conflict && !fields && ofObject(status.Details, t):
			r.uid, r.rv = uid, rv
		}
	}
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	w.store.refusedLocked(w.owner, "", r)
}

// ofFields reports whether a server-side apply wanted fields that others manage.
func ofFields(details *metav1.StatusDetails) bool {
	return details != nil && slices.ContainsFunc(details.Causes, func(c metav1.StatusCause) bool {
		return c.Type == metav1.CauseTypeFieldManagerConflict
	})
}

// ofObject reports whether the answer is about the object of the request. A conflict
// may be about another one, such as a quota, or be an admission webhook's; the object's
// own version says nothing of those.
func ofObject(details *metav1.StatusDetails, t target) bool {
	if details == nil || t.name == "" || details.Name != t.name {
		return false
	}
	// It is the resource, or its kind if a deletion is refused. Kinds have capitals.
	kind, _, _ := strings.Cut(details.Kind, "/")
	return kind == t.resource.Resource || kind != strings.ToLower(kind)
}

// sent returns what the request carried, nil if it cannot be had a second time. Only
// a refused request is looked at.
func sent(req *http.Request) (media string, body []byte) {
	media = mediaType(req.Header)
	if req.GetBody == nil {
		return media, nil
	}
	r, err := req.GetBody()
	if err != nil {
		return media, nil
	}
	defer r.Close()
	if body, err = io.ReadAll(io.LimitReader(r, maxAnswer)); err != nil {
		return media, nil
	}
	return media, body
}

// carried returns the UID and the version that a request wants its object to have, ""
// for what it does not say.
func carried(req *http.Request, t target, media string, body []byte) (uid types.UID, rv string) {
	switch types.PatchType(media) {
	case types.JSONPatchType:
		return "", patchedVersion(body)
	case types.MergePatchType, types.StrategicMergePatchType:
		media = runtime.ContentTypeJSON
	case types.ApplyYAMLPatchType:
		media = runtime.ContentTypeJSON
		plain, err := yaml.YAMLToJSON(body)
		if err != nil {
			return "", ""
		}
		body = plain
	case types.ApplyCBORPatchType:
		media = runtime.ContentTypeCBOR
	}
	if req.Method == http.MethodDelete || t.subresource == "eviction" {
		options := deleteOptions(req, t)
		if options == nil || options.Preconditions == nil || options.Preconditions.ResourceVersion == nil {
			return "", ""
		}
		if options.Preconditions.UID != nil {
			uid = *options.Preconditions.UID
		}
		return uid, *options.Preconditions.ResourceVersion
	}
	var o object
	if err := decode(media, body, &o); err != nil {
		return "", ""
	}
	return o.Metadata.UID, o.Metadata.ResourceVersion
}

// patchedVersion returns the version that a JSON patch tests, or sets.
func patchedVersion(patch []byte) (rv string) {
	var operations []struct {
		Op    string
		Path  string
		Value any
	}
	if err := json.Unmarshal(patch, &operations); err != nil {
		return ""
	}
	for _, o := range operations {
		if value, ok := o.Value.(string); ok && o.Path == "/metadata/resourceVersion" && o.Op != "remove" {
			rv = value
		}
	}
	return rv
}
