//go:build !former

package main

import (
	"time"

	"github.com/cert-manager/cert-manager/pkg/controller"
)

// limitBackoff bounds the time between two issuances.
func limitBackoff(options *controller.ContextOptions) {
	options.CertificateRequestMaximumBackoffDuration = time.Second
}
