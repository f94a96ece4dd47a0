// Package v1alpha1 is version v1alpha1 of the API group
// tenancy.example.com. Its one kind is Tenant, a cluster-scoped custom
// resource; config/crd.yaml is its schema, written by hand and held equal
// to these types by a test.
//
// +k8s:deepcopy-gen=package
// +groupName=tenancy.example.com
package v1alpha1
