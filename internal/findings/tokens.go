package findings

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"
	issuer "k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/controllerkit/controllerkit/controllertest"
)

// tokens gives a ServiceAccount a Secret with a token, and deletes the Secret.
func tokens() controllertest.Scenario {
	return controllertest.Scenario{
		Name: "tokens",
		Start: start(func(ctx context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) ([]func(context.Context), error) {
			key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			if err != nil {
				return nil, err
			}
			generator, err := issuer.JWTTokenGenerator(issuer.LegacyIssuer, key)
			if err != nil {
				return nil, err
			}
			core := shared.Core().V1()
			c, err := serviceaccount.NewTokensController(klog.FromContext(ctx), core.ServiceAccounts(), core.Secrets(), kube, serviceaccount.TokensControllerOptions{
				TokenGenerator: generator, RootCA: []byte("ca"),
			})
			return []func(context.Context){func(ctx context.Context) { c.Run(ctx, 5) }}, err
		}),
		Script: []controllertest.Step{
			step("create an account", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "bot"}}, metav1.CreateOptions{})
				return err
			}),
			step("create a Secret", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.CoreV1().Secrets(namespace).Create(ctx, &corev1.Secret{
					ObjectMeta: metav1.ObjectMeta{Name: "bot", Annotations: map[string]string{corev1.ServiceAccountNameKey: "bot"}},
					Type:       corev1.SecretTypeServiceAccountToken,
				}, metav1.CreateOptions{})
				return err
			}),
			step("refer to the Secret", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				secret, err := kube.CoreV1().Secrets(namespace).Get(ctx, "bot", metav1.GetOptions{})
				if err == nil && len(secret.Data[corev1.ServiceAccountTokenKey]) == 0 {
					err = fmt.Errorf("the Secret has no token")
				}
				if err != nil {
					return err
				}
				_, err = kube.CoreV1().ServiceAccounts(namespace).Patch(ctx, "bot", types.MergePatchType, []byte(`{"secrets":[{"name":"bot"}]}`), metav1.PatchOptions{})
				return err
			}),
			step("delete the Secret", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return kube.CoreV1().Secrets(namespace).Delete(ctx, "bot", metav1.DeleteOptions{})
			}),
		},
		Converged: func(s *controllertest.State) error {
			account, err := as[corev1.ServiceAccount](s.Get("serviceaccounts", "bot"))
			if err != nil {
				return err
			}
			secret, err := as[corev1.Secret](s.Get("secrets", "bot"))
			switch {
			case err != nil:
				return err
			case account == nil && secret != nil:
				return fmt.Errorf("the Secret of a deleted account is left")
			case account == nil:
				return nil
			case secret == nil && len(account.Secrets) > 0:
				return fmt.Errorf("the account refers to a deleted Secret")
			case secret != nil && (len(secret.Data[corev1.ServiceAccountTokenKey]) == 0 || secret.Annotations[corev1.ServiceAccountUIDKey] != string(account.UID)):
				return fmt.Errorf("the Secret has no token of this account")
			}
			return nil
		},
	}
}
