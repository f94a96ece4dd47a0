package operator_test

import (
	"fmt"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/serve"
	"github.com/controllerkit/controllerkit/shutdown"
)

// secure serves the endpoints of op over TLS, and /metrics only to users who may read it.
// Options.Listen is empty then.
func secure(op *operator.Operator, addr string, pair *serve.KeyPair) (*http.Server, error) {
	op.Writes(authenticationv1.Resource("tokenreviews"), "create") // for op.Rules
	op.Writes(authorizationv1.Resource("subjectaccessreviews"), "create")
	kube := kubernetes.NewForConfigOrDie(op.Config)
	server, err := serve.New(serve.Config{
		Addr: addr, Handler: op.Mux, Open: []string{"/readyz", "/livez"}, KeyPair: pair,
		Guard: &serve.Guard{Tokens: kube.AuthenticationV1().TokenReviews(), Access: kube.AuthorizationV1().SubjectAccessReviews()},
	})
	if err == nil {
		op.Group.Add("https", shutdown.Server(server))
	}
	return server, err
}

// An operator whose metrics need a token. The kubelet's probes do not, with scheme HTTPS.
func Example_secure() {
	op, err := operator.New(&rest.Config{Host: "https://127.0.0.1:6443"}, operator.Options{Name: "mirror"})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = secure(op, ":8443", &serve.KeyPair{Cert: "/tls/tls.crt", Key: "/tls/tls.key"})
	fmt.Println(err)
	// Output: serve: KeyPair.Cert "/tls/tls.crt" and KeyPair.Key "/tls/tls.key" are not a pair of files in PEM: open /tls/tls.crt: no such file or directory
}
