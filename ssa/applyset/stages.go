package applyset

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The default stages of a Set. Apply goes up, and prune goes down.
const (
	stageFirst = 1 + iota // of the kinds and namespaces of other objects
	stageAccess
	stageConfig
	stageDefault
	stageAdmission // of objects that can reject or route requests for others
	stageDefined   // of the kinds that the set defines: their controllers and webhooks can be members
	maxStage       = 99
)

func namespaceKind() schema.GroupKind { return schema.GroupKind{Kind: "Namespace"} }

func crdKind() schema.GroupKind {
	return schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
}

func apiServiceKind() schema.GroupKind {
	return schema.GroupKind{Group: "apiregistration.k8s.io", Kind: "APIService"}
}

// noteGroup notes the group that a definition among the members has.
func (c *setCall) noteGroup(id identity) {
	if id.kind == crdKind() || id.kind == apiServiceKind() {
		_, group, _ := strings.Cut(id.name, ".") // after the resource or the version
		c.definedGroups.Insert(group)
	}
}

// stageOf returns the stage of an object.
func (c *setCall) stageOf(kind schema.GroupVersionKind, obj metav1.Object) (int, error) {
	stage := defaultStage(kind.GroupKind())
	if stage == stageDefault && c.definedGroups.Has(kind.Group) {
		stage = stageDefined
	}
	if c.Stage == nil || stage == stageFirst {
		return stage, nil
	}
	switch own := c.Stage(kind, obj); {
	case own == 0:
		return stage, nil
	case own <= stageFirst || own > maxStage:
		return 0, fmt.Errorf("the stage is %d: let Stage return %d to %d, or 0 for the default", own, stageFirst+1, maxStage)
	default:
		return own, nil
	}
}

// defaultStage returns the default stage of a kind.
func defaultStage(kind schema.GroupKind) int {
	if kind == namespaceKind() || kind == crdKind() {
		return stageFirst
	}
	switch kind.Group {
	case "":
		switch kind.Kind {
		case "ServiceAccount", "ResourceQuota", "LimitRange":
			return stageAccess
		case "ConfigMap", "Secret", "PersistentVolume", "PersistentVolumeClaim", "Service":
			return stageConfig
		}
	case "rbac.authorization.k8s.io", "scheduling.k8s.io", "node.k8s.io":
		return stageAccess
	case "networking.k8s.io":
		if kind.Kind == "NetworkPolicy" || kind.Kind == "IngressClass" {
			return stageAccess
		}
	case "storage.k8s.io":
		if kind.Kind == "StorageClass" {
			return stageAccess
		}
	case "admissionregistration.k8s.io", "apiregistration.k8s.io":
		return stageAdmission
	}
	return stageDefault
}
