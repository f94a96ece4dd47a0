// Package lint pins golangci-lint as a tool directive of a nested module.
// It declares nothing and nothing imports it. See the parent folder.
package lint
