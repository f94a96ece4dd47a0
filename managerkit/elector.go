package managerkit

import (
	"errors"
	"fmt"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/managerkit/internal/pod"
)

// NewElector returns the Elector that options of a manager describe, for [Elect] or [Run]:
//
//	elector, err := managerkit.NewElector(config, options)
//	...
//	err = managerkit.Elect(&options, elector)
//
// The Lease has the name LeaderElectionID and is in LeaderElectionNamespace. If that is empty, it is in the
// namespace of the Pod, as with the manager's own election; outside of a Pod, NewElector returns an error.
// So replicas of an earlier version share the Lease. Other options, such as LeaderElection, have no effect on the
// Elector. Its Leases have connections of their own, made from config. NewElector sends no request.
func NewElector(config *rest.Config, options manager.Options) (*leader.Elector, error) {
	switch {
	case config == nil:
		return nil, errors.New("managerkit: NewElector: config is nil: pass the rest.Config of ctrl.NewManager")
	case options.LeaderElectionID == "":
		return nil, errors.New("managerkit: NewElector: LeaderElectionID is empty: set it to the name of the Lease, e.g. shop.example.com")
	}
	namespace := options.LeaderElectionNamespace
	if namespace == "" {
		var err error
		if namespace, err = pod.Namespace(pod.NamespaceFile); err != nil {
			return nil, fmt.Errorf("managerkit: NewElector: LeaderElectionNamespace is empty: set it: %w", err)
		}
	}
	leases, err := leader.NewClient(config, namespace)
	if err != nil {
		return nil, fmt.Errorf("managerkit: NewElector: %w", err)
	}
	return &leader.Elector{Leases: leases, Namespace: namespace, Name: options.LeaderElectionID}, nil
}
