package before

import (
	"time"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
)

// NewManager returns the manager of the program, with time.Now or the clock of a test. The scheme
// of the options has the kinds.
func NewManager(config *rest.Config, options ctrl.Options, now func() time.Time) (ctrl.Manager, error) {
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return nil, err
	}
	r := &Reconciler{Client: mgr.GetClient(), Now: now}
	return mgr, r.SetupWithManager(mgr)
}
