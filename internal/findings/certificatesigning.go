package findings

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controller/certificates/approver"
	"k8s.io/kubernetes/pkg/controller/certificates/signer"

	"github.com/controllerkit/controllerkit/controllertest"
)

// certificateRequests asks for a certificate of a kubelet, which is approved and signed, and for
// one with a name that the signer rejects, which a person approves.
func certificateRequests() controllertest.Scenario {
	return controllertest.Scenario{
		Name: "certificatesigningrequest",
		Start: start(func(ctx context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) (_ []func(context.Context), err error) {
			folder, err := os.MkdirTemp("", "findings-")
			if err != nil {
				return nil, err
			}
			defer func() {
				if err != nil {
					os.RemoveAll(folder)
				}
			}()
			cert, key, err := writeAuthority(folder)
			if err != nil {
				return nil, err
			}
			requests := shared.Certificates().V1().CertificateSigningRequests()
			signs, err := signer.NewKubeletClientCSRSigningController(ctx, kube, requests, cert, key, time.Hour)
			if err != nil {
				return nil, err
			}
			approves := approver.NewCSRApprovingController(ctx, kube, requests)
			return []func(context.Context){
				func(ctx context.Context) { approves.Run(ctx, 5) },
				func(ctx context.Context) {
					defer os.RemoveAll(folder)
					signs.Run(ctx, 5)
				},
			}, nil
		}),
		Script: []controllertest.Step{
			step("ask for a certificate", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return askFor(ctx, kube, namespace+"-node", "system:node:"+namespace)
			}),
			step("ask for a wrong name", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return askFor(ctx, kube, namespace+"-wrong", namespace)
			}),
			step("approve it", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				api := kube.CertificatesV1().CertificateSigningRequests()
				request, err := api.Get(ctx, namespace+"-wrong", metav1.GetOptions{})
				if err != nil {
					return err
				}
				request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Person"})
				_, err = api.UpdateApproval(ctx, request.Name, request, metav1.UpdateOptions{})
				return err
			}),
		},
		Converged: func(s *controllertest.State) error {
			for _, u := range s.Objects("certificatesigningrequests.certificates.k8s.io") {
				request, err := as[certificatesv1.CertificateSigningRequest](u)
				if err != nil {
					return err
				}
				has := func(kind certificatesv1.RequestConditionType) bool {
					return slices.ContainsFunc(request.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == kind })
				}
				node := request.Name == s.Namespace()+"-node"
				signed, approved, failed := len(request.Status.Certificate) > 0, has(certificatesv1.CertificateApproved), has(certificatesv1.CertificateFailed)
				if signed != node || node && !approved || failed != (approved && !node) {
					return fmt.Errorf("%s is approved: %t, signed: %t, failed: %t", request.Name, approved, signed, failed)
				}
			}
			return nil
		},
	}
}

// askFor creates a request for the certificate of a kubelet. It names no real key of a kubelet.
func askFor(ctx context.Context, kube kubernetes.Interface, name, common string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: common, Organization: []string{"system:nodes"}}}, key)
	if err != nil {
		return err
	}
	_, err = kube.CertificatesV1().CertificateSigningRequests().Create(ctx, &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: certificatesv1.CertificateSigningRequestSpec{
		Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
		Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
	}}, metav1.CreateOptions{})
	return err
}

// writeAuthority writes a certification authority to two files of a folder.
func writeAuthority(folder string) (cert, key string, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	public, err := x509.CreateCertificate(rand.Reader, authority, authority, private.Public(), private)
	if err != nil {
		return "", "", err
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return "", "", err
	}
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(folder, name)
		if err == nil {
			var text bytes.Buffer
			if err = pem.Encode(&text, &pem.Block{Type: kind, Bytes: der}); err == nil {
				err = os.WriteFile(file, text.Bytes(), 0o600)
			}
		}
		return file
	}
	cert, key = write("ca.crt", "CERTIFICATE", public), write("ca.key", "EC PRIVATE KEY", secret)
	return cert, key, err
}
