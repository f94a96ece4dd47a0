// Package config holds the manifests of the operator.
package config

import "embed"

// Files contains the manifests. kustomization.yaml lists those of an installation, in their
// order. finalizer.yaml needs Kubernetes 1.36, and monitor.yaml the Prometheus Operator. sample.yaml is a sample Website.
//
//go:embed *.yaml
var Files embed.FS
