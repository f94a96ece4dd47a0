package size_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/controllerkit/controllerkit/informer/internal/size"
)

// TestSize: values of all kinds have the size of what they refer to, and any object takes
// bounded time. TestServerMemory compares it with the heap.
func TestSize(t *testing.T) {
	type ring struct{ next *ring }
	circle := &ring{}
	circle.next = circle
	var nested any
	for range 200_000 {
		nested = []any{nested}
	}
	many := map[string]string{}
	for i := range 1000 {
		many[strings.Repeat("k", 16+i%3)+time.Duration(i).String()] = "v"
	}
	for _, tc := range []struct {
		name      string
		obj       any
		low, high int64
	}{
		{"nil", nil, 0, 0},
		{"nil pointer", (*corev1.Pod)(nil), 0, 0},
		{"nil map", map[string]string(nil), 0, 0},
		{"bool", true, 0, 0},
		{"number", int64(1 << 40), 8, 8},
		{"text", strings.Repeat("x", 1000), 1016, 1060},
		{"bytes", make([]byte, 10, 1000), 1024, 1060},
		{"array", &[4]*int64{new(int64), new(int64)}, 48, 48},
		{"empty map", map[string]string{}, 48, 48},
		{"small map", map[string]string{"a": "b"}, 300, 360},
		{"large map", many, 60_000, 130_000},
		{"map without references", map[int64]int64{1: 2}, 180, 210},
		{"time", &struct{ t time.Time }{time.Now()}, 24, 32},
		{"circle", circle, 8 * 200, 8 * 500},
		{"nesting", nested, 10 << 10, 40 << 10},
		{"unstructured", &unstructured.Unstructured{Object: map[string]any{"a": []any{int64(1 << 40), "text", nil, true, 1.5}}}, 400, 600},
		{"channel and function", &struct {
			c chan int
			f func()
		}{make(chan int), func() {}}, 16, 16},
	} {
		if got, _ := size.Of(tc.obj, 100_000); got < tc.low || got > tc.high {
			t.Errorf("%s: Of() = %d, want from %d to %d", tc.name, got, tc.low, tc.high)
		}
	}
}

// TestSizeOfManyValues: no more than 100,000 values are read.
func TestSizeOfManyValues(t *testing.T) {
	text := strings.Repeat("x", 64)
	texts := make([]string, 300_000)
	for i := range texts {
		texts[i] = text
	}
	got, complete := size.Of(texts, 100_000)
	if want := int64(16*300_000 + 64*100_000); complete || got < want-6400 || got > want+6400 {
		t.Errorf("Of() = %d, %t, want about %d, false", got, complete, want)
	}
	pod := &corev1.Pod{}
	pod.Labels = map[string]string{"a": "b"}
	if _, complete := size.Of(pod, 100_000); !complete { // learns the types
		t.Error("Of() is not complete for a small object")
	}
	if n := testing.AllocsPerRun(100, func() { size.Of(pod, 100_000) }); n > 8 {
		t.Errorf("%v allocations, want those of a range over a map", n)
	}
}
