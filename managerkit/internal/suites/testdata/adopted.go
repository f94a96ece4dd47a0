package controllers

import (
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/managerkit"
)

// NewManager is ctrl.NewManager with Writes.
func NewManager(config *rest.Config, options ctrl.Options) (ctrl.Manager, *managerkit.Writes, error) {
	config = rest.CopyConfig(config) // the suite makes several managers from it
	writes := managerkit.NewWrites(consistency.Config{})
	if err := writes.Install(config, &options); err != nil {
		return nil, nil, err
	}
	mgr, err := ctrl.NewManager(config, options)
	return mgr, writes, err
}

// newClient returns the client for the kind of obj, by which a reconciler writes its status.
func newClient[T client.Object](mgr ctrl.Manager, obj client.Object) (*managerkit.Client[T], error) {
	kind, err := apiutil.GVKForObject(obj, mgr.GetScheme())
	if err != nil {
		return nil, err
	}
	return managerkit.NewClientForKind[T](mgr.GetClient(), mgr.GetAPIReader(), kind)
}
