package server_test

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/controllertest/server"
)

// A TestMain does this once for all tests of a package.
func ExampleStart() {
	s, err := server.Start(context.Background(), server.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := kubernetes.NewForConfigOrDie(s.Config())
	namespace, err := client.CoreV1().Namespaces().Get(context.Background(), "default", metav1.GetOptions{})
	fmt.Println(namespace.Name, err)
	fmt.Println("stopped:", s.Stop())
	// Output:
	// default <nil>
	// stopped: <nil>
}
