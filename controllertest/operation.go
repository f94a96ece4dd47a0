package controllertest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json" // numbers as in the objects of clients
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/controllertest/internal/fields"
)

// An operation is a request of the controller, other than a list or a watch of a cache, or
// an external call. Runs of one script make operations in different orders and numbers,
// so an operation is named by its signature and the number of equal ones before it.
type operation struct {
	id          string // signature#occurrence
	write       bool
	external    bool
	conditional bool      // on a resource version
	object      objectKey // empty if external
	resource    string    // of a write or a read; "" if external
	step        int
	users       []string // objects of the user that existed
	watched     []string // resources that the process watched
	made        string   // the object of a write if the controller has created it before, as resource/name
}

// verb returns the first word of the operation. That of an external call is "external".
func (o operation) verb() string {
	verb, _, _ := strings.Cut(o.id, " ")
	return verb
}

// signatureLocked returns the effect of a request: verb, resource, masked name and changed
// fields.
func (r *run) signatureLocked(op *fault.Op) string {
	resource := op.Resource
	if op.Subresource != "" {
		resource += "/" + op.Subresource
	}
	s := op.Verb + " " + resource
	if name := op.Name; name != "" {
		if op.Generated {
			name += "*"
		}
		s += " " + r.maskLocked(name)
	}
	if fields := r.fieldsLocked(op); len(fields) > 0 {
		s += " " + strings.Join(fields, ",")
	}
	return tidy(s)
}

// tidy replaces the characters with a meaning in plans.
func tidy(s string) string {
	return strings.NewReplacer("(", "[", ")", "]", "@", "~", "#", "~", "<", "[", ">", "]", " + ", " ~ ", "\n", " ").Replace(s)
}

// maskLocked replaces the parts of a text that differ in each run: generated names, the
// namespace, uids, hashes such as external.Token makes of them, and ids of the cloud.
func (r *run) maskLocked(text string) string {
	for _, name := range r.generatedLocked() {
		text = strings.ReplaceAll(text, name, r.generated[name])
	}
	if r.env.Namespace != "" {
		text = strings.ReplaceAll(text, r.env.Namespace, "$ns")
	}
	for uid, of := range r.uids {
		text = strings.ReplaceAll(text, string(uid), "<uid "+of.resource+">")
	}
	return maskIDs(maskHashes(text), func(id string) string {
		if of, ok := r.ids[id]; ok {
			return "<id " + r.maskLocked(of) + ">"
		}
		return id
	})
}

// generatedLocked returns the generated names. A name that contains another name, as a
// Pod's contains its Job's, comes first.
func (r *run) generatedLocked() []string {
	if len(r.generated) == 0 {
		return nil
	}
	return slices.SortedFunc(maps.Keys(r.generated), func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
}

// learnIDsLocked stores the ids that the cloud chose.
func (r *run) learnIDsLocked(resources []cloud.Resource) {
	for _, c := range resources {
		if c.ID != c.Name {
			r.ids[c.ID] = c.Name
		}
	}
}

// maskIDs replaces possible ids of the cloud in a text.
func maskIDs(s string, mask func(id string) string) string {
	if !strings.Contains(s, "id-") {
		return s
	}
	return chosenID.ReplaceAllStringFunc(s, mask)
}

// maskHashes replaces hashes of 128 bits in the names of requests and of resources of the cloud. In
// objects they stay: there they can be of a content, and fields that differ without faults are not
// compared.
func maskHashes(s string) string {
	if len(s) < 32 {
		return s
	}
	return hash.ReplaceAllString(s, "<hash>")
}

var hash = regexp.MustCompile(`\b[0-9a-f]{32}\b`)

var chosenID = regexp.MustCompile(`\bid-[0-9]+\b`)

// fieldsLocked names the fields that a write changes, to a depth of two.
func (r *run) fieldsLocked(op *fault.Op) []string {
	var paths []string
	switch {
	case op.Verb == "update":
		object, version := updated(op)
		base := r.versions[version]
		if version == "" || base == nil {
			return nil
		}
		paths = changed(base, object)
	case op.Verb == "patch" && op.ContentType == string(types.JSONPatchType):
		var patch []struct {
			Op   string `json:"op"`
			Path string `json:"path"`
		}
		if json.Unmarshal(op.Body, &patch) != nil {
			return nil
		}
		for _, p := range patch {
			parts := strings.Split(strings.TrimPrefix(p.Path, "/"), "/")
			if path := strings.Join(parts[:min(2, len(parts))], "."); p.Op != "test" && !ignoredField(path) {
				paths = append(paths, path)
			}
		}
	case op.Verb == "patch" || op.Verb == "apply":
		var object map[string]any
		if yaml.Unmarshal(op.Body, &object) != nil {
			return nil
		}
		paths = changed(nil, object)
	}
	for i := range paths {
		paths[i] = r.maskLocked(paths[i])
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// updated returns the object of an update, and its base version.
func updated(op *fault.Op) (object map[string]any, version string) {
	if json.Unmarshal(op.Body, &object) != nil {
		return nil, ""
	}
	metadata, _ := object["metadata"].(map[string]any)
	version, _ = metadata["resourceVersion"].(string)
	return object, version
}

// awaitBase waits until the base version of an update is known, because the controller may
// have seen it before the observer and before the user had the response.
func (r *run) awaitBase(ctx context.Context, op *fault.Op) {
	_, version := updated(op)
	if version == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, baseTimeout)
	defer cancel()
	for {
		r.mu.Lock()
		changed, known := r.changed, r.versions[version] != nil
		r.mu.Unlock()
		if known || sleep(ctx, changed, baseTimeout) != nil {
			return
		}
	}
}

const baseTimeout = 200 * time.Millisecond

// changed lists the different paths to a depth of two. If from is nil, to is a patch, and
// a null in it is a change.
func changed(from, to map[string]any) []string {
	var paths []string
	for _, top := range fields.Keys(from, to) {
		a, aMap := from[top].(map[string]any)
		b, bMap := to[top].(map[string]any)
		if !aMap && !bMap {
			if (from == nil || !reflect.DeepEqual(from[top], to[top])) && !ignoredField(top) {
				paths = append(paths, top)
			}
			continue
		}
		for _, key := range fields.Keys(a, b) {
			if path := top + "." + key; !ignoredField(path) && (from == nil || !reflect.DeepEqual(a[key], b[key])) {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

func ignoredField(path string) bool {
	switch path {
	case "apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.uid", "metadata.resourceVersion",
		"metadata.managedFields", "metadata.creationTimestamp", "metadata.generation", "metadata.selfLink",
		"metadata.deletionTimestamp", "metadata.deletionGracePeriodSeconds":
		return true
	}
	return false
}

// countLocked returns the id of an operation: the signature and its number since the last
// fault.
func (r *run) countLocked(signature string) string {
	r.counts[signature]++
	return fmt.Sprintf("%s#%d", signature, r.counts[signature])
}
