package zoo

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/reconcile"
)

const (
	machineFinalizer = "zoo.example.com/machine"
	machineID        = "zoo.example.com/machine-id"
	machineReady     = "zoo.example.com/machine-ready"
)

// machines owns a machine for each parent, in a service with stale reads and idempotency
// tokens.
//
// The correct one sends the UID of the parent as the token, so every attempt is the same
// request. It never concludes from a read that the machine is absent: if it does not
// know the id, it requests the machine again with the same token.
type machines struct {
	bug     string
	parents listers.ConfigMapNamespaceLister
	client  typedcorev1.ConfigMapInterface
	cloud   *cloud.Cloud
}

func (c *machines) reconcile(ctx context.Context, key types.NamespacedName) (none reconcile.Result, _ error) {
	parent, err := c.parents.Get(key.Name)
	switch {
	case apierrors.IsNotFound(err):
		return none, nil
	case err != nil:
		return none, err
	case parent.Data["machine"] == "":
		return none, nil
	case parent.DeletionTimestamp != nil:
		return none, c.finalize(ctx, parent)
	case annotation(parent, machineReady) != "":
		return none, nil
	}
	held, err := finalizer.Add(ctx, c.client, parent, machineFinalizer)
	if err != nil {
		return none, err
	}
	return none, c.provide(ctx, held.Object())
}

func (c *machines) provide(ctx context.Context, parent *corev1.ConfigMap) error {
	id := annotation(parent, machineID)
	if id == "" {
		made, err := c.ensure(ctx, parent)
		if err != nil {
			return err
		}
		id = made.ID
		if parent, err = annotate(ctx, c.client, parent, map[string]string{machineID: id, machineReady: ""}); err != nil {
			return err
		}
	}
	if _, err := c.cloud.Get(ctx, id); err != nil {
		return fmt.Errorf("not to be seen yet: %w", err)
	}
	_, err := annotate(ctx, c.client, parent, map[string]string{machineID: id, machineReady: "true"})
	return err
}

// ensure returns the machine of the parent, and creates it if it is absent.
func (c *machines) ensure(ctx context.Context, parent *corev1.ConfigMap) (cloud.Resource, error) {
	machine := cloud.Resource{Name: parent.Name, Token: string(parent.UID), Tags: map[string]string{"owner": string(parent.UID)}}
	switch c.bug {
	case "lookup-only":
		machine.Token = ""
		found, err := c.cloud.List(ctx, parent.Name)
		if err != nil {
			return cloud.Resource{}, err
		}
		if len(found) > 0 {
			return found[0], nil
		}
	case "token-per-attempt":
		machine.Token = string(uuid.NewUUID())
	}
	return c.cloud.Create(ctx, machine)
}

func (c *machines) finalize(ctx context.Context, parent *corev1.ConfigMap) error {
	if !finalizer.Has(parent, machineFinalizer) {
		return nil
	}
	id := annotation(parent, machineID)
	if id == "" {
		made, err := c.ensure(ctx, parent)
		if err != nil {
			return err
		}
		id = made.ID
	}
	remove := true
	if c.bug == "read-is-absence" {
		_, err := c.cloud.Get(ctx, id)
		if notFoundIsGone(err) != nil {
			return err
		}
		remove = err == nil
	}
	if remove {
		if err := notFoundIsGone(c.cloud.Delete(ctx, id)); err != nil {
			return err
		}
	}
	_, err := finalizer.Remove(ctx, c.client, parent, machineFinalizer)
	return err
}

func tokens(bug string) controllertest.Scenario {
	return controllertest.Scenario{
		Name: "tokens",
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			l, err := newLoop(cfg, env, loopOptions{})
			if err != nil {
				return err
			}
			parents := l.factory.Core().V1().ConfigMaps()
			if err := l.watch(corev1.Resource("configmaps"), parents.Informer(), self); err != nil {
				return err
			}
			c := &machines{
				bug: bug, parents: parents.Lister().ConfigMaps(env.Namespace),
				client: l.kube.CoreV1().ConfigMaps(env.Namespace), cloud: env.Cloud,
			}
			return l.run(ctx, c.reconcile)
		},
		Script: []controllertest.Step{
			{Name: "create", Do: createsConfigMap("p", map[string]string{"machine": "yes"})},
			{Name: "delete", Do: deletesConfigMap("p")},
		},
		Converged: machinesConverged,
		Invariants: []controllertest.Invariant{
			{Name: "one machine for each parent", Check: oneForEach},
		},
		Mask:  annotationsMask(machineID),
		Cloud: cloud.Options{Idempotent: true, HiddenReads: 2},
	}
}

// machinesConverged requires one machine for each parent, and no others.
func machinesConverged(s *controllertest.State) error {
	held := map[string]cloud.Resource{}
	for _, r := range s.Cloud() {
		held[r.Tags["owner"]] = r
	}
	for _, parent := range s.Objects("configmaps") {
		if configMapData(parent)["machine"] == "" {
			continue
		}
		machine, exists := held[string(parent.GetUID())]
		delete(held, string(parent.GetUID()))
		switch {
		case parent.GetDeletionTimestamp() != nil:
			return fmt.Errorf("%s is still being deleted", parent.GetName())
		case !exists:
			return fmt.Errorf("%s has no machine", parent.GetName())
		case annotation(parent, machineID) != machine.ID, annotation(parent, machineReady) == "":
			return fmt.Errorf("%s is not ready", parent.GetName())
		}
	}
	for _, machine := range held {
		return fmt.Errorf("machine %s belongs to nobody", machine.Name)
	}
	return nil
}

func tokensFamily() Family {
	return Family{Name: "tokens", Scenario: tokens, Mutants: []Mutant{
		{
			Bug: "read-is-absence", Cause: "absence by a read that lags",
			Does:      "removes the finalizer if a stale read does not show the machine",
			Reference: "pingcap/tidb-operator#6532",
			Plan:      "user-delete(configmaps/p)@external create p#1", Oracle: controllertest.Liveness,
		},
		{
			Bug: "lookup-only", Cause: "duplicate by a read that lags",
			Does:      "searches for a machine of an earlier attempt by a stale read, and sends no token",
			Reference: "kubernetes-sigs/cluster-api-provider-aws#6132",
			Plan:      "crash-after@external create p#1", Oracle: controllertest.Invariance,
		},
		{
			Bug: "token-per-attempt", Cause: "idempotency token not stable",
			Does:      "sends a new token with each attempt, so the service treats the attempts as different requests",
			Reference: "go-to-k/cdkd#2090",
			Plan:      "crash-after@external create p#1", Oracle: controllertest.Invariance,
		},
	}}
}
