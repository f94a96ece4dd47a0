// Package config holds the manifests of the website example.
package config

import "embed"

// Files contains the manifests. Install crd.yaml, rbac.yaml and deployment.yaml in this
// order. website.yaml is a sample Website.
//
//go:embed *.yaml
var Files embed.FS
