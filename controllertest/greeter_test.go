package controllertest_test

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

const greetingSuffix = "-greeting"

// runGreeter is a small controller: each ConfigMap gets a greeting, another one
// that it owns and that the garbage collector removes with it.
func runGreeter(ctx context.Context, cfg *rest.Config, namespace string) error {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			if o.ResourceVersion == "0" {
				o.ResourceVersion = "" // the present, not what some API server's cache has
			}
		}))
	configMaps := factory.Core().V1().ConfigMaps()
	work := queue.New(queue.Config[types.NamespacedName]{})
	registration, err := configMaps.Informer().AddEventHandler(enqueue.Handler(work, func(o metav1.Object) []types.NamespacedName {
		// A greeting that was deleted has to come back.
		return []types.NamespacedName{{Namespace: o.GetNamespace(), Name: strings.TrimSuffix(o.GetName(), greetingSuffix)}}
	}))
	if err != nil {
		return err
	}
	defer factory.Shutdown()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	factory.StartWithContext(ctx)
	controller := &reconcile.Controller[types.NamespacedName]{
		Name: "greeter", Queue: work, HasSynced: []cache.DoneChecker{registration.HasSyncedChecker()},
		Reconcile: func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
			name, err := configMaps.Lister().ConfigMaps(key.Namespace).Get(key.Name)
			if err != nil {
				return reconcile.Result{}, ignoreNotFound(err)
			}
			text := "hello, " + key.Name
			if greeting, err := configMaps.Lister().ConfigMaps(key.Namespace).Get(key.Name + greetingSuffix); err == nil && metav1.IsControlledBy(greeting, name) {
				if greeting.Data["greeting"] == text {
					return reconcile.Result{}, nil
				}
				greeting = greeting.DeepCopy()
				greeting.Data = map[string]string{"greeting": text}
				_, err := client.CoreV1().ConfigMaps(key.Namespace).Update(ctx, greeting, metav1.UpdateOptions{})
				return reconcile.Result{}, err
			}
			_, err = client.CoreV1().ConfigMaps(key.Namespace).Create(ctx, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{
					Name:            key.Name + greetingSuffix,
					OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(name, corev1.SchemeGroupVersion.WithKind("ConfigMap"))},
				},
				Data: map[string]string{"greeting": text},
			}, metav1.CreateOptions{})
			return reconcile.Result{}, err
		},
	}
	return controller.Run(ctx)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
