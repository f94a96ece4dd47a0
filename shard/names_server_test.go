package shard_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testnames"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/shard"
)

// Run accepts each name whose Leases the API server accepts: that of the table, and that of
// a replica with a suffix, both with the name as the value of a label.
func TestServerNames(t *testing.T) {
	leases := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoordinationV1().Leases("default")
	done, cancel := context.WithCancel(t.Context())
	cancel()
	lenient := testnames.Compare(t, testnames.All(t), func(name string) error {
		var errs []error
		for _, lease := range []string{name, name + "-12345678"} {
			_, err := leases.Create(t.Context(), &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: lease, Labels: map[string]string{"controllerkit.github.io/shard-group": name}},
			}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}, func(name string) error {
		g := &shard.Group{Leases: leases, Namespace: "default", Name: name, Identity: "a", Ranges: shard.Ranges{N: 1}}
		err := g.Run(done, func(context.Context, shard.Shard) error { return nil })
		if err != nil && strings.HasPrefix(err.Error(), "shard: Name is ") {
			return err
		}
		return nil
	}, nil)
	if len(lenient) > 0 {
		t.Errorf("the API server rejects names that only a request shows: %q", lenient)
	}
}
