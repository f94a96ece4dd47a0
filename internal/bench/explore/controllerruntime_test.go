// Package explore_test shows that controllertest explores any controller that can
// be started from a rest.Config: here one of controller-runtime.
package explore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/controllerkit/controllerkit/controllertest"
)

const copySuffix = "-copy"

// copier keeps a copy of each ConfigMap's data in another one that it owns.
type copier struct{ client.Client }

func (c copier) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var original corev1.ConfigMap
	if err := c.Get(ctx, request.NamespacedName, &original); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if original.DeletionTimestamp != nil || metav1.GetControllerOf(&original) != nil {
		return ctrl.Result{}, nil
	}
	duplicate := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: original.Namespace, Name: original.Name + copySuffix}}
	_, err := controllerutil.CreateOrUpdate(ctx, c.Client, duplicate, func() error {
		duplicate.Data = original.Data
		return controllerutil.SetControllerReference(&original, duplicate, c.Scheme())
	})
	return ctrl.Result{}, err
}

func startManager(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
	unique := true
	manager, err := ctrl.NewManager(cfg, ctrl.Options{
		Logger:                  logr.FromContextOrDiscard(ctx),
		Cache:                   cache.Options{DefaultNamespaces: map[string]cache.Config{env.Namespace: {}}},
		Metrics:                 server.Options{BindAddress: "0"},
		Controller:              config.Controller{SkipNameValidation: &unique}, // each life is a new process
		GracefulShutdownTimeout: new(time.Duration),
	})
	if err != nil {
		return err
	}
	if err := ctrl.NewControllerManagedBy(manager).For(&corev1.ConfigMap{}).Owns(&corev1.ConfigMap{}).Complete(copier{manager.GetClient()}); err != nil {
		return err
	}
	return manager.Start(ctx)
}

// TestControllerRuntime explores a controller of controller-runtime.
func TestControllerRuntime(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	original := func(value string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "original"}, Data: map[string]string{"value": value}}
	}
	controllertest.Explore(t, controllertest.Scenario{
		Start: startManager,
		Script: []controllertest.Step{
			{Name: "create", Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
				_, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().ConfigMaps(env.Namespace).Create(ctx, original("1"), metav1.CreateOptions{})
				return err
			}},
			{Name: "change", Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
				_, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().ConfigMaps(env.Namespace).Update(ctx, original("2"), metav1.UpdateOptions{})
				return err
			}},
		},
		Converged: func(s *controllertest.State) error {
			want, have := s.Get("configmaps", "original"), s.Get("configmaps", "original"+copySuffix)
			switch {
			case want == nil && have == nil:
				return nil
			case want == nil || have == nil || fmt.Sprint(want.Object["data"]) != fmt.Sprint(have.Object["data"]):
				return fmt.Errorf("the copy differs from the original")
			}
			return nil
		},
	}, controllertest.Options{})
}
