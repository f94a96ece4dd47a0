package after

import (
	"time"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/managerkit"
)

// NewManager returns the manager of the program, with time.Now or the clock of a test. The scheme
// of the options has the kinds.
func NewManager(config *rest.Config, options ctrl.Options, now func() time.Time) (ctrl.Manager, error) {
	writes := managerkit.NewWrites(consistency.Config{})
	if err := writes.Install(config, &options); err != nil {
		return nil, err
	}
	if options.LeaderElection {
		elector, err := managerkit.NewElector(config, options)
		if err != nil {
			return nil, err
		}
		if err := managerkit.Elect(&options, elector); err != nil {
			return nil, err
		}
	}
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return nil, err
	}
	r := &Reconciler{Client: mgr.GetClient(), Now: now, Writes: writes}
	return mgr, r.SetupWithManager(mgr)
}
