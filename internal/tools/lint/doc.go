// Package lint pins golangci-lint as a tool directive of a nested module. It has no
// declarations, and no package imports it. See the parent folder.
package lint
