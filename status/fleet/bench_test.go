package fleet_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/internal/testprocess"
	"github.com/controllerkit/controllerkit/status/fleet"
)

// big returns a Tracker of n objects of which each tenth is not ready.
func big(n int) *fleet.Tracker {
	w := &fleet.Tracker{Resource: "websites.example.com", NeedsReady: true}
	for i := range n {
		state := "True"
		if i%10 == 0 {
			state = "False"
		}
		w.OnAdd(site(fmt.Sprint("website-", i), cond("Ready "+state+" Reason", i%60), cond("Synced True Done", 1)), true)
	}
	return w
}

// TestScrape: what a scrape of 200,000 objects reads takes less than 50 ms.
func TestScrape(t *testing.T) {
	if testprocess.Race() {
		t.Skip("make test runs this test without the race detector")
	}
	w := big(200_000)
	best := time.Hour
	for range 5 {
		begin := time.Now()
		w.Conditions(func(string, string, string, int) {})
		if n, _ := w.NotReady(); n != 20_000 {
			t.Fatalf("%d objects are not ready, want 20,000", n)
		}
		best = min(best, time.Since(begin))
	}
	t.Logf("a scrape took %v", best)
	if best > 50*time.Millisecond {
		t.Errorf("a scrape of 200,000 objects took %v, want at most 50ms", best)
	}
	runtime.KeepAlive(w)
}

// TestMemory: an object takes a few bytes, and one without conditions none.
func TestMemory(t *testing.T) {
	if testprocess.Race() {
		t.Skip("make test runs this test without the race detector")
	}
	const objects = 100_000
	for _, tt := range []struct {
		conditions []metav1.Condition
		most       int64 // bytes of an object
	}{
		{most: 1},
		{conditions: []metav1.Condition{cond("Ready False Failed", 1)}, most: 64},
	} {
		w := &fleet.Tracker{}
		before := heap()
		for i := range objects {
			w.OnAdd(site(fmt.Sprint("website-", i), tt.conditions...), true)
		}
		if n, _ := w.NotReady(); n != objects*len(tt.conditions) {
			t.Errorf("%d objects are not ready, want %d", n, objects*len(tt.conditions))
		}
		got := (heap() - before) / objects
		if t.Logf("%d bytes for an object with %d conditions", got, len(tt.conditions)); got > tt.most {
			t.Errorf("%d bytes for an object with %d conditions, want at most %d", got, len(tt.conditions), tt.most)
		}
		runtime.KeepAlive(w)
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func BenchmarkScrape(b *testing.B) {
	w := big(200_000)
	b.ReportAllocs()
	for b.Loop() {
		w.Conditions(func(string, string, string, int) {})
		w.NotReady()
	}
}

func BenchmarkEvent(b *testing.B) {
	w := big(1000)
	obj := site("website-1", cond("Ready True Reason", 1), cond("Synced True Done", 1))
	b.ReportAllocs()
	for b.Loop() {
		w.OnUpdate(obj, obj)
	}
}
