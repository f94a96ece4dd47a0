package bridge

import (
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
)

// cached has the readiness checks of an operator's kinds in the manager's cache, by their names. controller-runtime
// waits for all kinds without a limit and starts no controller before, and its own checks succeed meanwhile. It shows
// the name of a check that fails and hides the error, so each kind has a check.
type cached map[string]healthz.Checker

func (c cached) add(operator string, kind schema.GroupKind, in cache.SharedIndexInformer) {
	if in, ok := in.(interface{ inCache() bool }); ok { // each of Informer
		c[operator+"-informers-"+kind.String()] = func(*http.Request) error {
			if in.inCache() {
				return nil
			}
			return fmt.Errorf("bridge: the manager's cache has not synced %s: see \"Failed to watch\" in the log, such as of a missing right to list and watch it", kind)
		}
	}
}
