// Package prometheus pins Prometheus and promtool as tool directives of a nested module.
// It has no declarations, and no package imports it. See the parent folder.
package prometheus
