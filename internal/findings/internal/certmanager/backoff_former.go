//go:build former

package main

import "github.com/cert-manager/cert-manager/pkg/controller"

// limitBackoff does nothing: the release before has no such option.
func limitBackoff(*controller.ContextOptions) {}
