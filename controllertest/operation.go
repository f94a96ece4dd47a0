package controllertest

import (
	"context"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json" // numbers as in what clients decode
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// An operation is something at which faults happen: a request of the controller
// that is no list or watch of a cache, or an external call. Runs of one story do not
// make them in the same order, nor equally many. So one is known by what it does,
// its signature, and by how many of the same came before it.
type operation struct {
	id       string // signature#occurrence
	write    bool
	external bool
	resource string // of a write or a read; "" if external
	step     int
	users    []string // objects of the user that existed
	watched  []string // resources that the process watched
}

// signature is what a request does: verb, resource, masked name, changed fields.
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

// tidy removes what has a meaning in plans.
func tidy(s string) string {
	return strings.NewReplacer("(", "[", ")", "]", "@", "~", "#", "~", "<", "[", ">", "]", " + ", " ~ ", "\n", " ").Replace(s)
}

// maskLocked replaces what differs between runs in a name.
func (r *run) maskLocked(name string) string {
	if masked, ok := r.generated[name]; ok {
		name = masked
	}
	name = strings.ReplaceAll(name, r.env.Namespace, "$ns")
	for uid, of := range r.uids {
		name = strings.ReplaceAll(name, string(uid), "<uid "+of.resource+">")
	}
	return maskIDs(name, func(id string) string {
		if of, ok := r.ids[id]; ok {
			return "<id " + r.maskLocked(of) + ">"
		}
		return id
	})
}

// learnIDsLocked remembers the ids that the cloud chose.
func (r *run) learnIDsLocked(resources []cloud.Resource) {
	for _, c := range resources {
		if c.ID != c.Name {
			r.ids[c.ID] = c.Name
		}
	}
}

// maskIDs replaces what may be an id of the cloud's in a text.
func maskIDs(s string, mask func(id string) string) string {
	if !strings.Contains(s, "id-") {
		return s
	}
	return chosenID.ReplaceAllStringFunc(s, mask)
}

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

// updated is the object of an update, and the version that it was made from.
func updated(op *fault.Op) (object map[string]any, version string) {
	if json.Unmarshal(op.Body, &object) != nil {
		return nil, ""
	}
	metadata, _ := object["metadata"].(map[string]any)
	version, _ = metadata["resourceVersion"].(string)
	return object, version
}

// awaitBase waits until the version that an update was made from is known: the
// controller may have seen it before the user had the answer, and before the
// observer.
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

// changed lists the paths to a depth of two that differ. If from is nil, to is a
// patch, in which null means something too.
func changed(from, to map[string]any) []string {
	var paths []string
	for _, top := range keys(from, to) {
		a, aMap := from[top].(map[string]any)
		b, bMap := to[top].(map[string]any)
		if !aMap && !bMap {
			if (from == nil || !reflect.DeepEqual(from[top], to[top])) && !ignoredField(top) {
				paths = append(paths, top)
			}
			continue
		}
		for _, key := range keys(a, b) {
			if path := top + "." + key; !ignoredField(path) && (from == nil || !reflect.DeepEqual(a[key], b[key])) {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

func keys(a, b map[string]any) []string {
	var all []string
	for k := range a {
		all = append(all, k)
	}
	for k := range b {
		if _, both := a[k]; !both {
			all = append(all, k)
		}
	}
	return all
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

// countLocked is the operation's id: the signature and how many of the same there
// were since the last fault.
func (r *run) countLocked(signature string) string {
	r.counts[signature]++
	return fmt.Sprintf("%s#%d", signature, r.counts[signature])
}
