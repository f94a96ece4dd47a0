package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition types of a Tenant.
const (
	// ConditionReady is True when everything the spec asks for stands.
	ConditionReady = "Ready"
	// ConditionAccountOpen is True while the billing account is open.
	ConditionAccountOpen = "AccountOpen"
	// ConditionNamespaceReady is True when the namespace and everything in
	// it that the spec asks for has been applied.
	ConditionNamespaceReady = "NamespaceReady"
)

// Plan is what a tenant pays for.
type Plan string

// The plans that the billing service sells.
const (
	PlanBasic    Plan = "Basic"
	PlanStandard Plan = "Standard"
	PlanPremium  Plan = "Premium"
)

// Tenant is a team's share of a cluster: a namespace of the tenant's name
// with a quota, the members' rights and network isolation, and an account
// in the billing service.
//
// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type Tenant struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   TenantSpec   `json:"spec"`
	Status TenantStatus `json:"status,omitempty"`
}

// TenantSpec is what a tenant shall have.
type TenantSpec struct {
	// Members may work in the namespace with the rights of ClusterRole
	// edit. "alice" is a user, "group:devs" a group and
	// "system:serviceaccount:ns:name" a service account. Any other name
	// that begins with "system:" is refused by the controller.
	//
	// +listType=set
	Members []string `json:"members,omitempty"`

	// Quota limits the namespace; its keys are cpu, memory and pods. Empty
	// means no quota.
	Quota corev1.ResourceList `json:"quota,omitempty"`

	// NetworkIsolation keeps traffic from other namespaces out.
	NetworkIsolation bool `json:"networkIsolation,omitempty"`

	// Account is the tenant's account in the billing service.
	Account AccountSpec `json:"account,omitempty"`
}

// AccountSpec is what the billing service is asked for.
type AccountSpec struct {
	// Plan is chosen when the tenant is created and cannot be changed. The
	// API server stores Basic where nothing is said.
	Plan Plan `json:"plan,omitempty"`
}

// TenantStatus is what the controller last saw and did.
type TenantStatus struct {
	// ObservedGeneration is the generation of the spec that the rest of
	// the status speaks of.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions are Ready, AccountOpen and NamespaceReady.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Namespace is the name of the tenant's namespace, once it is the
	// tenant's own.
	Namespace string `json:"namespace,omitempty"`

	// AccountID is the billing service's name for the account, while one
	// is open.
	AccountID string `json:"accountID,omitempty"`
}

// TenantList is a list of tenants.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type TenantList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []Tenant `json:"items"`
}
