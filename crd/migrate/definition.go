package migrate

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

const (
	manager       = "controllerkit-migrate" // of the patches
	annotation    = "controllerkit.github.io/stored-versions"
	conditionType = "StoredVersionsMigrated"
)

func definitions() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
}

// A definition has the parts of a CustomResourceDefinition that this package reads.
type definition struct {
	*unstructured.Unstructured
	resource schema.GroupResource
	versions []version
	stored   []string
	none     bool   // the conversion changes the apiVersion alone
	webhook  string // of the conversion: its URL, or the namespace and the name of its Service
	preserve bool   // spec.preserveUnknownFields
}

type version struct {
	name            string
	served, storage bool
	schema          map[string]any
}

func read(obj *unstructured.Unstructured) *definition {
	d := &definition{Unstructured: obj}
	d.resource.Group, _, _ = unstructured.NestedString(obj.Object, "spec", "group")
	d.resource.Resource, _, _ = unstructured.NestedString(obj.Object, "spec", "names", "plural")
	d.stored, _, _ = unstructured.NestedStringSlice(obj.Object, "status", "storedVersions")
	d.preserve, _, _ = unstructured.NestedBool(obj.Object, "spec", "preserveUnknownFields")
	strategy, _, _ := unstructured.NestedString(obj.Object, "spec", "conversion", "strategy")
	d.none = strategy == "" || strategy == "None"
	d.webhook = webhookOf(obj)
	spec, _ := obj.Object["spec"].(map[string]any)
	versions, _ := spec["versions"].([]any)
	for _, v := range versions {
		fields, _ := v.(map[string]any)
		var parsed version
		parsed.name, _ = fields["name"].(string)
		parsed.served, _ = fields["served"].(bool)
		parsed.storage, _ = fields["storage"].(bool)
		above, _ := fields["schema"].(map[string]any)
		parsed.schema, _ = above["openAPIV3Schema"].(map[string]any)
		d.versions = append(d.versions, parsed)
	}
	return d
}

// storage returns the storage version.
func (d *definition) storage() version {
	for _, v := range d.versions {
		if v.storage {
			return v
		}
	}
	return version{}
}

func (d *definition) version(name string) (version, bool) {
	i := slices.IndexFunc(d.versions, func(v version) bool { return v.name == name })
	if i < 0 {
		return version{}, false
	}
	return d.versions[i], true
}

func (d *definition) serves(name string) bool {
	v, ok := d.version(name)
	return ok && v.served
}

func (d *definition) served() (names []string) {
	for _, v := range d.versions {
		if v.served {
			names = append(names, v.name)
		}
	}
	return names
}

// condition returns the status and the message of a condition of the definition.
func (d *definition) condition(kind string) (status, message string) {
	conditions, _, _ := unstructured.NestedSlice(d.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == kind {
			status, _ = c["status"].(string)
			message, _ = c["message"].(string)
		}
	}
	return status, message
}

// isEstablished reports whether the API server accepts the definition.
func (d *definition) isEstablished() bool {
	established, _ := d.condition("Established")
	return established == "True"
}

// A record is the progress of a migration, in an annotation of the definition.
type record struct {
	UID        types.UID `json:"uid"`
	Generation int64     `json:"generation"`
	Settled    bool      `json:"settled,omitempty"`
	After      string    `json:"after,omitempty"`   // all objects up to this one are migrated
	Rewrite    bool      `json:"rewrite,omitempty"` // each of them was written, not only those with stale managedFields
	Done       bool      `json:"done,omitempty"`
}

// record returns the progress of the migration that the spec of d began.
func (d *definition) record() (r record) {
	if json.Unmarshal([]byte(d.GetAnnotations()[annotation]), &r) != nil || r.UID != d.GetUID() || r.Generation != d.GetGeneration() {
		return record{UID: d.GetUID(), Generation: d.GetGeneration()}
	}
	return r
}

func (m *Migrator) get(ctx context.Context) (d *definition, err error) {
	err = m.retry(ctx, "get", m.Definition, func(ctx context.Context) error {
		obj, err := m.Client.Resource(definitions()).Get(ctx, m.Definition, metav1.GetOptions{})
		if err == nil {
			d = read(obj)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("migrate: read CustomResourceDefinition %s: %w", m.Definition, err)
	}
	return d, nil
}

// change patches the definition of the pass. If its spec has changed, or status.storedVersions has a
// version that it lacked at the begin, change returns errChanged without a patch. edit returns the fields to merge, or nil for no patch.
func (p *pass) change(ctx context.Context, edit func(*definition) map[string]any, subresources ...string) error {
	for d := p.definition; ; {
		if !p.isOf(d) || slices.ContainsFunc(d.stored, func(version string) bool { return !slices.Contains(p.stored, version) }) {
			return errChanged
		}
		fields := edit(d)
		if fields == nil {
			p.definition = d
			return nil
		}
		metadata, _ := fields["metadata"].(map[string]any)
		if metadata == nil {
			metadata = map[string]any{}
			fields["metadata"] = metadata
		}
		metadata["uid"], metadata["resourceVersion"] = d.GetUID(), d.GetResourceVersion()
		data, err := json.Marshal(fields)
		if err != nil {
			return err
		}
		var changed *unstructured.Unstructured
		err = p.m.retry(ctx, "patch", p.m.Definition, func(ctx context.Context) (err error) {
			changed, err = p.m.Client.Resource(definitions()).Patch(ctx, p.m.Definition, types.MergePatchType, data, metav1.PatchOptions{FieldManager: manager}, subresources...)
			return err
		})
		switch {
		case err == nil:
			p.definition = read(changed)
			return nil
		case !apierrors.IsConflict(err):
			return fmt.Errorf("migrate: patch CustomResourceDefinition %s: %w", p.m.Definition, err)
		}
		if d, err = p.m.get(ctx); err != nil {
			return err
		}
	}
}

// save stores the record.
func (p *pass) save(ctx context.Context) error {
	data, err := json.Marshal(p.record)
	if err != nil {
		return err
	}
	return p.change(ctx, func(d *definition) map[string]any {
		if d.GetAnnotations()[annotation] == string(data) {
			return nil
		}
		return map[string]any{"metadata": map[string]any{"annotations": map[string]any{annotation: string(data)}}}
	})
}

// setStatus sets the condition of the definition. If narrow is true, it also removes all but the
// storage version from status.storedVersions.
func (p *pass) setStatus(ctx context.Context, narrow bool, status metav1.ConditionStatus, reason, message string) error {
	return p.change(ctx, func(d *definition) map[string]any {
		conditions, _, _ := unstructured.NestedSlice(d.Object, "status", "conditions")
		condition := map[string]any{
			"type": conditionType, "status": string(status), "reason": reason, "message": message,
			"observedGeneration": d.GetGeneration(), "lastTransitionTime": time.Now().UTC().Format(time.RFC3339),
		}
		i := slices.IndexFunc(conditions, func(c any) bool {
			c2, _ := c.(map[string]any)
			return c2["type"] == conditionType
		})
		same := false
		if i < 0 {
			conditions = append(conditions, condition)
		} else {
			old := conditions[i].(map[string]any)
			if old["status"] == condition["status"] {
				condition["lastTransitionTime"] = old["lastTransitionTime"]
			}
			observed, has := old["observedGeneration"] // the API server can omit it
			same = old["status"] == condition["status"] && old["reason"] == reason && old["message"] == message && (!has || observed == condition["observedGeneration"])
			conditions[i] = condition
		}
		fields := map[string]any{"conditions": conditions}
		if narrow {
			fields["storedVersions"] = []string{d.storage().name}
			same = same && slices.Equal(d.stored, []string{d.storage().name})
		}
		if same {
			return nil
		}
		return map[string]any{"status": fields}
	}, "status")
}
