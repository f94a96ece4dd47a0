package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// credentials contains the credentials of one server: a certificate authority, which
// signs the serving certificate and the administrator's certificate, and the key of
// service account tokens.
type credentials struct {
	dir       string
	ca        []byte
	adminCert []byte
	adminKey  []byte
}

func (c *credentials) path(name string) string { return filepath.Join(c.dir, name) }

func newCredentials(dir string) (*credentials, error) {
	c := &credentials{dir: dir}
	caKey, caKeyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	caCert := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "controlplane"},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.AddDate(1, 0, 0),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	if c.ca, err = sign(caCert, caCert, caKey.Public(), caKey); err != nil {
		return nil, err
	}
	servingKey, servingKeyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	serving, err := sign(&x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: "kube-apiserver"},
		NotBefore:    caCert.NotBefore,
		NotAfter:     caCert.NotAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		DNSNames:     []string{"localhost", "kubernetes.default.svc"},
	}, caCert, servingKey.Public(), caKey)
	if err != nil {
		return nil, err
	}
	adminKey, adminKeyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	c.adminKey = adminKeyPEM
	if c.adminCert, err = sign(&x509.Certificate{
		SerialNumber: big.NewInt(3),
		Subject:      pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}},
		NotBefore:    caCert.NotBefore,
		NotAfter:     caCert.NotAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, caCert, adminKey.Public(), caKey); err != nil {
		return nil, err
	}
	_, tokensPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	for name, data := range map[string][]byte{
		"ca.crt": c.ca, "ca.key": caKeyPEM, "serving.crt": serving, "serving.key": servingKeyPEM, "tokens.key": tokensPEM,
		"admin.crt": c.adminCert, "admin.key": c.adminKey,
	} {
		if err := os.WriteFile(c.path(name), data, 0o600); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// readCredentials returns the credentials that newCredentials has written to dir.
func readCredentials(dir string) (*credentials, error) {
	c := &credentials{dir: dir}
	for name, data := range map[string]*[]byte{"ca.crt": &c.ca, "admin.crt": &c.adminCert, "admin.key": &c.adminKey} {
		var err error
		if *data, err = os.ReadFile(c.path(name)); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// contextName is the name of the kubeconfig's current context.
const contextName = "controlplane"

// writeKubeconfig writes the administrator's kubeconfig atomically, with a context for each
// URL. Only the owner can read the file.
func (c *credentials) writeKubeconfig(file string, urls map[string]string) error {
	cfg := clientcmdapi.NewConfig()
	cfg.AuthInfos[contextName] = &clientcmdapi.AuthInfo{ClientCertificateData: c.adminCert, ClientKeyData: c.adminKey}
	for name, url := range urls {
		cfg.Clusters[name] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: c.ca}
		cfg.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: contextName}
	}
	cfg.CurrentContext = contextName
	data, err := clientcmd.Write(*cfg)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".kubeconfig-") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // no-op after the rename
	if _, err := tmp.Write(data); err != nil {
		tmp.Close()
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), file)
}

// clientTLS returns the administrator's TLS configuration.
func (c *credentials) clientTLS() (*tls.Config, error) {
	cert, err := tls.X509KeyPair(c.adminCert, c.adminKey)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.ca)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}}, nil
}

func newKey() (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

func sign(cert, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) ([]byte, error) {
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, public, key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
