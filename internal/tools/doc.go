// Package tools pins the developer tools of this repository as tool directives of a nested
// module, so that a user of the library never downloads them. It has no declarations, and
// no package imports it.
//
// A tool runs from the root of the repository by its last path element:
//
//	go tool -modfile=internal/tools/go.mod staticcheck ./...
//
// All of them are built once, into bin/, by
//
//	go build -C internal/tools -o ../../bin/ tool
//
// golangci-lint has a module of its own in lint/, and Prometheus in prometheus/, because
// their long lists of requirements would move the versions of every other tool:
//
//	go build -C internal/tools/lint -o ../../../bin/ tool
//
// The code generators must be of the client-go version that the root module
// requires: a generated client uses what that version offers.
package tools
