package metrics_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/testserver"
)

// TestRequestsToARealServer: what a client made with Wrap does is what is counted.
func TestRequestsToARealServer(t *testing.T) {
	namespace := testserver.Namespace(t)
	m, reg := newMetrics(t)
	config := testserver.Config(t)
	config.Wrap(m.Transport)
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defer httpClient.CloseIdleConnections()
	client, err := kubernetes.NewForConfigAndClient(config, httpClient)
	if err != nil {
		t.Fatal(err)
	}
	configMaps := client.CoreV1().ConfigMaps(namespace)
	if _, err := configMaps.List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := configMaps.Get(t.Context(), "none", metav1.GetOptions{}); err == nil {
		t.Fatal("Get of nothing succeeded")
	}
	if err := configMaps.Delete(t.Context(), "none", metav1.DeleteOptions{}); err == nil {
		t.Fatal("Delete of nothing succeeded")
	}
	w, err := configMaps.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.Stop()

	u, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.ReplaceAll(`# HELP rest_client_requests_total Total number of requests to an API server, by status code, or <error> without a response.
# TYPE rest_client_requests_total counter
rest_client_requests_total{code="200",host="HOST",method="GET"} 2
rest_client_requests_total{code="404",host="HOST",method="DELETE"} 1
rest_client_requests_total{code="404",host="HOST",method="GET"} 1
`, "HOST", u.Host)
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "rest_client_requests_total"); err != nil {
		t.Error(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "rest_client_request_duration_seconds" {
			continue
		}
		n := uint64(0)
		for _, x := range f.GetMetric() {
			n += x.GetHistogram().GetSampleCount()
		}
		if n != 3 {
			t.Errorf("%d durations observed, want 3: the watch has none", n)
		}
	}
}
