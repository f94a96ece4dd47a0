package page

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/world"
)

var shops = schema.GroupVersionResource{Group: "shop.example.com", Version: "v1", Resource: "shops"} // 1

func TestExplore(t *testing.T) {
	controllertest.Explore(t, controllertest.Scenario{
		Name:  "shops", // in the variable that repeats a plan; "" means the name of the test
		CRDs:  []string{"config/crd.yaml"}, // 2
		Start: start,
		World: world.Cluster{}.Run, // remove this line without Pods, or on a cluster with kubelets
		Script: []controllertest.Step{
			step("create", func(ctx context.Context, shops dynamic.ResourceInterface) error { // 3
				_, err := shops.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "shop.example.com/v1", "kind": "Shop", "metadata": map[string]any{"name": "a"},
					"spec": map[string]any{"replicas": int64(2)},
				}}, metav1.CreateOptions{})
				return err
			}),
			step("fewer replicas", func(ctx context.Context, shops dynamic.ResourceInterface) error {
				_, err := shops.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"replicas":1}}`), metav1.PatchOptions{FieldValidation: metav1.FieldValidationStrict})
				return err
			}),
		},
		Converged: func(s *controllertest.State) error { // 4
			shop, deployment := s.Get("shops.shop.example.com", "a"), s.Get("deployments.apps", "a")
			if (shop == nil) != (deployment == nil) {
				return errors.New("the Deployment is missing, or left")
			}
			if shop == nil {
				return nil
			}
			want, _, _ := unstructured.NestedInt64(shop.Object, "spec", "replicas")
			have, _, _ := unstructured.NestedInt64(deployment.Object, "spec", "replicas")
			if want != have {
				return fmt.Errorf("%d replicas, want %d", have, want)
			}
			return nil
		},
	}, controllertest.Options{Budget: 2 * time.Minute})
}

// start is what the main function does: it makes the controller and blocks until ctx is done.
func start(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
	return runShops(ctx, cfg, env.Namespace) // 5
}

func step(name string, do func(context.Context, dynamic.ResourceInterface) error) controllertest.Step {
	return controllertest.Step{Name: name, Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		client, err := dynamic.NewForConfig(cfg)
		if err != nil {
			return err
		}
		return do(ctx, client.Resource(shops).Namespace(env.Namespace))
	}}
}

// runShops stands for your controller.
func runShops(ctx context.Context, cfg *rest.Config, namespace string) error { return nil }
