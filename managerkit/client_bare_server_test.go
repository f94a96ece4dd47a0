package managerkit_test

import (
	"net/http"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/ssa"
)

// TestServerBare: if the cache removes managedFields, the first needless apply is logged with the
// cure, and later ones are not. An apply with an effect is not needless, and a Memory sends no second
// request. If the cache keeps them, nothing is sent or logged.
func TestServerBare(t *testing.T) {
	for _, test := range []struct {
		name     string
		strips   bool
		memory   *ssa.Memory[*corev1.ConfigMap, any]
		requests int // of three calls
		lines    int
	}{
		{name: "stripped", strips: true, requests: 3, lines: 1},
		{name: "stripped, with a Memory", strips: true, memory: &ssa.Memory[*corev1.ConfigMap, any]{}, requests: 1},
		{name: "kept"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			namespace, options := testserver.Namespace(t), quiet()
			options.Cache.DefaultNamespaces = map[string]cache.Config{namespace: {}}
			if test.strips {
				options.Cache.DefaultTransform = cache.TransformStripManagedFields()
			}
			config, requests := recorder(testserver.Config(t))
			mgr, err := ctrl.NewManager(config, options)
			if err != nil {
				t.Fatal(err)
			}
			startManager(t, mgr)
			all, err := managerkit.NewClient[*corev1.ConfigMap](mgr.GetClient(), mgr.GetAPIReader())
			if err != nil {
				t.Fatal(err)
			}
			informer, err := mgr.GetCache().GetInformer(t.Context(), &corev1.ConfigMap{})
			if err != nil {
				t.Fatal(err)
			}
			versions := make(chan string, 100)
			if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
				AddFunc:    func(obj any) { versions <- obj.(*corev1.ConfigMap).ResourceVersion },
				UpdateFunc: func(_, obj any) { versions <- obj.(*corev1.ConfigMap).ResourceVersion },
			}); err != nil {
				t.Fatal(err)
			}
			logs, maps := testlog.New(), all.Namespace(namespace)
			ctx := logs.Context(t.Context())
			apply := func(value string) {
				t.Helper()
				cached := &corev1.ConfigMap{}
				if err := mgr.GetClient().Get(ctx, client.ObjectKey{Namespace: namespace, Name: "a"}, cached); apierrors.IsNotFound(err) {
					cached = nil
				} else if err != nil {
					t.Fatal(err)
				}
				desired := applycorev1.ConfigMap("a", namespace).WithData(map[string]string{"a": value})
				extract := func(live *corev1.ConfigMap, manager string) (any, error) {
					return applycorev1.ExtractConfigMap(live, manager)
				}
				if _, _, err := test.memory.ApplyChanged(ctx, "test.example.com/bare", maps.Apply, any(desired), cached, extract); err != nil {
					t.Fatal(err)
				}
			}
			for _, value := range []string{"one", "two"} { // both have an effect
				apply(value)
				live, err := maps.Get(ctx, "a", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				for receive(t, versions, "event") != live.ResourceVersion {
				}
			}
			const line = "Each ApplyChanged sends a request, because the cache removes metadata.managedFields"
			if found := logs.Find(line); len(found) > 0 {
				t.Errorf("after applies with an effect: %v", found)
			}
			requests()
			for range 3 {
				apply("two")
			}
			sent := slices.DeleteFunc(methods(requests()), func(method string) bool { return method != http.MethodPatch })
			if found := logs.Find(line); len(sent) != test.requests || len(found) != test.lines {
				t.Errorf("%d requests and the lines %v, want %d and %d", len(sent), found, test.requests, test.lines)
			}
		})
	}
}
