package warn_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/operator/internal/warn"
)

func TestOnce(t *testing.T) {
	logs := testlog.New()
	ctx := logs.Context(t.Context())
	h := warn.Once()
	for range 3 {
		h.HandleWarningHeaderWithContext(ctx, 299, "-", "v1beta1 is deprecated")
		h.HandleWarningHeaderWithContext(ctx, 299, "-", "another\none")
		h.HandleWarningHeaderWithContext(ctx, 299, "-", "")
		h.HandleWarningHeaderWithContext(ctx, 199, "-", "not of the API server")
	}
	if lines := logs.All(); len(lines) != 2 || lines[0].Values["warning"] != "v1beta1 is deprecated" || lines[1].Values["warning"] != `another\none` || lines[0].Level != 0 {
		t.Errorf("got %+v", lines)
	}

	// The memory is bounded, and forgets the oldest text.
	for i := range 5000 {
		h.HandleWarningHeaderWithContext(ctx, 299, "-", fmt.Sprint(i))
	}
	h.HandleWarningHeaderWithContext(ctx, 299, "-", "v1beta1 is deprecated")
	if n := len(logs.All()); n != 2+5000+1 {
		t.Errorf("%d lines, want one for each text, and one more for the forgotten one", n)
	}
}

func TestOnceAtOnce(t *testing.T) {
	logs := testlog.New()
	ctx := logs.Context(t.Context())
	h := warn.Once()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 100 {
				h.HandleWarningHeaderWithContext(ctx, 299, "-", fmt.Sprint(i))
			}
		})
	}
	wg.Wait()
	if n := len(logs.All()); n != 100 {
		t.Errorf("%d lines, want 100", n)
	}
}
