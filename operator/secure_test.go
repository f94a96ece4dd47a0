package operator_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/serve"
)

// The endpoints of an operator that package serve protects, as in the example.
func TestServerSecure(t *testing.T) {
	t.Parallel()
	config, namespace := testserver.Config(t), testserver.Namespace(t)
	token := scraper(t, kubernetes.NewForConfigOrDie(config), namespace)
	p := newPairs(t, config, namespace, operator.Options{Name: "secure"})
	server, err := secure(p.op, "127.0.0.1:0", selfSigned(t))
	if err != nil {
		t.Fatal(err)
	}
	addrs := make(chan string, 1)
	server.BaseContext = func(l net.Listener) context.Context { addrs <- l.Addr().String(); return context.Background() }
	start(t, p.op, testlog.New())
	addr := receive(t, addrs)
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	for _, tc := range []struct {
		path, token, body string
		want              int
	}{
		{"/livez", "", "ok", http.StatusOK},
		{"/metrics", "", "Unauthorized", http.StatusUnauthorized},
		{"/metrics", token, "workqueue_depth", http.StatusOK},
		{"/debug", token, "Forbidden", http.StatusForbidden},
	} {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+addr+tc.path, http.NoBody)
		if tc.token != "" {
			r.Header.Set("Authorization", "Bearer "+tc.token)
		}
		resp, err := (&http.Client{Transport: transport}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != tc.want || !strings.Contains(string(body), tc.body) {
			t.Errorf("%s gives %d, %v and %.100q, want %d with %q", tc.path, resp.StatusCode, err, body, tc.want, tc.body)
		}
	}
}

// scraper returns the token of a ServiceAccount that may read /metrics.
func scraper(t *testing.T, kube kubernetes.Interface, namespace string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := kube.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "scraper"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "scraper-" + namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:monitoring"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "scraper"}},
	}
	if _, err := kube.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = kube.RbacV1().ClusterRoleBindings().Delete(context.WithoutCancel(t.Context()), binding.Name, metav1.DeleteOptions{})
	})
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:                  "system:serviceaccount:" + namespace + ":scraper",
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/metrics"},
	}}
	for allowed := false; !allowed; { // the authorizer reads bindings by a watch, so it lags
		answer, err := kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		allowed = answer.Status.Allowed
	}
	request, err := kube.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, "scraper", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

func selfSigned(t *testing.T) *serve.KeyPair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	pair := &serve.KeyPair{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	for path, block := range map[string]*pem.Block{pair.Cert: {Type: "CERTIFICATE", Bytes: cert}, pair.Key: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return pair
}
