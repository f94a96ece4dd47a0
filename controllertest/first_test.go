package controllertest_test

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
)

func TestGreeter(t *testing.T) {
	controllertest.Explore(t, controllertest.Scenario{
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			return runGreeter(ctx, cfg, env.Namespace) // what main does
		},
		Script: []controllertest.Step{{
			Name: "create a name",
			Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
				name := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "gopher"}}
				_, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().ConfigMaps(env.Namespace).Create(ctx, name, metav1.CreateOptions{})
				return err
			},
		}},
		Converged: func(s *controllertest.State) error {
			name, greeting := s.Get("configmaps", "gopher"), s.Get("configmaps", "gopher-greeting")
			if (name == nil) != (greeting == nil) {
				return errors.New("a greeting is missing, or left")
			}
			return nil
		},
	}, controllertest.Options{})
}
