package fleet_test

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/status/fleet"
)

// printer stands for a *metrics.Metrics.
type printer struct{}

func (printer) FleetObjects(resource string, conditions func(yield func(condition, status, reason string, objects int)), notReady func() (int, time.Time)) {
	conditions(func(condition, status, reason string, objects int) {
		fmt.Println(resource, condition, status, reason, objects)
	})
	objects, oldest := notReady()
	fmt.Println("not ready:", objects, "since", oldest.UTC().Format(time.TimeOnly))
}

func ExampleTracker() {
	websites := &fleet.Tracker{Resource: "websites.example.com", NeedsReady: true}
	var _ cache.ResourceEventHandler = websites // for informer.AddEventHandler

	noon := metav1.Date(2026, time.May, 1, 12, 0, 0, 0, time.UTC)
	for _, name := range []string{"blog", "shop"} {
		websites.OnAdd(&Website{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Status: WebsiteStatus{Conditions: []metav1.Condition{
				{Type: "Ready", Status: metav1.ConditionFalse, Reason: "NoQuota", LastTransitionTime: noon},
			}},
		}, false)
	}
	websites.Report(printer{})
	// Output:
	// websites.example.com Ready False NoQuota 2
	// not ready: 2 since 12:00:00
}
