// Package config holds the manifests of the backup example.
package config

import "embed"

// Files contains the manifests. Install crd.yaml, rbac.yaml, settings.yaml and deployment.yaml in
// this order. backup.yaml is a sample Backup.
//
//go:embed *.yaml
var Files embed.FS
