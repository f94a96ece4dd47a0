package leader_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testnames"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
)

// Run and Preflight accept each name of a Lease and of a namespace that the API server
// accepts, and refuse the others before a request.
func TestServerNames(t *testing.T) {
	client := kubernetes.NewForConfigOrDie(testserver.Config(t))
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	library := func(field, namespace, name string) error {
		e := &leader.Elector{Leases: client.CoordinationV1().Leases("default"), Namespace: namespace, Name: name}
		run := e.Run(done, func(context.Context) error { return nil })
		preflight := e.Preflight(done, client.AuthorizationV1().SelfSubjectAccessReviews())
		var found []error
		for _, err := range []error{run, preflight} {
			if err != nil && strings.HasPrefix(err.Error(), "leader: "+field+" is ") {
				found = append(found, err)
			}
		}
		if len(found) == 1 {
			t.Errorf("%.80q/%.80q: Run: %v, Preflight: %v", namespace, name, run, preflight)
		}
		return errors.Join(found...)
	}
	names := testnames.All(t)
	lenient := testnames.Compare(t, names, func(name string) error {
		_, err := client.CoordinationV1().Leases("default").Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}, dryRun)
		return err
	}, func(name string) error { return library("Name", "default", name) }, nil)
	lenient = append(lenient, testnames.Compare(t, names, func(name string) error {
		_, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, dryRun)
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}, func(name string) error { return library("Namespace", name, "x") }, nil)...)
	if len(lenient) > 0 {
		t.Errorf("the API server rejects names that only a request shows: %q", lenient)
	}
}
