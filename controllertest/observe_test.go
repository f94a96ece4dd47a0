package controllertest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// The first write of a resource waits for the watch of the resource, because an invariant
// would see a state without its objects. The watch of a resource that has none delays one
// write only.
func TestFirstWriteWaitsForTheWatch(t *testing.T) {
	for _, tc := range []struct {
		name string
		list time.Duration // the time of the watch's first list
		want time.Duration
	}{
		{name: "slow list", list: time.Second, want: time.Second},
		{name: "no list", list: time.Hour, want: beginTimeout},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
					{Group: "apps", Version: "v1", Resource: "deployments"}: "DeploymentList",
				})
				client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
					select {
					case <-ctx.Done():
					case <-time.After(tc.list):
					}
					return false, nil, nil
				})
				o := newObserver(ctx, "x")
				o.dyn = client
				r := &run{x: &explorer{observer: o}}
				write := &fault.Op{Verb: "create", Resource: "deployments.apps", Version: "v1", Namespace: metav1.NamespaceDefault}
				began := time.Now()
				r.observes(write)
				if took := time.Since(began); took != tc.want {
					t.Errorf("the first write waited for %v, want %v", took, tc.want)
				}
				began = time.Now()
				r.observes(write)
				r.observes(&fault.Op{Verb: "create", Resource: "events", Version: "v1"})
				if took := time.Since(began); took != 0 {
					t.Errorf("the next writes waited for %v", took)
				}
				stop()
				o.wg.Wait()
			})
		})
	}
}
