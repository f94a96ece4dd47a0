// Package grafanatest checks metrics/dashboard.json with the code that Grafana generates
// from its schema. It is a module of its own, so that no other module requires that code.
package grafanatest
