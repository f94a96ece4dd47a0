package fault_test

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// A process creates an object. The first attempt is carried out, but its answer is
// lost; so the second one is refused. Then the process dies.
func ExampleNew() {
	// Any server will do; a test has a real one.
	stored := map[string]bool{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if stored["a"] {
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"AlreadyExists","code":409}`)
			return
		}
		stored["a"] = true
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}`)
	}))
	defer server.Close()
	cfg := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{
		CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}}

	attempts := 0
	process, err := fault.New(cfg, func(op *fault.Op) fault.Fault {
		attempts++
		fmt.Println("request:", op.Verb, op.Resource, op.Namespace+"/"+op.Name)
		return fault.Fault{Lose: attempts == 1}
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client, err := kubernetes.NewForConfig(process.Config())
	if err != nil {
		fmt.Println(err)
		return
	}
	create := func() error {
		_, err := client.CoreV1().ConfigMaps("default").Create(context.Background(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
		return err
	}
	fmt.Println("connection reset:", errors.Is(create(), syscall.ECONNRESET))
	fmt.Println("exists already:", apierrors.IsAlreadyExists(create()))
	process.Kill()
	fmt.Println("killed:", errors.Is(create(), fault.ErrKilled))
	// Output:
	// request: create configmaps default/a
	// connection reset: true
	// request: create configmaps default/a
	// exists already: true
	// killed: true
}

// A call to something else than the API server can be lost as well.
func ExampleFault_Call() {
	process, err := fault.New(&rest.Config{Host: "http://127.0.0.1"}, nil, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer process.Kill()
	err = fault.Fault{Lose: true}.Call(context.Background(), process, func(context.Context) error {
		fmt.Println("the machine is created")
		return nil
	})
	fmt.Println("and nobody learns it:", errors.Is(err, syscall.ECONNRESET))
	// Output:
	// the machine is created
	// and nobody learns it: true
}

// A list that any version would do for shows an old one.
func ExampleSetQuery() {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "https://server/api/v1/configmaps?resourceVersion=0", http.NoBody)
	if err != nil {
		fmt.Println(err)
		return
	}
	fault.SetQuery("resourceVersion", "7", "resourceVersionMatch", "Exact")(r)
	fmt.Println(r.URL.RawQuery)
	// Output: resourceVersion=7&resourceVersionMatch=Exact
}
