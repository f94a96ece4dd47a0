package crdtest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/crd"
)

// gadget is a custom resource whose spec has a field of each sort.
type gadget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   gadgetSpec   `json:"spec,omitempty"`
	Status gadgetStatus `json:"status,omitempty"`
}

type gadgetSpec struct {
	Text    string            `json:"text,omitempty"`
	Big     int64             `json:"big,omitempty"`
	Pointer *int32            `json:"pointer,omitempty"`
	List    []string          `json:"list"` // null if it is nil
	Map     map[string]string `json:"map,omitempty"`
	Nested  *gadgetNested     `json:"nested,omitempty"`
	Nests   []gadgetNested    `json:"nests,omitempty"`
}

type gadgetNested struct {
	A     string        `json:"a,omitempty"`
	B     int32         `json:"b"`
	Inner *gadgetNested `json:"inner,omitempty"`
}

type gadgetStatus struct {
	Phase              string `json:"phase,omitempty"`
	ObservedGeneration int64  `json:"observedGeneration,omitempty"`
}

func (g *gadget) DeepCopyObject() runtime.Object {
	out := &gadget{}
	data, err := json.Marshal(g)
	if err == nil {
		err = json.Unmarshal(data, out)
	}
	if err != nil {
		panic(err)
	}
	return out
}

// gadgets returns the CustomResourceDefinition.
func gadgets() map[string]any {
	type m = map[string]any
	text, integer := m{"type": "string"}, m{"type": "integer", "format": "int64"}
	nested := func(inner m) m {
		properties := m{"a": text, "b": integer}
		if inner != nil {
			properties["inner"] = inner
		}
		return m{"type": "object", "properties": properties}
	}
	return m{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": m{"name": "gadgets.crd.example.com"},
		"spec": m{
			"group": "crd.example.com", "scope": "Namespaced", "names": m{"kind": "Gadget", "plural": "gadgets"},
			"versions": []any{m{
				"name": "v1", "served": true, "storage": true, "subresources": m{"status": m{}},
				"schema": m{"openAPIV3Schema": m{"type": "object", "properties": m{
					"spec": m{"type": "object", "properties": m{
						"text": text, "big": integer, "pointer": integer, "list": m{"type": "array", "items": text},
						"map":    m{"type": "object", "additionalProperties": text},
						"nested": nested(nested(nil)), "nests": m{"type": "array", "items": nested(nil)},
					}},
					"status": m{"type": "object", "properties": m{"phase": text, "observedGeneration": integer}},
				}}},
			}},
		},
	}
}

// A request is one request as both sides send it. In its body, $version, $old and $uid stand
// for those of the object, which differ between the sides.
type request struct {
	verb, subresource string
	name, manager     string
	force, dryRun     bool
	written           int      // the object to write: 0 is a new one, 1 the latest one, 2 the one before
	edits             []string // of the object to write
	body              string
}

func (r request) String() string {
	text := strings.Trim(fmt.Sprintf("%s %s/%s", r.verb, r.name, r.subresource), "/")
	switch r.verb {
	case "create", "update":
		text += fmt.Sprintf(" of object -%d with %q", r.written, r.edits)
	default:
		text += " " + r.body
	}
	return fmt.Sprintf("%s by %q force=%t dryRun=%t", text, r.manager, r.force, r.dryRun)
}

// edits are the changes that a create or an update makes to its object.
var edits = map[string]func(g *gadget){
	"text":           func(g *gadget) { g.Spec.Text += "x" },
	"no text":        func(g *gadget) { g.Spec.Text = "" },
	"big":            func(g *gadget) { g.Spec.Big = 1<<53 + 1 },
	"bigger":         func(g *gadget) { g.Spec.Big = 1<<63 - 1 },
	"pointer":        func(g *gadget) { g.Spec.Pointer = new(int32) },
	"list":           func(g *gadget) { g.Spec.List = append(g.Spec.List, "x") },
	"no list":        func(g *gadget) { g.Spec.List = nil },
	"map":            func(g *gadget) { g.Spec.Map = map[string]string{"k": "v", "l": "w"} },
	"map entry":      func(g *gadget) { g.Spec.Map = map[string]string{"k": "x"} },
	"nested":         func(g *gadget) { g.Spec.Nested = &gadgetNested{A: "a", Inner: &gadgetNested{B: 3}} },
	"no nested":      func(g *gadget) { g.Spec.Nested = nil },
	"nests":          func(g *gadget) { g.Spec.Nests = []gadgetNested{{A: "a"}, {B: 1}} },
	"status":         func(g *gadget) { g.Status.Phase += "x" },
	"big status":     func(g *gadget) { g.Status.ObservedGeneration = 1<<53 + 3 },
	"no status":      func(g *gadget) { g.Status = gadgetStatus{} },
	"label":          func(g *gadget) { g.Labels = map[string]string{"l": g.Labels["l"] + "x"} },
	"bad label":      func(g *gadget) { g.Labels = map[string]string{"not a label!": ""} },
	"no annotations": func(g *gadget) { g.Annotations = map[string]string{} },
	"annotation":     func(g *gadget) { g.Annotations = map[string]string{"a": "b"} },
	"finalizer f":    func(g *gadget) { g.Finalizers = append(g.Finalizers, "example.com/f") },
	"finalizer g":    func(g *gadget) { g.Finalizers = append(g.Finalizers, "example.com/g") },
	"bad finalizer":  func(g *gadget) { g.Finalizers = append(g.Finalizers, "not a finalizer") },
	"no finalizer":   func(g *gadget) { g.Finalizers = nil },
	"owner": func(g *gadget) {
		g.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "o", UID: "owner-o"}}
	},
	"owner without uid": func(g *gadget) {
		g.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "o"}}
	},
	"two controllers": func(g *gadget) {
		g.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "ConfigMap", Name: "o", UID: "owner-o", Controller: new(true)},
			{APIVersion: "v1", Kind: "ConfigMap", Name: "p", UID: "owner-p", Controller: new(true)},
		}
	},
	"no version":        func(g *gadget) { g.ResourceVersion = "" },
	"version 1":         func(g *gadget) { g.ResourceVersion = "1" },
	"future version":    func(g *gadget) { g.ResourceVersion = "99999999" },
	"version text":      func(g *gadget) { g.ResourceVersion = "text" },
	"no uid":            func(g *gadget) { g.UID = "" },
	"foreign uid":       func(g *gadget) { g.UID = "foreign" },
	"generation":        func(g *gadget) { g.Generation = 77 },
	"no generation":     func(g *gadget) { g.Generation = 0 },
	"bad generation":    func(g *gadget) { g.Generation = -1 },
	"created":           func(g *gadget) { g.CreationTimestamp = metav1.Unix(1, 0) },
	"never created":     func(g *gadget) { g.CreationTimestamp = metav1.Time{} },
	"deleted":           func(g *gadget) { g.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} },
	"not deleted":       func(g *gadget) { g.DeletionTimestamp = nil },
	"grace period":      func(g *gadget) { g.DeletionGracePeriodSeconds = new(int64(7)) },
	"generate name":     func(g *gadget) { g.GenerateName = "other-" },
	"no managers":       func(g *gadget) { g.ManagedFields = nil },
	"reset managers":    func(g *gadget) { g.ManagedFields = []metav1.ManagedFieldsEntry{{}} },
	"bad managers":      func(g *gadget) { g.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x", Operation: "None"}} },
	"other type meta":   func(g *gadget) { g.APIVersion, g.Kind = "crd.example.com/v1", "Gadget" },
	"bad name":          func(g *gadget) { g.Name = "Not A Name" },
	"generated no name": func(g *gadget) { g.Name = "" },
}

// guards are the edits that matter most: they are more frequent than the others.
var guards = []string{"no version", "version 1", "no uid", "foreign uid", "finalizer f", "finalizer g", "no finalizer", "big"}

// fragments are the parts of merge patches and applied configurations. There is no empty list or map of
// the metadata: the API server stores it, and does not show it. So it takes it for a change if its watch cache
// has the object, and not if the cache is milliseconds late.
var fragments = map[string][]string{
	"metadata": {
		`"labels":{"l":"1"}`, `"labels":{"l":null}`, `"labels":{"m":"2"}`, `"labels":null`, `"labels":{"not a label!":"1"}`, `"annotations":{"a":"1"}`,
		`"finalizers":["example.com/f"]`, `"finalizers":["example.com/g"]`, `"finalizers":["example.com/f","example.com/g"]`, `"finalizers":null`,
		`"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"o","uid":"owner-o"}]`, `"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"p","uid":"owner-p"}]`,
		`"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"","uid":""}]`,
		`"resourceVersion":"$version"`, `"resourceVersion":"$old"`, `"resourceVersion":"1"`, `"resourceVersion":""`, `"resourceVersion":null`, `"resourceVersion":"text"`,
		`"uid":"$uid"`, `"uid":"foreign"`, `"uid":null`, `"uid":""`, `"name":"other"`, `"namespace":"other"`, `"generation":77`, `"generation":null`, `"generation":-1`,
		`"creationTimestamp":"2001-01-01T00:00:00Z"`, `"creationTimestamp":null`, `"deletionTimestamp":null`, `"deletionTimestamp":"2001-01-01T00:00:00Z"`,
		`"deletionGracePeriodSeconds":7`, `"generateName":"other-"`, `"managedFields":null`, `"managedFields":[{}]`, `"managedFields":[]`, `"labels":{"l":1}`,
	},
	"spec": {
		`"text":"p"`, `"text":"q"`, `"text":""`, `"text":null`, `"text":3`, `"big":9007199254740993`, `"big":9223372036854775807`, `"big":0`, `"big":null`, `"big":"text"`,
		`"pointer":0`, `"pointer":1`, `"pointer":null`, `"list":["a"]`, `"list":["a","b"]`, `"list":[]`, `"list":null`,
		`"map":{"k":"1"}`, `"map":{"k":null}`, `"map":{"l":"2"}`, `"map":{}`, `"map":null`, `"nested":{"a":"1"}`, `"nested":{"b":2}`, `"nested":{"inner":{"a":"1"}}`, `"nested":{"inner":{"b":2}}`,
		`"nested":{}`, `"nested":null`, `"nested":{"inner":null}`, `"nests":[{"a":"1"}]`, `"nests":[{"b":2},{}]`, `"nests":[]`,
	},
	"status": {`"phase":"p"`, `"phase":"q"`, `"phase":null`, `"phase":""`, `"observedGeneration":9007199254740993`, `"observedGeneration":0`, `"observedGeneration":null`},
}

var jsonPatches = []string{
	`[]`, `{}`, `[{"op":"test","path":"/spec/text","value":"x"}]`, `[{"op":"test","path":"/metadata/resourceVersion","value":"$version"},{"op":"add","path":"/spec/text","value":"t"}]`,
	`[{"op":"test","path":"/metadata/resourceVersion","value":"$old"},{"op":"add","path":"/spec/text","value":"t"}]`,
	`[{"op":"test","path":"/metadata/uid","value":"$uid"},{"op":"add","path":"/metadata/finalizers","value":["example.com/f"]}]`,
	`[{"op":"test","path":"/metadata/uid","value":"foreign"},{"op":"add","path":"/metadata/finalizers","value":["example.com/f"]}]`,
	`[{"op":"test","path":"/metadata/finalizers","value":null},{"op":"add","path":"/metadata/finalizers","value":["example.com/g"]}]`,
	`[{"op":"add","path":"/metadata/finalizers/-","value":"example.com/g"}]`, `[{"op":"remove","path":"/metadata/finalizers/0"}]`, `[{"op":"remove","path":"/metadata/finalizers"}]`,
	`[{"op":"add","path":"/spec/text","value":"j"}]`, `[{"op":"remove","path":"/spec/text"}]`, `[{"op":"replace","path":"/spec/text","value":"r"}]`, `[{"op":"add","path":"/spec/big","value":9007199254740993}]`,
	`[{"op":"test","path":"/spec/big","value":9007199254740993}]`, `[{"op":"add","path":"/spec/list/-","value":"j"}]`, `[{"op":"add","path":"/spec","value":{}}]`, `[{"op":"remove","path":"/spec"}]`,
	`[{"op":"add","path":"/status","value":{"phase":"j"}}]`, `[{"op":"remove","path":"/status"}]`, `[{"op":"remove","path":"/metadata/resourceVersion"}]`, `[{"op":"remove","path":"/metadata/uid"}]`,
	`[{"op":"replace","path":"/metadata/uid","value":"foreign"}]`, `[{"op":"replace","path":"/metadata/name","value":"other"}]`, `[{"op":"add","path":"/metadata/generation","value":9}]`,
	`[{"op":"remove","path":"/metadata"}]`, `[{"op":"add","path":"/spec/text","value":5}]`, `[{"op":"copy","from":"/spec/text","path":"/spec/nested/a"}]`, `[{"op":"none","path":"/spec/text"}]`, `not JSON`,
	`[{"op":"replace","path":"/kind","value":"Other"}]`, `[{"op":"replace","path":"/apiVersion","value":"other/v1"}]`,
	`[{"op":"add","path":"/spec/text","value":null}]`, `[{"op":"add","path":"/spec/nested","value":{"a":null}}]`, `[{"op":"remove","path":"/kind"}]`, `[{"op":"add","path":"/spec/list","value":["a",null]}]`, `[{"op":"replace","path":"","value":[]}]`,
}

var wholeMergePatches = []string{`{}`, `{"spec":null}`, `{"spec":{}}`, `{"status":null}`, `{"status":{}}`, `{"metadata":null}`, `{"kind":"Other"}`, `{"apiVersion":"other/v1"}`, `{"apiVersion":null}`, `{"spec":{"nests":[null]}}`, `{"spec":{"nests":[{"a":null}]}}`, `[]`, `null`, `"text"`, `{`, `{"spec":[]}`, `{"spec":"text"}`}

var deletes = []string{`{}`, `{"preconditions":{"uid":"$uid"}}`, `{"preconditions":{"uid":"foreign"}}`, `{"preconditions":{"resourceVersion":"$version"}}`, `{"preconditions":{"resourceVersion":"$old"}}`, `{"preconditions":{"uid":"","resourceVersion":""}}`, `{"gracePeriodSeconds":5}`}

// newRequest returns a random request.
func newRequest(r *rand.Rand, names []string) request {
	verbs := []string{"create", "create", "create", "update", "update", "update", "update", "merge", "merge", "merge", "json", "json", "apply", "apply", "apply", "apply", "delete", "get"}
	pick := func(from []string) string { return from[r.IntN(len(from))] }
	q := request{verb: pick(verbs), name: pick(names), manager: pick([]string{"one", "two", "three", ""}), force: r.IntN(3) == 0, dryRun: r.IntN(12) == 0}
	if q.verb != "create" && q.verb != "delete" && r.IntN(4) == 0 {
		q.subresource = "status"
	}
	switch q.verb {
	case "create", "update":
		q.written = r.IntN(8)
		if q.verb == "create" && q.written > 0 {
			q.written = r.IntN(8) / 7
		} else if q.written > 2 {
			q.written = 1
		}
		all := slices.Sorted(maps.Keys(edits))
		for range r.IntN(3) {
			q.edits = append(q.edits, pick(all))
		}
		if r.IntN(3) == 0 {
			q.edits = append(q.edits, pick(guards))
		}
	case "merge":
		if q.body = body(r, ""); r.IntN(8) == 0 {
			q.body = pick(wholeMergePatches)
		}
	case "json":
		q.body = pick(jsonPatches)
	case "apply":
		if q.manager == "" {
			q.manager = "one"
		}
		q.body = body(r, q.name)
	case "delete":
		q.body = pick(deletes)
	}
	return q
}

// body returns an object of random fragments. With a name, it is an applied configuration.
func body(r *rand.Rand, name string) string {
	var sections []string
	for _, key := range []string{"metadata", "spec", "status"} {
		var parts []string
		if key == "metadata" && name != "" {
			parts = append(parts, fmt.Sprintf(`"name":%q`, name))
		}
		for range r.IntN(3) {
			part := fragments[key][r.IntN(len(fragments[key]))]
			field, _, _ := strings.Cut(part, ":")
			if !slices.ContainsFunc(parts, func(other string) bool { return strings.HasPrefix(other, field+":") }) {
				parts = append(parts, part)
			}
		}
		if key == "metadata" && r.IntN(2) == 0 && name == "" || key != "metadata" && r.IntN(3) == 0 {
			continue
		}
		sections = append(sections, fmt.Sprintf(`%q:{%s}`, key, strings.Join(parts, ",")))
	}
	if name != "" {
		sections = append([]string{`"apiVersion":"crd.example.com/v1","kind":"Gadget"`}, sections...)
	}
	return "{" + strings.Join(sections, ",") + "}"
}

// A side is a client of the Fake or of the API server, with the objects that it returned.
type side struct {
	client *crd.Client[*gadget]
	owners *strings.Replacer // of uids by those of objects that exist: the garbage collector of the server takes no dependents of them
	seen   map[string][]*gadget
	ids    map[string]map[string]string // of each name: the uids and versions in the order of their appearance
}

// do sends the request.
func (s *side) do(ctx context.Context, q request) (*gadget, error) {
	switch q.verb {
	case "get":
		return s.client.Get(ctx, q.name, metav1.GetOptions{})
	case "create":
		return s.client.Create(ctx, s.object(q), metav1.CreateOptions{FieldManager: q.manager, DryRun: dryRun(q)})
	case "update":
		opts := metav1.UpdateOptions{FieldManager: q.manager, DryRun: dryRun(q)}
		if q.subresource != "" {
			return s.client.UpdateStatus(ctx, s.object(q), opts)
		}
		return s.client.Update(ctx, s.object(q), opts)
	case "apply":
		return s.apply(ctx, q)
	case "delete":
		opts := metav1.DeleteOptions{}
		if err := json.Unmarshal([]byte(s.body(q)), &opts); err != nil {
			return nil, err
		}
		opts.DryRun = dryRun(q)
		return nil, s.client.Delete(ctx, q.name, opts)
	}
	kind := types.MergePatchType
	if q.verb == "json" {
		kind = types.JSONPatchType
	}
	var subresources []string
	if q.subresource != "" {
		subresources = []string{q.subresource}
	}
	return s.client.Patch(ctx, q.name, kind, []byte(s.body(q)), metav1.PatchOptions{FieldManager: q.manager, DryRun: dryRun(q)}, subresources...)
}

func (s *side) apply(ctx context.Context, q request) (*gadget, error) {
	config := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(s.body(q)), config); err != nil {
		return nil, err
	}
	opts := metav1.ApplyOptions{FieldManager: q.manager, Force: q.force, DryRun: dryRun(q)}
	if q.subresource != "" {
		return s.client.ApplyStatus(ctx, config, opts)
	}
	return s.client.Apply(ctx, config, opts)
}

func dryRun(q request) []string {
	if q.dryRun {
		return []string{metav1.DryRunAll}
	}
	return nil
}

// object returns the object of a create or an update.
func (s *side) object(q request) *gadget {
	obj := &gadget{ObjectMeta: metav1.ObjectMeta{Name: q.name}}
	if seen := s.seen[q.name]; q.written > 0 && len(seen) > 0 {
		obj = seen[max(0, len(seen)-q.written)].DeepCopyObject().(*gadget)
	}
	for _, name := range q.edits {
		edits[name](obj)
	}
	for i, owner := range obj.OwnerReferences {
		obj.OwnerReferences[i].UID = types.UID(s.owners.Replace(string(owner.UID)))
	}
	return obj
}

// body returns the body of the request with the values of the side.
func (s *side) body(q request) string {
	var latest, before gadget
	if seen := s.seen[q.name]; len(seen) > 0 {
		latest, before = *seen[len(seen)-1], *seen[max(0, len(seen)-2)]
	}
	return strings.NewReplacer("$version", latest.ResourceVersion, "$old", before.ResourceVersion, "$uid", string(latest.UID)).Replace(s.owners.Replace(q.body))
}
