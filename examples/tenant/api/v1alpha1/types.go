package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition types of a Tenant.
const (
	// ConditionReady is True when AccountOpen and NamespaceReady are True.
	ConditionReady = "Ready"
	// ConditionAccountOpen is True while the billing account is open.
	ConditionAccountOpen = "AccountOpen"
	// ConditionNamespaceReady is True when the namespace and its objects
	// match the spec.
	ConditionNamespaceReady = "NamespaceReady"
	// ConditionTerminating is True while the cleanup of a deleted tenant is
	// not done. Its message names the step and the reason.
	ConditionTerminating = "Terminating"
)

// Plan is the price plan of an account.
type Plan string

// The plans of the billing service.
const (
	PlanBasic    Plan = "Basic"
	PlanStandard Plan = "Standard"
	PlanPremium  Plan = "Premium"
)

// Tenant is a team's share of a cluster: a namespace with the tenant's name, a
// quota, a role for the members, network isolation, and an account in the
// billing service.
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

// TenantSpec is the desired state of a tenant.
type TenantSpec struct {
	// Members are the subjects that get the ClusterRole edit in the
	// namespace. "alice" is a user, "group:devs" a group and
	// "system:serviceaccount:ns:name" a service account. The controller
	// rejects any other name that begins with "system:".
	//
	// +listType=set
	Members []string `json:"members,omitempty"`

	// Quota limits the namespace; its keys are cpu, memory and pods. Empty
	// means no quota.
	Quota corev1.ResourceList `json:"quota,omitempty"`

	// NetworkIsolation denies traffic from other namespaces.
	NetworkIsolation bool `json:"networkIsolation,omitempty"`

	// Account is the tenant's account in the billing service.
	Account AccountSpec `json:"account,omitempty"`
}

// AccountSpec is the desired state of the account.
type AccountSpec struct {
	// Plan is the price plan. It is immutable. The API server's default is
	// Basic.
	Plan Plan `json:"plan,omitempty"`
}

// TenantStatus is the state that the controller observed last.
type TenantStatus struct {
	// ObservedGeneration is the generation of the spec that the status
	// describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions are Ready, AccountOpen and NamespaceReady, and Terminating
	// once the tenant is being deleted.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Namespace is the name of the tenant's namespace. It is empty until
	// the tenant owns the namespace.
	Namespace string `json:"namespace,omitempty"`

	// AccountID is the ID of the open account in the billing service.
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
