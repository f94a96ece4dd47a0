package controller

import (
	. "github.com/onsi/ginkgo/v2"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// Some specs start an API server of their own in place of the suite's, and both would outlive
// the suite.
var suites *envtest.Environment

var _ = BeforeEach(func() { suites = testenv })

var _ = AfterEach(func() {
	if testenv != suites {
		_ = testenv.Stop() // an error if the spec has stopped it
		testenv = suites
	}
})
