package findings

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os/exec"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/cert"

	"github.com/controllerkit/controllerkit/controllertest"
)

// caInjector gives a webhook the CA of a Secret, replaces the CA, and changes the webhook.
func caInjector() controllertest.Scenario {
	first, second := authority("first"), authority("second")
	return controllertest.Scenario{
		Name: "cainjector",
		Command: func(p controllertest.Process) (*exec.Cmd, error) {
			return exec.Command(certManagerProgram, "-kubeconfig", p.Kubeconfig, "-namespace", p.Namespace, "-cainjector"), nil
		},
		Setup: buildCertManager,
		Script: []controllertest.Step{
			step("create a CA and a webhook", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.CoreV1().Secrets(namespace).Create(ctx, &corev1.Secret{
					ObjectMeta: metav1.ObjectMeta{Name: "ca", Annotations: map[string]string{"cert-manager.io/allow-direct-injection": "true"}},
					Data:       map[string][]byte{"ca.crt": first},
				}, metav1.CreateOptions{})
				if err != nil {
					return err
				}
				hook := admissionv1.MutatingWebhook{
					Name: "hook.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: new(admissionv1.SideEffectClassNone), FailurePolicy: new(admissionv1.Ignore),
					ClientConfig: admissionv1.WebhookClientConfig{URL: new("https://127.0.0.1:1/")}, // it is for no resource, so nobody calls it
				}
				_, err = kube.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(ctx, &admissionv1.MutatingWebhookConfiguration{
					ObjectMeta: metav1.ObjectMeta{Name: namespace, Annotations: map[string]string{"cert-manager.io/inject-ca-from-secret": namespace + "/ca"}},
					Webhooks:   []admissionv1.MutatingWebhook{hook},
				}, metav1.CreateOptions{})
				return err
			}),
			step("replace the CA", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				patch := fmt.Sprintf(`{"data":{"ca.crt":%q}}`, base64.StdEncoding.EncodeToString(second))
				_, err := kube.CoreV1().Secrets(namespace).Patch(ctx, "ca", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
				return err
			}),
			step("remove the CA from the webhook", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(ctx, namespace, types.JSONPatchType, []byte(`[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]`), metav1.PatchOptions{})
				return err
			}),
		},
		Mask: func(obj *unstructured.Unstructured) { // after a restart the former CA can stay, too
			hooks, _, _ := unstructured.NestedSlice(obj.Object, "webhooks")
			for _, hook := range hooks {
				unstructured.RemoveNestedField(hook.(map[string]any), "clientConfig", "caBundle")
			}
			if hooks != nil {
				_ = unstructured.SetNestedSlice(obj.Object, hooks, "webhooks")
			}
		},
		Converged: func(s *controllertest.State) error {
			hook, err := as[admissionv1.MutatingWebhookConfiguration](s.Get("mutatingwebhookconfigurations.admissionregistration.k8s.io", s.Namespace()))
			if err != nil || hook == nil {
				return err
			}
			secret, err := as[corev1.Secret](s.Get("secrets", "ca"))
			if err != nil || secret == nil {
				return err
			}
			if have, want := hook.Webhooks[0].ClientConfig.CABundle, secret.Data["ca.crt"]; !bytes.Contains(have, want) { // the former CA can stay beside it
				return fmt.Errorf("the webhook has the CA %q, want %q", have, want)
			}
			return nil
		},
	}
}

// authority returns the PEM of a CA's certificate. It panics, because only the machine's source of
// random numbers can fail.
func authority(name string) []byte {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	ca, err := cert.NewSelfSignedCACert(cert.Config{CommonName: name}, key)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: ca.Raw})
}
