// Package site has a custom resource for the tests of crd and crdtest: its Go type, its
// definition and its apply configuration.
package site

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
)

// Website is a type as a user writes it, with the code of controller-gen.
type Website struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   Spec   `json:"spec,omitempty"`
	Status Status `json:"status,omitempty"`
}

// Spec is the spec of a Website.
type Spec struct {
	Host     string   `json:"host,omitempty"`
	Replicas int32    `json:"replicas,omitempty"`
	Aliases  []string `json:"aliases,omitempty"`
}

// Status is the status of a Website.
type Status struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// DeepCopy returns a copy, or nil.
func (w *Website) DeepCopy() *Website {
	if w == nil {
		return nil
	}
	out := *w
	w.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.Aliases = append([]string(nil), w.Spec.Aliases...)
	if w.Status.Conditions != nil {
		out.Status.Conditions = make([]metav1.Condition, len(w.Status.Conditions))
		for i := range w.Status.Conditions {
			w.Status.Conditions[i].DeepCopyInto(&out.Status.Conditions[i])
		}
	}
	return &out
}

// DeepCopyObject implements [runtime.Object].
func (w *Website) DeepCopyObject() runtime.Object { return w.DeepCopy() }

// Kind returns the kind of Website.
func Kind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "crd.example.com", Version: "v1", Kind: "Website"}
}

// New returns a Website of a host.
func New(namespace, name string) *Website {
	return &Website{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: Spec{Host: name + ".example.com"}}
}

type m = map[string]any

// Definition is the CustomResourceDefinition of a kind. Its schema has the fields of
// Website and spec.later, which Website lacks.
func Definition(kind, plural, scope string) m {
	properties := m{
		"spec": m{"type": "object", "properties": m{
			"host": m{"type": "string"}, "replicas": m{"type": "integer"}, "later": m{"type": "string"},
			"aliases": m{"type": "array", "items": m{"type": "string"}},
		}},
		"status": m{"type": "object", "properties": m{
			"observedGeneration": m{"type": "integer"},
			"conditions": m{
				"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"type"},
				"items": m{"type": "object", "required": []any{"type", "status", "reason", "message", "lastTransitionTime"}, "properties": m{
					"type": m{"type": "string"}, "status": m{"type": "string"}, "reason": m{"type": "string"}, "message": m{"type": "string"},
					"lastTransitionTime": m{"type": "string", "format": "date-time"}, "observedGeneration": m{"type": "integer"},
				}},
			},
		}},
	}
	return m{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": m{"name": plural + ".crd.example.com"},
		"spec": m{
			"group": "crd.example.com", "scope": scope,
			"names": m{"kind": kind, "plural": plural},
			"versions": []any{m{
				"name": "v1", "served": true, "storage": true,
				"schema":           m{"openAPIV3Schema": m{"type": "object", "properties": properties}},
				"subresources":     m{"status": m{}},
				"selectableFields": []any{m{"jsonPath": ".spec.host"}},
			}},
		},
	}
}

// Config is an apply configuration of a Website, in plain Go.
type Config struct {
	APIVersion                                string `json:"apiVersion"`
	Kind                                      string `json:"kind"`
	*applymetav1.ObjectMetaApplyConfiguration `json:"metadata"`
	Spec                                      *SpecConfig   `json:"spec,omitempty"`
	Status                                    *StatusConfig `json:"status,omitempty"`
}

// SpecConfig is the spec of a Config.
type SpecConfig struct {
	Host     *string `json:"host,omitempty"`
	Replicas *int32  `json:"replicas,omitempty"`
}

// StatusConfig is the status of a Config.
type StatusConfig struct {
	ObservedGeneration *int64 `json:"observedGeneration,omitempty"`
}

// NewConfig returns a Config that owns no field yet.
func NewConfig(name string) *Config {
	return &Config{
		APIVersion: Kind().GroupVersion().String(), Kind: Kind().Kind,
		ObjectMetaApplyConfiguration: applymetav1.ObjectMeta().WithName(name),
	}
}
