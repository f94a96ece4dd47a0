package consistency_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientfeatures "k8s.io/client-go/features"
	featuretest "k8s.io/client-go/features/testing"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/testserver"
)

// What is proven in JSON and protobuf holds in CBOR too, with a server and a client of
// which that feature is turned on.
//
// Proves C1, C3, C6 and C5.
func TestServerCBOR(t *testing.T) {
	featuretest.SetFeatureDuringTest(t, clientfeatures.ClientsAllowCBOR, true)
	featuretest.SetFeatureDuringTest(t, clientfeatures.ClientsPreferCBOR, true)
	server := testserver.Own(t, "--", "--feature-gates=CBORServingAndStorage=true")
	for _, tt := range []struct {
		name string
		test func(*testing.T, *fixture)
	}{{"writes", testReadYourWrites}, {"deletions", testDeletions}, {"conflicts", testConflicts}} {
		t.Run(tt.name, func(t *testing.T) {
			var sent, answered atomic.Int64
			counted := func() *rest.Config {
				config := server.Config()
				config.Wrap(func(next http.RoundTripper) http.RoundTripper {
					return roundTripper(func(req *http.Request) (*http.Response, error) {
						resp, err := next.RoundTrip(req)
						if err == nil && req.Method != http.MethodGet {
							if strings.HasSuffix(req.Header.Get("Content-Type"), "cbor") {
								sent.Add(1)
							}
							if resp.Header.Get("Content-Type") == cborType {
								answered.Add(1)
							}
						}
						return resp, err
					})
				})
				return config
			}
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tt.name}} // it goes with its server
			if _, err := kubernetes.NewForConfigOrDie(server.Config()).CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			tt.test(t, newFixtureOn(t, counted, ns.Name, cborType))
			t.Logf("%d writes sent in CBOR, %d answered", sent.Load(), answered.Load())
			if sent.Load() == 0 || answered.Load() == 0 {
				t.Error("no write was sent and answered in CBOR: the test proves nothing")
			}
		})
	}
}
