package scope_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/scope"
)

// last has the functions of InformerLast.
type last map[string]func() time.Time

func (last) InformerListed(string, time.Duration)            {}
func (last) InformerWatched(string, time.Duration)           {}
func (last) InformerMutated(string, int)                     {}
func (last) InformerMalformed(string, func() int)            {}
func (l last) InformerLast(name string, of func() time.Time) { l[name] = of }

// A namespace whose lists are refused for a minute is named by Ready, makes the last event old, and
// does not end Run. A namespace that stalls is named by Check.
//
// Proves SC9.
func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		objects := scope.New(s.informer)
		metrics := last{}
		set := &informer.Set{Metrics: metrics, StallTimeout: time.Hour}
		j := newJournal()
		set.Add("configmaps", objects, handle(t, objects, j))
		ctx, cancel := context.WithCancel(quiet(t))
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- set.Run(ctx) }()
		synctest.Wait()
		want := func(age time.Duration) {
			t.Helper()
			synctest.Wait()
			const pause = 3 * time.Second // of client-go before a list
			for what, at := range map[string]time.Time{"last event": set.LastEvents()["configmaps"], "metric": metrics["configmaps"]()} {
				if got := time.Since(at); got < age-pause || got > age {
					t.Errorf("the %s is %v old, want %v", what, got, age)
				}
			}
		}
		must(t, objects.Select(t.Context(), in("a", "b")))
		want(0)
		must(t, set.Relist("configmaps"))
		s.forbid("a", true)
		s.expire("a")
		time.Sleep(59 * time.Second)
		s.expire("b") // lists again
		want(59 * time.Second)
		must(t, set.Ready())
		time.Sleep(2 * time.Minute)
		want(3*time.Minute - time.Second) // plus the pause of b's list
		must(t, set.Ready())              // a namespace's rights do not take the others out of service
		must(t, set.Check())
		s.put("b", "one", "x")
		wantEvents(t, j, "add b/one 11")
		s.forbid("a", false)
		time.Sleep(2 * time.Minute)
		must(t, set.Ready())

		s.expire("b")
		time.Sleep(time.Hour - time.Minute)
		s.expire("b")
		time.Sleep(time.Minute)
		if err := set.Check(); err == nil || !strings.HasPrefix(err.Error(), `informer: "configmaps": namespace a is stalled: `) || strings.Contains(err.Error(), "namespace b") {
			t.Errorf("Check = %v, want a stall of a", err)
		}
		must(t, objects.Select(t.Context(), in("b")))
		synctest.Wait()
		must(t, set.Check())
		want(time.Minute)
		s.forbid("c", true)
		if err := objects.Select(t.Context(), in("b", "c")); err == nil {
			t.Error("Select = nil for a forbidden namespace")
		}
		time.Sleep(10*time.Minute - 5*time.Second)
		s.expire("b")
		time.Sleep(5 * time.Second)
		want(10 * time.Minute) // of c
		must(t, set.Ready())   // which is not shown
		must(t, objects.Select(t.Context(), scope.Selection{}))
		synctest.Wait()
		if got := metrics["configmaps"](); !got.IsZero() {
			t.Errorf("the metric is %v without a namespace, want none", got)
		}
		must(t, set.Relist("configmaps"))
		cancel()
		must(t, <-done)
	})
}
