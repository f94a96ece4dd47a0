// Package v1 has the Backup API.
//
// +groupName=backup.example.com
// +kubebuilder:object:generate=true
package v1

// controller-gen makes zz_generated.deepcopy.go and config/crd.yaml from types.go.
//
//go:generate sh -c "go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0 object paths=. && go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0 crd paths=. output:crd:stdout >../../config/crd.yaml"
