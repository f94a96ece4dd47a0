package finalizer_test

import (
	"context"
	"testing"

	"github.com/controllerkit/controllerkit/finalizer"
)

// BenchmarkEnsureHeld is what every reconcile of a live object pays: the finalizer
// is there, no request.
func BenchmarkEnsureHeld(b *testing.B) {
	obj := object("a", false, "x.example.com/1", name)
	client := &answering{}
	cleanup := func(context.Context, held) error { return nil }
	b.ReportAllocs()
	for b.Loop() {
		if _, live, err := finalizer.Ensure(b.Context(), client, obj, name, cleanup); err != nil || !live {
			b.Fatal(live, err)
		}
	}
	if client.calls > 0 {
		b.Fatalf("%d requests", client.calls)
	}
}

// BenchmarkPlan is one pass over a plan whose steps have nothing to do, next to the
// one request that it makes.
func BenchmarkPlan(b *testing.B) {
	obj := object("a", true, name)
	p := plan{Client: &answering{object: obj}}
	for _, name := range []string{"a", "b", "c", "d"} {
		p.Steps = append(p.Steps, step{Name: name, Run: says(done, nil)})
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := finalizer.Ensure(b.Context(), p.Client, obj, name, p.Run); err != nil {
			b.Fatal(err)
		}
	}
}
