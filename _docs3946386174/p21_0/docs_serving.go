package page

import (
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/debug"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/serve"
	"github.com/controllerkit/controllerkit/shutdown"
)
func secure(op *operator.Operator) error {
	op.Writes(authenticationv1.Resource("tokenreviews"), "create") // for op.Rules
	op.Writes(authorizationv1.Resource("subjectaccessreviews"), "create")
	kube := kubernetes.NewForConfigOrDie(op.Config)
	server, err := serve.New(serve.Config{
		Addr:    ":8443",
		Handler: op.Mux, // Run adds /metrics, /readyz and /livez
		Open:    []string{"/readyz", "/livez"},
		Guard:   &serve.Guard{Tokens: kube.AuthenticationV1().TokenReviews(), Access: kube.AuthorizationV1().SubjectAccessReviews()},
		KeyPair: &serve.KeyPair{Cert: "/tls/tls.crt", Key: "/tls/tls.key"},
	})
	if err == nil {
		op.Group.Add("https", shutdown.Server(server)) // call secure before op.Run
	}
	return err
}
// addDebug is called before the first controller is added, and the path is not in Open.
func addDebug(op *operator.Operator) {
	op.Debug = &debug.Page{}
	op.Mux.Handle("/debug/controllers", op.Debug)
	op.Mux.Handle("/debug/pprof/", debug.Profiles())
}
