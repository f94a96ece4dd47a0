// Package config holds the manifests of the tenant example.
package config

import "embed"

// Files contains the manifests. Install crd.yaml, rbac.yaml and deployment.yaml in
// this order, and shards.yaml if the replicas run with -shards. tenant.yaml is a sample Tenant.
//
//go:embed *.yaml
var Files embed.FS
