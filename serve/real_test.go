package serve_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/serve"
)

func guardOf(config *rest.Config, audiences ...string) *serve.Guard {
	kube := kubernetes.NewForConfigOrDie(config)
	return &serve.Guard{
		Tokens: kube.AuthenticationV1().TokenReviews(), Access: kube.AuthorizationV1().SubjectAccessReviews(),
		Audiences: audiences, Timeout: time.Minute, // the machine may be busy
	}
}

func newAccount(t *testing.T, kube kubernetes.Interface, namespace, name string) *corev1.ServiceAccount {
	t.Helper()
	account, err := kube.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return account
}

func tokenOf(t *testing.T, kube kubernetes.Interface, namespace, name string, audiences ...string) string {
	t.Helper()
	request, err := kube.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

// create makes the roles and bindings of rbac.yaml for a controller and a scraper in the
// namespace, and returns once the API server knows them.
func createRights(t *testing.T, kube kubernetes.Interface, namespace string) (controller string) {
	t.Helper()
	text, err := os.ReadFile("rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	controller = namespace + "-widgets"
	edited := strings.NewReplacer("widgets-system", namespace, "monitoring", namespace, "widgets", controller).Replace(string(text))
	rbac := kube.RbacV1()
	for document := range strings.SplitSeq(edited, "\n---\n") {
		var role rbacv1.ClusterRole
		var binding rbacv1.ClusterRoleBinding
		if yaml.UnmarshalStrict([]byte(document), &role) == nil && role.Kind == "ClusterRole" {
			_, err = rbac.ClusterRoles().Create(t.Context(), &role, metav1.CreateOptions{})
		} else if err = yaml.UnmarshalStrict([]byte(document), &binding); err == nil {
			_, err = rbac.ClusterRoleBindings().Create(t.Context(), &binding, metav1.CreateOptions{})
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		t.Cleanup(func() {
			ctx := context.WithoutCancel(t.Context())
			_ = rbac.ClusterRoles().Delete(ctx, role.Name, metav1.DeleteOptions{})
			_ = rbac.ClusterRoleBindings().Delete(ctx, binding.Name, metav1.DeleteOptions{})
		})
	}
	for _, spec := range []authorizationv1.SubjectAccessReviewSpec{
		{User: account(namespace, controller), ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "create", Group: "authentication.k8s.io", Resource: "tokenreviews"}},
		{User: account(namespace, "prometheus"), NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/metrics"}},
	} {
		known(t, kube, spec)
	}
	return controller
}

// known returns once the authorizer allows the spec: it reads roles by a watch, so it lags.
func known(t *testing.T, kube kubernetes.Interface, spec authorizationv1.SubjectAccessReviewSpec) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		review, err := kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("%+v is not allowed: %v", spec, err)
		}
		if review.Status.Allowed {
			return
		}
	}
}

func account(namespace, name string) string { return "system:serviceaccount:" + namespace + ":" + name }

// TestServerRights attacks a Guard whose clients have the rights of rbac.yaml and no more.
// It proves SV1 and CK6.
func TestServerRights(t *testing.T) {
	config, namespace := testserver.Config(t), testserver.Namespace(t)
	kube := kubernetes.NewForConfigOrDie(config)
	newAccount(t, kube, namespace, "prometheus")
	newAccount(t, kube, namespace, "visitor")
	controller := createRights(t, kube, namespace)
	config.Impersonate.UserName = account(namespace, controller)

	good, metrics := tokenOf(t, kube, namespace, "prometheus"), tokenOf(t, kube, namespace, "prometheus", "metrics")
	visitor, elsewhere := tokenOf(t, kube, namespace, "visitor"), tokenOf(t, kube, namespace, "prometheus", "elsewhere")
	parts := strings.Split(good, ".")
	var claims map[string]any
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		t.Fatal(err)
	}
	claims["sub"] = account(namespace, "other")
	payload, _ = json.Marshal(claims)
	forged := parts[0] + "." + base64.RawURLEncoding.EncodeToString(payload) + "." + parts[2]
	unsigned := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + parts[1] + "."

	server, own := guardOf(config), guardOf(config, "metrics", "more")
	for i, tc := range []struct {
		name        string
		guard       *serve.Guard
		token, path string
		want        int
	}{
		{"scraper", server, good, "/metrics", 200},
		{"scraper at another path", server, good, "/debug/controllers", 403},
		{"visitor", server, visitor, "/metrics", 403},
		{"visitor at a path of everybody", server, visitor, "/version", 200}, // system:public-info-viewer
		{"no token", server, "", "/metrics", 401},
		{"no JWT", server, "x", "/metrics", 401},
		{"cut", server, good[:len(good)-8], "/metrics", 401},
		{"forged", server, forged, "/metrics", 401},
		{"unsigned", server, unsigned, "/metrics", 401},
		{"another audience", server, elsewhere, "/metrics", 401},
		{"only our audience, at the API server's", server, metrics, "/metrics", 401},
		{"our audience", own, metrics, "/metrics", 200},
		{"our audience, visitor", own, tokenOf(t, kube, namespace, "visitor", "metrics"), "/metrics", 403},
		{"the API server's audience at ours", own, good, "/metrics", 401},
		{"another audience at ours", own, elsewhere, "/metrics", 401},
	} {
		addr := fmt.Sprintf("192.0.2.%d:1", i)
		if got := get(t, tc.guard.Handler(http.HandlerFunc(served)), tc.token, tc.path, addr); got != tc.want {
			t.Errorf("%s: the code is %d, want %d", tc.name, got, tc.want)
		}
	}

	config.Impersonate.UserName = account(namespace, "visitor")
	logs := testlog.New()
	w := send(logs.Context(t.Context()), guardOf(config).Handler(http.HandlerFunc(served)), good, "/metrics", anAddr)
	lines := logs.Find("Cannot review a request")
	if w.Code != 503 || len(lines) != 1 || !strings.Contains(lines[0].Err.Error(), "bind the ClusterRole system:auth-delegator") {
		t.Errorf("a controller without rights responds %d and logs %v, want 503 and the cure", w.Code, lines)
	}
	for _, line := range logs.All() {
		if text := fmt.Sprintf("%+v", line); strings.Contains(text, good) {
			t.Errorf("the log has the token: %s", text)
		}
	}
}

// TestServerExpired signs tokens with a key that the API server trusts: one that has
// expired, one that is not yet valid, and, so that the test proves something, one that is.
// Then the API server ends. It proves SV1.
func TestServerExpired(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	testserver.Needed(t)
	own, err := testserver.Start("--", "--service-account-key-file="+file)
	if err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceValue(own.Stop)
	t.Cleanup(func() { _ = stop() })
	config := own.Config()
	kube := kubernetes.NewForConfigOrDie(config)
	namespace := "monitoring"
	if _, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	prometheus := newAccount(t, kube, namespace, "prometheus")
	createRights(t, kube, namespace)

	now := time.Now()
	sign := func(from, to time.Time) string {
		claims, err := json.Marshal(map[string]any{
			"iss": "https://kubernetes.default.svc", "aud": []string{"https://kubernetes.default.svc"},
			"sub": account(namespace, "prometheus"), "iat": from.Unix(), "nbf": from.Unix(), "exp": to.Unix(),
			"kubernetes.io": map[string]any{"namespace": namespace, "serviceaccount": map[string]any{"name": "prometheus", "uid": prometheus.UID}},
		})
		if err != nil {
			t.Fatal(err)
		}
		signed := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256"}`)) + "." + base64.RawURLEncoding.EncodeToString(claims)
		sum := sha256.Sum256([]byte(signed))
		r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		signature := make([]byte, 64)
		r.FillBytes(signature[:32])
		s.FillBytes(signature[32:])
		return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
	}
	valid := sign(now.Add(-time.Hour), now.Add(time.Hour))
	guard := guardOf(config)
	h := guard.Handler(http.HandlerFunc(served))
	for _, tc := range []struct {
		name, token string
		want        int
	}{
		{"valid", valid, 200},
		{"expired", sign(now.Add(-2*time.Hour), now.Add(-time.Hour)), 401},
		{"not yet valid", sign(now.Add(time.Hour), now.Add(2*time.Hour)), 401},
	} {
		if got := get(t, h, tc.token, "/metrics", anAddr); got != tc.want {
			t.Errorf("%s: the code is %d, want %d", tc.name, got, tc.want)
		}
	}

	if err := stop(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if got := send(ctx, guardOf(config).Handler(http.HandlerFunc(served)), valid, "/metrics", anAddr).Code; got != 503 || ctx.Err() != nil {
		t.Errorf("the code is %d without an API server, the request ended with %v; want 503 within the Timeout", got, ctx.Err())
	}
}

// TestServerFlood sends 10,000 different tokens as fast as it can, from one address and from
// many, while a good one goes on. It proves SV2 and SV3.
func TestServerFlood(t *testing.T) {
	config, requests := testserver.Counted(t)
	namespace := testserver.Namespace(t)
	kube := kubernetes.NewForConfigOrDie(testserver.Config(t))
	newAccount(t, kube, namespace, "prometheus")
	createRights(t, kube, namespace)
	good := tokenOf(t, kube, namespace, "prometheus")
	h := guardOf(config).Handler(http.HandlerFunc(served))
	if got := get(t, h, good, "/metrics", anAddr); got != 200 {
		t.Fatalf("the code is %d, want 200", got)
	}
	before, start := requests.Load(), time.Now()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for i := next.Add(1); i <= 10_000; i = next.Add(1) {
				if got := get(t, h, fmt.Sprintf("%s%d", good, i), "/metrics", fmt.Sprintf("10.0.0.%d:1", i%250)); got != 401 && got != 429 {
					t.Errorf("the code is %d for a bad token, want 401 or 429", got)
				}
				if i%100 == 0 {
					if got := get(t, h, good, "/metrics", "10.0.0.1:1"); got != 200 {
						t.Errorf("the code is %d for the good token, want 200", got)
					}
				}
			}
		})
	}
	wg.Wait()
	// The good token may be reviewed again after a minute, by two requests.
	most := 20 + int64(time.Since(start).Seconds()*10) + 1 + 2*int64(time.Since(start).Minutes())
	if n := requests.Load() - before; n > most || n < 10 {
		t.Errorf("10,000 tokens made %d requests to the API server in %v, want at least 10 and at most %d", n, time.Since(start), most)
	} else {
		t.Logf("10,000 tokens in %v made %d requests to the API server", time.Since(start), n)
	}
}
