package stacks_test

import (
	"context"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"

	"github.com/controllerkit/controllerkit/internal/stacks"
)

// hold runs a goroutine with the label until the test ends.
func hold(t *testing.T, value string) {
	stop, started := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		pprof.Do(context.Background(), pprof.Labels("stacks_test", value), func(context.Context) {
			close(started)
			<-stop
		})
	})
	<-started
	t.Cleanup(func() { close(stop); wg.Wait() })
}

func TestLabelled(t *testing.T) {
	hold(t, `a"b`)
	hold(t, `a"b/inner`)
	hold(t, "ab")

	got := stacks.Labelled("stacks_test", `a"b`, 1<<16)
	if n := strings.Count(got, "stacks_test.hold"); n < 2 || strings.Contains(got, `"ab"`) {
		t.Errorf("got %s\nwant the goroutines of the label and of the nested one", got)
	}
	got = stacks.Labelled("stacks_test", `a"b/inner`, 1<<16)
	if !strings.Contains(got, "inner") || strings.Contains(got, `a\"b"}`) {
		t.Errorf("got %s\nwant the nested goroutine", got)
	}
	if got := stacks.Labelled("stacks_test", `a"b`, 100); len(got) > 120 || !strings.HasSuffix(got, "... cut off") {
		t.Errorf("got %d bytes, want 100 and a line about the cut: %s", len(got), got)
	}
	if got := stacks.Labelled("stacks_test", "b", 1<<16); got != "no goroutine with this label is left" {
		t.Errorf("got %s", got)
	}
}
