package findings

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
)

// The programs of the folder internal/certmanager: that of go.mod, and that of former.mod, which has
// the release before.
const (
	certManagerProgram       = "../../bin/cert-manager"
	formerCertManagerProgram = "../../bin/cert-manager-former"
)

// certificates issues a certificate by an Issuer that signs itself, and then renames its host.
func certificates() controllertest.Scenario {
	return controllertest.Scenario{
		Name:    "cert-manager",
		Command: program(certManagerProgram),
		Setup:   buildCertManager,
		CRDs:    []string{filepath.Join(sourceOf("internal/certmanager", "github.com/cert-manager/cert-manager"), "deploy", "crds")},
		Script: []controllertest.Step{
			certManagerStep("create an Issuer and a Certificate", func(ctx context.Context, of func(resource string) dynamic.ResourceInterface) error {
				issuer := certManagerObject("Issuer", "self", map[string]any{"selfSigned": map[string]any{}})
				if _, err := of("issuers").Create(ctx, issuer, metav1.CreateOptions{}); err != nil {
					return err
				}
				_, err := of("certificates").Create(ctx, certManagerObject("Certificate", "web", map[string]any{
					"secretName": "web-tls", "dnsNames": []any{"a.example.com"}, "issuerRef": map[string]any{"name": "self"},
					"privateKey": map[string]any{"algorithm": "ECDSA", "rotationPolicy": "Always"}, "revisionHistoryLimit": int64(1),
				}), metav1.CreateOptions{})
				return err
			}),
			certManagerStep("rename the host", func(ctx context.Context, of func(resource string) dynamic.ResourceInterface) error {
				_, err := of("certificates").Patch(ctx, "web", types.MergePatchType, []byte(`{"spec":{"dnsNames":["b.example.com"]}}`), metav1.PatchOptions{})
				return err
			}),
		},
		Accept: func(f controllertest.Finding, plan string) string {
			begins := func(kind controllertest.Kind, resource string) bool {
				return strings.HasPrefix(plan, string(kind)+"("+resource+".")
			}
			request, differs := strings.HasPrefix(f.Object, "certificaterequests."), f.Oracle == controllertest.EndState
			switch {
			case differs && begins(controllertest.UserDelete, "issuers"):
				return "without the Issuer nothing is issued"
			case differs && begins(controllertest.UserDelete, "certificates") && f.Object == "secrets/web-tls":
				return "a Certificate can be deleted before its Secret exists"
			case f.Oracle == controllertest.Events && (request || f.Object == "secrets/web-*"),
				differs && (begins(controllertest.TimeTravel, "certificates") || begins(controllertest.UserEdit, "certificates")) && (request || strings.HasSuffix(f.Field, ".status.revision")):
				return "cert-manager promises no number of issuances: see docs/findings.md"
			}
			return ""
		},
		Converged: func(s *controllertest.State) error {
			cert := s.Get("certificates.cert-manager.io", "web")
			if cert == nil || s.Get("issuers.cert-manager.io", "self") == nil {
				return nil
			}
			names, _, err := unstructured.NestedStringSlice(cert.Object, "spec", "dnsNames")
			if err != nil {
				return err
			}
			conditions, _, err := unstructured.NestedSlice(cert.Object, "status", "conditions")
			if err != nil {
				return err
			}
			ready := false
			for _, c := range conditions {
				c, _ := c.(map[string]any)
				ready = ready || c["type"] == "Ready" && c["status"] == "True" && c["observedGeneration"] == cert.GetGeneration()
				if c["type"] == "Issuing" && c["status"] == "True" {
					return fmt.Errorf("the Certificate is still issued: %v", c["message"])
				}
			}
			secret := s.Get("secrets", "web-tls")
			if !ready || secret == nil {
				return fmt.Errorf("the Certificate is not ready: %v", conditions)
			}
			if have := secret.GetAnnotations()["cert-manager.io/alt-names"]; have != strings.Join(names, ",") {
				return fmt.Errorf("the Secret is for %s, want %v", have, names)
			}
			return nil
		},
	}
}

// certManagerUpgrade lets a new cert-manager take over from the former one, after the Certificate is issued.
// The definitions are the new ones, because an upgrade installs them first.
func certManagerUpgrade() controllertest.Scenario {
	s := certificates()
	s.Name, s.From = "upgrade/cert-manager", &controllertest.Former{Command: program(formerCertManagerProgram)}
	s.Setup = func(ctx context.Context, cfg *rest.Config) error {
		return errors.Join(buildCertManager(ctx, cfg), build(ctx, "internal/certmanager", formerCertManagerProgram, "-modfile=former.mod", "-tags=former"))
	}
	return s
}

func buildCertManager(ctx context.Context, _ *rest.Config) error {
	return build(ctx, "internal/certmanager", certManagerProgram)
}

func certManagerStep(name string, do func(ctx context.Context, of func(resource string) dynamic.ResourceInterface) error) controllertest.Step {
	return controllertest.Step{Name: name, Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		client, err := dynamic.NewForConfig(cfg)
		if err != nil {
			return err
		}
		return do(ctx, func(resource string) dynamic.ResourceInterface {
			return client.Resource(schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: resource}).Namespace(env.Namespace)
		})
	}}
}

func certManagerObject(kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cert-manager.io/v1", "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
	}}
}
