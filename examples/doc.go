// Package examples contains complete controllers, one in each folder: minimal on one page,
// sharded with many active replicas, website, backup with a schedule, an external service and
// settings that change while it runs, and tenant, which shows more of the pieces. Its tests check
// that the packages of the library work together although they do not import each other.
package examples

import "embed"

// Website has the files of the website example in the folder website, without its integration
// tests. The command newoperator makes a repository of them.
//
//go:embed website/main.go website/api website/config website/controller website/dns
var Website embed.FS
