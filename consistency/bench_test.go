package consistency_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/consistency"
)

// One reconcile with one write: what the store costs beside it.
func BenchmarkWriteAndReady(b *testing.B) {
	s := consistency.New(consistency.Config{Stores: stores{pods: at("1000")}})
	b.ReportAllocs()
	for b.Loop() {
		s.WroteAt(owner, "u", pods, "1000")
		if !s.Ready(owner, nil) {
			b.Fatal("not ready")
		}
	}
}

// What every event of every informer costs.
func BenchmarkHandler(b *testing.B) {
	for _, waiting := range []int{0, 10, 1000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			s := consistency.New(consistency.Config{Stores: stores{pods: at("1")}, RecheckInterval: time.Hour})
			for i := range waiting {
				key := types.NamespacedName{Name: fmt.Sprint(i)}
				s.WroteAt(key, "u", pods, "2")
				s.Ready(key, func() {})
			}
			h := s.Handler()
			b.ReportAllocs()
			for b.Loop() {
				h.OnUpdate(nil, nil)
			}
		})
	}
}

// What recording adds to a write, by encoding, for a pod of about 4 KiB.
func BenchmarkWrap(b *testing.B) {
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: "42"}}
	for i := range 50 {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprint("container-", i), Image: "registry.example.com/some/image:v1"})
	}
	json := append(object("42"), fmt.Sprintf("%4000s", " ")...)
	for _, tc := range []struct {
		name, contentType string
		body              []byte
	}{
		{"json", "application/json", json},
		{"protobuf", "application/vnd.kubernetes.protobuf", protobufOf(b, pod)},
	} {
		for _, wrapped := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/wrapped=%v", tc.name, wrapped), func(b *testing.B) {
				s := tracked()
				var rt http.RoundTripper = respond(200, tc.contentType, tc.body)
				if wrapped {
					rt = s.Wrap(rt)
				}
				req, err := http.NewRequestWithContext(s.Begin(b.Context(), owner), "PUT", "https://server/api/v1/namespaces/ns/pods/n", nil)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for b.Loop() {
					resp, err := rt.RoundTrip(req)
					if err != nil {
						b.Fatal(err)
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			})
		}
	}
}
