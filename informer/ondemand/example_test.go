package ondemand_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer/ondemand"
)

// A controller watches the ConfigMaps of namespaces that its own objects name. Two objects
// that name the same namespace share one informer.
func Example() {
	client := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "settings"}})
	namespaces := &ondemand.Informers[string]{
		New: func(namespace string) (cache.SharedIndexInformer, error) {
			factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
			return factory.Core().V1().ConfigMaps().Informer(), nil
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- namespaces.Run(ctx) }()

	watches := map[string]*ondemand.Watch{} // by the name of the object
	for _, object := range []string{"a", "b"} {
		w, err := namespaces.Open("blue") // one informer for both
		if err != nil {
			panic(err)
		}
		watches[object] = w
	}
	fmt.Println(watches["a"].Close(ctx))
	b := watches["b"]
	if err := b.WaitForSync(ctx); err != nil {
		panic(err)
	}
	settings, err := corelisters.NewConfigMapLister(b.GetIndexer()).ConfigMaps("blue").Get("settings")
	fmt.Println(settings.Name, err)
	fmt.Println(b.Close(ctx), b.IsStopped())

	cancel()
	fmt.Println(<-stopped)
	// Output:
	// <nil>
	// settings <nil>
	// <nil> true
	// <nil>
}
