package findings

import (
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/world/acme"
)

// webKey is an RSA key. Its signatures have no random part, so the certificate request of a name is the same in each run, and
// with it the hash in the name of an Order.
//
//go:embed testdata/web.key
var webKey []byte

// orders is certificates with an authority by ACME, which has seen the names before.
func orders() controllertest.Scenario {
	s := certificates()
	s.Name = "cert-manager-acme"
	var ca *acme.Server
	s.Setup = func(ctx context.Context, cfg *rest.Config) error {
		ca = acme.NewServer()
		ca.Trusted = true
		context.AfterFunc(ctx, ca.Close)
		return buildCertManager(ctx, cfg)
	}
	keep := step("create the key", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
		_, err := kube.CoreV1().Secrets(namespace).Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "web-tls"}, Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{corev1.TLSPrivateKeyKey: webKey, corev1.TLSCertKey: nil},
		}, metav1.CreateOptions{})
		return err
	})
	create := certManagerStep("", func(ctx context.Context, of func(resource string) dynamic.ResourceInterface) error {
		_, err := of("issuers").Create(ctx, certManagerObject("Issuer", "self", map[string]any{"acme": map[string]any{
			"server": ca.URL, "caBundle": base64.StdEncoding.EncodeToString(ca.Root), "privateKeySecretRef": map[string]any{"name": "account"},
			"solvers": []any{map[string]any{"http01": map[string]any{"ingress": map[string]any{}}}},
		}}), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		_, err = of("certificates").Create(ctx, certManagerObject("Certificate", "web", map[string]any{
			"secretName": "web-tls", "dnsNames": []any{"a.example.com"}, "issuerRef": map[string]any{"name": "self"},
			"privateKey": map[string]any{"algorithm": "RSA", "rotationPolicy": "Never"}, "revisionHistoryLimit": int64(1),
		}), metav1.CreateOptions{})
		return err
	})
	s.Script = []controllertest.Step{
		{Name: "create a key, an Issuer and a Certificate", Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			return errors.Join(keep.Do(ctx, cfg, env), create.Do(ctx, cfg, env))
		}},
		certManagerStep("rename the host", func(ctx context.Context, of func(resource string) dynamic.ResourceInterface) error {
			_, err := of("certificates").Patch(ctx, "web", types.MergePatchType, []byte(`{"spec":{"dnsNames":["b.example.com"]}}`), metav1.PatchOptions{})
			return err
		}),
	}
	accept := s.Accept
	s.Accept = func(f controllertest.Finding, plan string) string {
		switch {
		case f.Oracle == controllertest.Events && strings.HasPrefix(f.Object, "orders."):
			return "cert-manager promises no number of issuances: see docs/findings.md"
		case f.Object == "secrets/web-tls" && strings.HasPrefix(plan, string(controllertest.UserDelete)+"(secrets/web-tls)"):
			return "cert-manager creates a deleted Secret again, and leaves it behind with its Certificate"
		}
		return accept(f, plan)
	}
	return s
}
