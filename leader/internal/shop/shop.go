// Package shop has the controller of the manifests of leader, for the tests of leader and
// fence.
package shop

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
)

// Patience bounds the asynchronous work of the API server.
const Patience = 30 * time.Second

// Eventually repeats try, for changes that have no event.
func Eventually(t testing.TB, what string, try func() error) {
	t.Helper()
	deadline := time.After(Patience)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("%s: not after %v: %v", what, Patience, err)
		}
	}
}

// Clients returns the clients of a configuration.
func Clients(t testing.TB, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return clients
}

// Within returns what c receives.
func Within[T any](t testing.TB, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(Patience):
		t.Fatalf("%s: not within %v", what, Patience)
	}
	return v
}

// Manifest returns the documents of a file, for another name than
// shop: that is the namespace, and the beginning of the other names.
func Manifest(t testing.TB, file, shop string) [][]byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var docs [][]byte
	for doc := range strings.SplitSeq(strings.ReplaceAll(string(data), "shop", shop), "\n---\n") {
		docs = append(docs, []byte(doc))
	}
	return docs
}

// Account makes the ServiceAccount shop-controller of the manifests, for
// another name than shop, and returns its user name and a configuration with a
// token of it.
func Account(t testing.TB, shop string) (user string, config *rest.Config) {
	t.Helper()
	accounts := Clients(t, testserver.Config(t)).CoreV1().ServiceAccounts(shop)
	name := shop + "-controller"
	if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := accounts.CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config = rest.AnonymousClientConfig(testserver.Config(t))
	config.BearerToken = token.Status.Token
	config.QPS = -1
	return "system:serviceaccount:" + shop + ":" + name, config
}

// Elector is the Elector of the manifests, for another name than shop.
func Elector(leases leader.LeaseClient, shop, identity string) *leader.Elector {
	return &leader.Elector{
		Leases: leases, Namespace: shop, Name: shop + "-controller", Identity: identity,
		LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 200 * time.Millisecond,
		StartTimeout: Patience, // a Role takes effect some time after it was created
	}
}

// Create creates an object from YAML or JSON; a cluster-scoped one is deleted
// when the test ends.
func Create(t testing.TB, doc []byte) *unstructured.Unstructured {
	t.Helper()
	var obj unstructured.Unstructured
	if err := yaml.Unmarshal(doc, &obj.Object); err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	gvk := obj.GroupVersionKind()
	plural := strings.ToLower(gvk.Kind) + "s"
	if before, ok := strings.CutSuffix(plural, "policys"); ok {
		plural = before + "policies"
	}
	resource := client.Resource(gvk.GroupVersion().WithResource(plural)).Namespace(obj.GetNamespace())
	created, err := resource.Create(t.Context(), &obj, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		t.Fatalf("create %s %s: %v", gvk.Kind, obj.GetName(), err)
	}
	if obj.GetNamespace() == "" {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // the test's own has ended
			defer cancel()
			if err := resource.Delete(ctx, obj.GetName(), metav1.DeleteOptions{}); err != nil {
				t.Errorf("delete %s %s: %v", gvk.Kind, obj.GetName(), err)
			}
		})
	}
	return created
}
