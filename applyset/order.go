package applyset

import "k8s.io/apimachinery/pkg/runtime/schema"

// The stages of a Set. Apply goes up, and prune goes down.
const (
	stageDefinitions = iota // of the kinds and namespaces of other objects
	stageAccess
	stageConfig
	stageDefault
	stageAdmission // of objects that can reject or route requests for others
	stages
)

// stageOf returns the stage of a kind.
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
