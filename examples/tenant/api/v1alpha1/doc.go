// Package v1alpha1 is version v1alpha1 of the API group
// tenancy.example.com. Its only kind is Tenant, a cluster-scoped custom
// resource. config/crd.yaml is its hand-written schema. A test checks that
// the schema and these types have the same fields.
//
// +k8s:deepcopy-gen=package
// +groupName=tenancy.example.com
package v1alpha1
