package reconcile_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestServerHotLoop: a Func that writes something new to its own object each time, against
// the real API server and its watch, comes to its limit and is logged with the event that
// its write makes.
//
// Proves R9.
func TestServerHotLoop(t *testing.T) {
	config := rest.CopyConfig(testserver.Config(t))
	config.QPS = -1
	admin := kubernetes.NewForConfigOrDie(config)
	namespace := testserver.Namespace(t)
	factory := informers.NewSharedInformerFactoryWithOptions(admin, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "test=upper" }))
	configMaps := factory.Core().V1().ConfigMaps().Informer()
	logs, q := newLogs(), newTestQueue()
	c := &controller{Name: "x", Queue: q, HasSynced: []cache.DoneChecker{configMaps.HasSyncedChecker()}}
	source := c.Source("configmaps")
	if _, err := configMaps.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, obj any) { source.AddEvent(event("update"), addOptions{}, "a") },
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().ConfigMaps(namespace).Create(t.Context(), configMap("a", "x"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	const calls = 130
	ctx, cancel := context.WithTimeout(logs.Context(t.Context()), 2*time.Minute)
	defer cancel()
	n, began, burst := 0, time.Time{}, time.Duration(0)
	c.Reconcile = func(ctx context.Context, _ string) (reconcile.Result, error) {
		switch n++; n {
		case 1:
			began = time.Now()
		case 100:
			burst = time.Since(began)
		case calls:
			cancel()
			return reconcile.Result{}, nil
		}
		patch := fmt.Appendf(nil, `{"data":{"time":%q}}`, time.Now().String())
		_, err := admin.CoreV1().ConfigMaps(namespace).Patch(ctx, "a", types.MergePatchType, patch, metav1.PatchOptions{})
		return reconcile.Result{}, err
	}
	factory.StartWithContext(ctx)
	q.Add("a")
	if err := c.Run(ctx); err != nil {
		t.Fatal(err)
	}
	factory.Shutdown()
	q.ShutDown()
	if took, least := time.Since(began), (calls-100)*100*time.Millisecond; n != calls || took < least {
		t.Errorf("%d calls in %v, want %d in at least %v", n, took, calls, least)
	}
	// On a server so slow that the key never ran out of tokens nothing is logged.
	if lines := logs.Find(slowed); burst < time.Second && (len(lines) != 1 || fmt.Sprint(lines[0].Values["triggers"]) != "[configmaps update]") {
		t.Errorf("logged %v, want one line with the trigger", lines)
	}
}
