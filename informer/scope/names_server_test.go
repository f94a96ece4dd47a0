package scope_test

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer/scope"
	"github.com/controllerkit/controllerkit/internal/testnames"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// Select accepts each name of a namespace that the API server accepts.
func TestServerNamespaces(t *testing.T) {
	client := kubernetes.NewForConfigOrDie(testserver.Config(t))
	errOpen := errors.New("opened")
	s := scope.New(func(scope.Part) (cache.SharedIndexInformer, error) { return nil, errOpen })
	testnames.Compare(t, testnames.All(t), func(name string) error {
		if name == "" {
			return nil // Select means all namespaces
		}
		_, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}, func(name string) error {
		err := s.Select(quiet(t), in(name))
		switch {
		case errors.Is(err, errOpen):
			return nil
		case err == nil || !strings.Contains(err.Error(), "Selection.Namespaces"):
			t.Errorf("%.80q: %v", name, err)
		}
		return err
	}, nil)
}
