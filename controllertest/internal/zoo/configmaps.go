package zoo

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
)

// Actions of users on ConfigMaps, as steps of scripts.

func createsConfigMap(name string, data map[string]string) func(context.Context, *rest.Config, *controllertest.Env) error {
	return withConfigMaps(func(ctx context.Context, configMaps typedcorev1.ConfigMapInterface) error {
		_, err := configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}, metav1.CreateOptions{})
		return err
	})
}

func editsConfigMap(name, patch string) func(context.Context, *rest.Config, *controllertest.Env) error {
	return withConfigMaps(func(ctx context.Context, configMaps typedcorev1.ConfigMapInterface) error {
		_, err := configMaps.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	})
}

func deletesConfigMap(name string) func(context.Context, *rest.Config, *controllertest.Env) error {
	return withConfigMaps(func(ctx context.Context, configMaps typedcorev1.ConfigMapInterface) error {
		return configMaps.Delete(ctx, name, metav1.DeleteOptions{})
	})
}

func withConfigMaps(do func(context.Context, typedcorev1.ConfigMapInterface) error) func(context.Context, *rest.Config, *controllertest.Env) error {
	return func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		kube, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return err
		}
		return do(ctx, kube.CoreV1().ConfigMaps(env.Namespace))
	}
}

// configMapData is never nil.
func configMapData(o *unstructured.Unstructured) map[string]string {
	data, _, err := unstructured.NestedStringMap(o.Object, "data")
	if err != nil || data == nil {
		return map[string]string{}
	}
	return data
}
