package families_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/controllerkit/controllerkit/managerkit/internal/families"
	"github.com/controllerkit/controllerkit/metrics"
)

// Beside registers no family of requests: controller-runtime can register one later, with its own labels and
// MustRegister, when a program asks it to.
func TestBesideLaterFamilies(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := metrics.New(families.Beside{Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	again, err := metrics.New(families.Beside{Registerer: registry})
	if err != nil || m == nil || again == nil {
		t.Errorf("a second New: %v", err)
	}
	for _, name := range []string{"rest_client_requests_total", "rest_client_request_duration_seconds", "rest_client_request_retries_total"} {
		registry.MustRegister(prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: "Other words."}, []string{"other"}))
	}
	if _, err := registry.Gather(); err != nil {
		t.Error(err)
	}
}
