package findings

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"

	"github.com/controllerkit/controllerkit/controllertest"
)

// accounts deletes ServiceAccounts that each namespace must have. Their names are not default,
// which every cluster creates by itself.
func accounts() controllertest.Scenario {
	names := []string{"robot", "machine"}
	return controllertest.Scenario{
		Name: "serviceaccount",
		Start: startWith(func(ctx context.Context, p process) ([]func(context.Context), error) {
			// Only the namespace of the run: the others are not to get accounts.
			namespaces := informers.NewSharedInformerFactoryWithOptions(p.kube, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
				o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, p.namespace).String()
			}))
			var options serviceaccount.ServiceAccountsControllerOptions
			for _, name := range names {
				options.ServiceAccounts = append(options.ServiceAccounts, corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}})
			}
			c, err := serviceaccount.NewServiceAccountsController(klog.FromContext(ctx), p.shared.Core().V1().ServiceAccounts(), namespaces.Core().V1().Namespaces(), p.kube, options)
			return []func(context.Context){func(ctx context.Context) {
				defer namespaces.Shutdown()
				namespaces.StartWithContext(ctx)
				c.Run(ctx, 1)
			}}, err
		}),
		Script: []controllertest.Step{
			step("create a ConfigMap", func(ctx context.Context, kube kubernetes.Interface, namespace string) error { // after it the accounts exist
				_, err := kube.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "first"}}, metav1.CreateOptions{})
				return err
			}),
			step("delete an account", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return kube.CoreV1().ServiceAccounts(namespace).Delete(ctx, names[0], metav1.DeleteOptions{})
			}),
			step("delete all accounts", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return kube.CoreV1().ServiceAccounts(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
			}),
		},
		Converged: func(s *controllertest.State) error {
			for _, name := range names {
				if s.Get("serviceaccounts", name) == nil {
					return fmt.Errorf("the account %s is missing", name)
				}
			}
			return nil
		},
	}
}
