package applyset

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The stages of a Set. Apply goes up, and prune goes down.
const (
	stageDefinitions = iota // what other objects live in
	stageAccess
	stageConfig
	stageDefault
	stageAdmission // what can reject or route the requests for other objects
	stages
)

// kindsOf has the kinds of the stages other than stageDefault.
var kindsOf = map[int]map[string][]string{ // by group
	stageDefinitions: {"": {"Namespace"}, "apiextensions.k8s.io": {"CustomResourceDefinition"}},
	stageAccess: {
		"":                          {"ServiceAccount", "ResourceQuota", "LimitRange"},
		"rbac.authorization.k8s.io": {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"},
		"scheduling.k8s.io":         {"PriorityClass"},
		"storage.k8s.io":            {"StorageClass"},
		"networking.k8s.io":         {"NetworkPolicy", "IngressClass"},
		"node.k8s.io":               {"RuntimeClass"},
	},
	stageConfig: {"": {"ConfigMap", "Secret", "PersistentVolume", "PersistentVolumeClaim", "Service"}},
	stageAdmission: {
		"apiregistration.k8s.io": {"APIService"},
		"admissionregistration.k8s.io": {
			"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration",
			"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
			"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding",
		},
	},
}

// stageOf returns the stage of a kind.
func stageOf(kind schema.GroupKind) int {
	for stage, groups := range kindsOf {
		if slices.Contains(groups[kind.Group], kind.Kind) {
			return stage
		}
	}
	return stageDefault
}
