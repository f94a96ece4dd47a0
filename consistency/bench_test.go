package consistency_test

import (
	"fmt"
	"net/http"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
	for _, waiting := range []int{0, 10, 10_000} {
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

// answerOf4KiB is a pod as a server answers it, of 4 KiB or a little more.
func answerOf4KiB(t testing.TB, encode func(testing.TB, runtime.Object) []byte) []byte {
	for n := 1; ; n++ {
		if body := encode(t, podWithContainers(n)); len(body) >= 4<<10 {
			return body
		}
	}
}

func podWithContainers(n int) *corev1.Pod {
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "n", UID: "d5b3b6a8-7f0f-4a3c-9f8e-0123456789ab", ResourceVersion: "123456",
		Labels:        map[string]string{"app.kubernetes.io/name": "n", "app.kubernetes.io/part-of": "some-application"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", Operation: "Apply", APIVersion: "v1", FieldsType: "FieldsV1"}},
	}}
	var fields strings.Builder
	for i := range n {
		container := fmt.Sprint("container-", i)
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: container, Image: "registry.example.com/some/image:v1", Command: []string{"/bin/server", "--verbose"}})
		fmt.Fprintf(&fields, `,"k:{\"name\":\"%s\"}":{".":{},"f:command":{},"f:image":{},"f:name":{}}`, container)
	}
	pod.ManagedFields[0].FieldsV1 = metav1.NewFieldsV1(`{"f:spec":{"f:containers":{".":{}` + fields.String() + "}}}")
	return pod
}

// roundTrip is one write, of which the caller reads the answer.
func roundTrip(t testing.TB, rt http.RoundTripper, req *http.Request, buf []byte) {
	resp, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = resp.Body.Read(buf)
	}
	resp.Body.Close()
}

// What recording adds to a write, by encoding.
func BenchmarkWrap(b *testing.B) {
	for _, e := range encodings {
		body := answerOf4KiB(b, e.encode)
		for _, wrapped := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/wrapped=%v", e.name, wrapped), func(b *testing.B) {
				s := tracked()
				var rt http.RoundTripper = respond(200, e.contentType, body)
				if wrapped {
					rt = s.Wrap(rt)
				}
				req, err := http.NewRequestWithContext(s.Begin(b.Context(), owner), "PUT", "https://server/api/v1/namespaces/ns/pods/n", nil)
				if err != nil {
					b.Fatal(err)
				}
				buf := make([]byte, 32<<10)
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				for b.Loop() {
					roundTrip(b, rt, req, buf)
					s.Clear(owner, "")
				}
			})
		}
	}
}

// TestWrapGarbage proves C3. A write of an object of 4 KiB makes at most 1 KiB of garbage
// beyond that of the transport below, the record included. So responses share memory.
func TestWrapGarbage(t *testing.T) {
	const most = 1 << 10
	for _, e := range encodings {
		t.Run(e.name, func(t *testing.T) {
			body := answerOf4KiB(t, e.encode)
			s := tracked()
			req, err := http.NewRequestWithContext(s.Begin(t.Context(), owner), "PUT", "https://server/api/v1/namespaces/ns/pods/n", nil)
			if err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 32<<10)
			measure := func(rt http.RoundTripper) int {
				// The median, because the race detector makes a sync.Pool lose a quarter.
				garbage := make([]uint64, 101)
				for i := range garbage {
					var before, after goruntime.MemStats
					goruntime.ReadMemStats(&before)
					roundTrip(t, rt, req, buf)
					s.Clear(owner, "")
					goruntime.ReadMemStats(&after)
					garbage[i] = after.TotalAlloc - before.TotalAlloc
				}
				slices.Sort(garbage)
				return int(garbage[len(garbage)/2])
			}
			bare := respond(200, e.contentType, body)
			if more := measure(s.Wrap(bare)) - measure(bare); more > most {
				t.Errorf("%d bytes of garbage a write, want at most %d", more, most)
			}
			roundTrip(t, s.Wrap(bare), req, buf)
			if got, want := missing(s, owner), "pods@123456"; got != want {
				t.Errorf("recorded %q, want %q", got, want)
			}
		})
	}
}
