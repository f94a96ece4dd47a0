// Package testprocess has what tests need that start replicas as processes.
package testprocess

import (
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig writes what leads to the server of cfg into a file of the test.
func Kubeconfig(t testing.TB, cfg *rest.Config) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"": {
			Server: cfg.Host, TLSServerName: cfg.ServerName, InsecureSkipTLSVerify: cfg.Insecure,
			CertificateAuthority: cfg.CAFile, CertificateAuthorityData: cfg.CAData,
		}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"": {
			Token: cfg.BearerToken, TokenFile: cfg.BearerTokenFile, Username: cfg.Username, Password: cfg.Password,
			ClientCertificate: cfg.CertFile, ClientCertificateData: cfg.CertData,
			ClientKey: cfg.KeyFile, ClientKeyData: cfg.KeyData, Exec: cfg.ExecProvider,
		}},
		Contexts: map[string]*clientcmdapi.Context{"": {}},
	}, file)
	if err != nil {
		t.Fatal(err)
	}
	return file
}
