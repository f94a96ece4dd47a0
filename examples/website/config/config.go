// Package config holds the manifests of the website example.
package config

import "embed"

// Files contains the manifests. Install crd.yaml, finalizer.yaml, rbac.yaml and
// deployment.yaml in this order; finalizer.yaml needs Kubernetes 1.36. website.yaml is a
// sample Website.
//
//go:embed *.yaml
var Files embed.FS
