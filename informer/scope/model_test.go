package scope_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer/scope"
)

// write is one of the server's, some time after the one before. No label deletes.
type write struct {
	after                  time.Duration
	namespace, name, label string
}

// The model is the server: at each quiet point the lister and what the events add up to equal
// the objects that the selection has on the server. An event that does not follow from those
// before, such as an addition of a known object, fails the test.
//
// Proves SC1, SC2, SC3, SC4.
func TestModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		var total counts
		play(t, steps, rand.New(rand.NewPCG(seed, 0)), &total)
		t.Logf("%+v", total)
		if total.Failures == 0 || total.Events == 0 || total.Quiet == 0 {
			t.Error("the test has not exercised what it should")
		}
	})
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

var all = []string{"a", "b", "c", "d"}

func randomSelection(r *rand.Rand) scope.Selection {
	sel := scope.Selection{LabelSelector: pick(r, "", "", "app=x", "app=y", "app in (x,y)")}
	if r.IntN(8) == 0 {
		sel.Namespaces = []string{""}
		return sel
	}
	for _, n := range all {
		if r.IntN(2) == 0 {
			sel.Namespaces = append(sel.Namespaces, n)
		}
	}
	return sel
}

func randomWrites(r *rand.Rand) []write {
	writes := make([]write, r.IntN(12))
	for i := range writes {
		writes[i] = write{time.Duration(r.IntN(40)) * time.Millisecond, pick(r, all...), fmt.Sprint("o", r.IntN(6)), pick(r, "x", "y", "z", "")}
	}
	return writes
}

// counts are what a test has exercised.
type counts struct{ Changes, Failures, Events, Quiet int }

// play changes the scope while others write.
func play(t *testing.T, steps int, r *rand.Rand, total *counts) {
	s := newServer()
	n := 0
	s.delay = func() time.Duration {
		s.mu.Lock()
		defer s.mu.Unlock()
		n += 7
		return time.Duration(n%31) * time.Millisecond
	}
	objects := scope.New(s.informer)
	stop := run(t, quiet(t), objects)
	first, second := newJournal(), newJournal()
	handle(t, objects, first)
	var added cache.ResourceEventHandlerRegistration // of second
	var current scope.Selection
	for i := range steps {
		selection, timeout, handler := randomSelection(r), pick(r, time.Hour, time.Hour, time.Hour, 20*time.Millisecond), r.IntN(10) == 0
		writes := randomWrites(r)
		switch {
		case handler && added == nil:
			second = newJournal()
			added = handle(t, objects, second)
		case handler:
			if err := shutDown(objects, added); err != nil {
				t.Fatal(err)
			}
			added = nil
		}
		selected := make(chan error)
		go func() {
			limit, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			selected <- objects.Select(limit, selection)
		}()
		writer := make(chan struct{})
		go func() {
			defer close(writer)
			for _, w := range writes {
				time.Sleep(w.after)
				s.put(w.namespace, w.name, w.label)
			}
		}()
		if err := <-selected; err != nil {
			total.Failures++ // the parts are shown when they are synced
		}
		current = selection
		total.Changes++
		if r.IntN(3) > 0 {
			continue // the next change begins while the writes go on
		}
		<-writer
		time.Sleep(time.Second)
		synctest.Wait()
		total.Quiet++
		want := s.selected(current)
		if diff := cmp.Diff(want, listed(objects.GetStore())); diff != "" {
			t.Fatalf("step %d: the lister (-server +lister):\n%s", i, diff)
		}
		for name, j := range map[string]*journal{"first": first, "second": second} {
			if name == "second" && added == nil {
				continue
			}
			if diff := cmp.Diff(want, j.state()); diff != "" {
				t.Fatalf("step %d: the events of the %s handler (-server +events):\n%s", i, name, diff)
			}
			seen, wrong := j.take()
			total.Events += len(seen)
			if len(wrong) > 0 {
				t.Fatalf("step %d: the %s handler got wrong events: %q", i, name, wrong)
			}
		}
	}
	stop()
	time.Sleep(time.Minute) // for what is left of the last writes
}
