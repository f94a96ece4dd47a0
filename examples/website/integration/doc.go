// Package integration contains only tests. They run the website example as a separate
// process on a real API server, with the rights in config/rbac.yaml.
package integration
