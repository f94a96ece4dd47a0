// Package findings explores real controllers with package controllertest. Each scenario
// starts a controller of another project unchanged, with actors for the rest of the
// cluster. The bugs that were found are in docs/findings.md.
package findings
