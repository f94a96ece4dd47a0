package serve_test

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/serve"
)

// The metrics and the page for people who debug need a token, the probes of the kubelet do
// not. Package shutdown runs the server: group.Add("https", shutdown.Server(server)).
func ExampleNew() {
	config := &rest.Config{Host: "https://127.0.0.1:6443", QPS: -1} // in a Pod: rest.InClusterConfig()
	kube := kubernetes.NewForConfigOrDie(config)
	mux := http.NewServeMux() // with /metrics, /debug/, /readyz and /livez
	server, err := serve.New(serve.Config{
		Addr:    ":8443",
		Handler: mux,
		Open:    []string{"/readyz", "/livez"},
		Guard: &serve.Guard{
			Tokens: kube.AuthenticationV1().TokenReviews(),
			Access: kube.AuthorizationV1().SubjectAccessReviews(),
		},
	})
	fmt.Println(server, err)
	// Output: <nil> serve: other hosts can reach Config.Addr ":8443": set Config.KeyPair, or Guard.PlainHTTP if a proxy ends TLS
}

// Without a Guard, only this host can reach the server: kubectl port-forward does.
func ExampleNew_debug() {
	server, err := serve.New(serve.Config{Handler: http.NotFoundHandler()})
	fmt.Println(server.Addr, err)
	// Output: 127.0.0.1:6060 <nil>
}

// A Guard is middleware for any server. One for the audience "metrics" accepts only tokens
// that are good for nothing else.
func ExampleGuard() {
	kube := kubernetes.NewForConfigOrDie(&rest.Config{Host: "https://127.0.0.1:6443", QPS: -1})
	guard := &serve.Guard{
		Tokens:    kube.AuthenticationV1().TokenReviews(),
		Access:    kube.AuthorizationV1().SubjectAccessReviews(),
		Audiences: []string{"metrics"},
	}
	w := httptest.NewRecorder()
	guard.Handler(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "https://controller/metrics", nil))
	fmt.Println(w.Code, w.Header().Get("WWW-Authenticate"))
	// Output: 401 Bearer
}

// A KeyPair also fits other servers, such as that of a webhook.
func ExampleKeyPair() {
	pair := &serve.KeyPair{Cert: "/missing/tls.crt", Key: "/missing/tls.key"}
	_ = &tls.Config{GetCertificate: pair.GetCertificate}
	fmt.Println(pair.Check())
	// Output: serve: KeyPair.Cert "/missing/tls.crt" and KeyPair.Key "/missing/tls.key" are not a pair of files in PEM: open /missing/tls.crt: no such file or directory
}
