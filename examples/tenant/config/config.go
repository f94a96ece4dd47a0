// Package config holds the manifests of the tenant example.
package config

import "embed"

// Files are the manifests, in the order of installation: crd.yaml, rbac.yaml,
// deployment.yaml. tenant.yaml is a sample.
//
//go:embed *.yaml
var Files embed.FS
