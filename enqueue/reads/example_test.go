package reads_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/enqueue/reads"
	"github.com/controllerkit/controllerkit/queue"
)

func informer() cache.SharedIndexInformer {
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: "https://127.0.0.1:6443"})
	return informers.NewSharedInformerFactory(client, 0).Core().V1().Secrets().Informer()
}

// A function that keeps what it has computed must read what that depends on again in each call, as the
// first lines of this one do. Otherwise the second call depends on nothing.
func ExampleTracker() {
	var tracker reads.Tracker[types.NamespacedName]
	secrets, err := reads.From[*corev1.Secret](&tracker, corev1.Resource("secrets"), informer(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	type computed struct{ version, result string }
	kept := map[types.NamespacedName]computed{}
	reconcile := reads.Track(&tracker, func(ctx context.Context, key types.NamespacedName) (string, error) {
		version := "none"
		secret, err := secrets.Get(ctx, key.Namespace, "ca")
		switch {
		case err == nil:
			version = secret.ResourceVersion
		case !apierrors.IsNotFound(err): // unknown, which is not absent
			return "", err
		}
		if kept[key].version != version {
			kept[key] = computed{version, "expensive with " + version}
		}
		return kept[key].result, nil
	})
	for range 2 {
		result, err := reconcile(context.Background(), types.NamespacedName{Namespace: "shop", Name: "web"})
		fmt.Println(result, err, tracker.Len())
	}
	// Output:
	// expensive with none <nil> 1
	// expensive with none <nil> 1
}

// An object that is created runs the key that has read it, and one that has listed its labels.
func ExampleFrom() {
	var tracker reads.Tracker[types.NamespacedName]
	byType := map[string]func(*corev1.Secret) []string{"type": func(s *corev1.Secret) []string { return []string{string(s.Type)} }}
	secrets, err := reads.From(&tracker, corev1.Resource("secrets"), informer(), byType)
	if err != nil {
		fmt.Println(err)
		return
	}
	read := reads.Track(&tracker, func(ctx context.Context, key types.NamespacedName) (any, error) {
		if key.Name == "web" {
			return secrets.Get(ctx, key.Namespace, "tls")
		}
		return secrets.List(ctx, key.Namespace, labels.SelectorFromSet(labels.Set{"app": "shop"}))
	})
	for _, name := range []string{"web", "all"} {
		if _, err := read(context.Background(), types.NamespacedName{Namespace: "shop", Name: name}); err != nil {
			fmt.Println(err)
		}
	}
	q := queue.New(queue.Config[types.NamespacedName]{})
	handler := secrets.Handler(q) // of the informer
	handler.OnAdd(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "other"}}, false)
	fmt.Println("after another secret:", q.Len())
	handler.OnAdd(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "tls", Labels: map[string]string{"app": "shop"}}}, false)
	fmt.Println("after the secret:", q.Len())
	// Output:
	// secrets "tls" not found
	// after another secret: 0
	// after the secret: 2
}
