// Package integration contains only the integration tests of the tenant example.
// They run the program as a separate process on a real API server, with the rights
// in config/rbac.yaml.
package integration
