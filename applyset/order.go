package applyset

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The default stages of a Set. Apply goes up, and prune goes down.
const (
	stageDefinitions = 1 + iota // of the kinds and namespaces of other objects
	stageAccess
	stageConfig
	stageDefault
	stageAdmission // of objects that can reject or route requests for others
	maxStage       = 99
)

// stage returns the stage of an object.
func (s *Set) stage(kind schema.GroupVersionKind, obj metav1.Object) (int, error) {
	stage := stageOf(kind.GroupKind())
	if s.Stage == nil || stage == stageDefinitions {
		return stage, nil
	}
	switch own := s.Stage(kind, obj); {
	case own == 0:
		return stage, nil
	case own <= stageDefinitions || own > maxStage:
		return 0, fmt.Errorf("the stage is %d: let Stage return %d to %d, or 0 for the default", own, stageDefinitions+1, maxStage)
	default:
		return own, nil
	}
}

// stageOf returns the default stage of a kind.
func stageOf(kind schema.GroupKind) int {
	switch kind.Group {
	case "apiextensions.k8s.io":
		if kind.Kind == "CustomResourceDefinition" {
			return stageDefinitions
		}
	case "":
		switch kind.Kind {
		case "Namespace":
			return stageDefinitions
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
