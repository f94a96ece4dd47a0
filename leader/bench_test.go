package leader_test

import (
	"context"
	"testing"

	"github.com/controllerkit/controllerkit/leader"
)

// leading calls f with the context of a leader.
func leading(t testing.TB, f func(ctx context.Context, term leader.Term)) {
	t.Helper()
	e, _ := newStore().elector("a")
	if err := e.Run(t.Context(), func(ctx context.Context) error {
		term, _ := leader.TermFrom(ctx)
		f(ctx, term)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestCheckDoesNotAllocate: Term.Check may guard every write.
func TestCheckDoesNotAllocate(t *testing.T) {
	leading(t, func(ctx context.Context, term leader.Term) {
		if got := testing.AllocsPerRun(100, func() {
			if term.Check(ctx) != nil {
				t.Error("Term.Check() is not nil while leading")
			}
		}); got != 0 {
			t.Errorf("Term.Check() allocates %v times, want 0", got)
		}
	})
}

func BenchmarkTermCheck(b *testing.B) {
	leading(b, func(ctx context.Context, term leader.Term) {
		b.ReportAllocs()
		for b.Loop() {
			if err := term.Check(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkTermFrom(b *testing.B) {
	leading(b, func(ctx context.Context, _ leader.Term) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := leader.TermFrom(ctx); !ok {
				b.Fatal("no term")
			}
		}
	})
}
