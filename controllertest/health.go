package controllertest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/controllerkit/controllerkit/internal/stacks"
)

const mergePatch = types.MergePatchType

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// stacksOf returns the stacks of the goroutines of a run.
func stacksOf(id string) string { return stacks.Labelled(label, id, 8<<10) }

// leaks adds a finding for each run that leaked goroutines.
func (x *explorer) leaks() {
	deadline := time.Now().Add(x.options.StopTimeout)
	left := x.leftovers()
	for len(left) > 0 && time.Now().Before(deadline) {
		time.Sleep(50 * time.Millisecond) // the end of a goroutine is no event
		left = x.leftovers()
	}
	for _, id := range left[:min(len(left), 5)] {
		if strings.HasSuffix(id, worldSuffix) {
			x.abort(fmt.Errorf("goroutines of Scenario.World are left %v after its run: let it wait for all that it started:\n%s", x.options.StopTimeout, stacksOf(id)))
			continue
		}
		x.mu.Lock()
		r := &run{x: x, plan: x.plans[id], began: time.Now()}
		x.mu.Unlock()
		r.find(Health, "goroutines are left %v after the run:\n%s", x.options.StopTimeout, stacksOf(id))
		r.accept()
		if !r.failed() {
			x.mu.Lock()
			for _, reason := range r.accepted {
				x.report.Accepted[reason]++
			}
			x.mu.Unlock()
			continue
		}
		x.enter(r, r.found(), 1, 0)
	}
}

// leftovers returns the ids of the runs with goroutines.
func (x *explorer) leftovers() []string {
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return nil
	}
	var ids []string
	for part := range strings.SplitSeq(profile.String(), fmt.Sprintf("%q:%q", label, x.prefix)[:len(label)+4+len(x.prefix)]) {
		id, _, ok := strings.Cut(x.prefix+part, `"`)
		if ok && strings.HasPrefix(part, "-") {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// client-go lets a panic in one of its goroutines end the process. While explorations
// run, the panic is a finding instead. The switch of client-go is a package-level
// variable, so the last exploration restores its value.
var panics struct { //nolint:gochecknoglobals // as what it guards is
	sync.Mutex
	booking   sync.Mutex
	explorers []*explorer
	crash     bool
	handlers  []func(context.Context, any)
}

func catchPanics(x *explorer) (restore func()) {
	panics.Lock()
	defer panics.Unlock()
	if len(panics.explorers) == 0 {
		panics.crash, panics.handlers = utilruntime.ReallyCrash, utilruntime.PanicHandlers
		utilruntime.ReallyCrash = false
		utilruntime.PanicHandlers = []func(context.Context, any){panicked}
	}
	panics.explorers = append(panics.explorers, x)
	return func() {
		panics.Lock()
		defer panics.Unlock()
		panics.explorers = slices.DeleteFunc(panics.explorers, func(e *explorer) bool { return e == x })
		if len(panics.explorers) == 0 {
			utilruntime.ReallyCrash, utilruntime.PanicHandlers = panics.crash, panics.handlers
		}
	}
}

// panicked stores one panic at a time, so that only one goroutine is in book.
func panicked(_ context.Context, v any) {
	panics.booking.Lock()
	defer panics.booking.Unlock()
	book(v)
}

// book finds the run of a panic by the label of this goroutine, which only the
// profile contains.
func book(v any) {
	var profile bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&profile, 1)
	panics.Lock()
	explorers := slices.Clone(panics.explorers)
	panics.Unlock()
	for stack := range strings.SplitSeq(profile.String(), "\n\n") {
		if !strings.Contains(stack, "controllertest.book+") {
			continue
		}
		for _, x := range explorers {
			x.mu.Lock()
			observer := x.observer
			x.mu.Unlock()
			observer.mu.Lock()
			runs := slices.Collect(maps.Values(observer.runs))
			observer.mu.Unlock()
			for _, r := range runs {
				if strings.Contains(stack, fmt.Sprintf("%q:%q", label, worldLabel(r.id))) {
					x.abort(fmt.Errorf("Scenario.World panicked: %v: let its goroutines handle errors\n%s", v, debug.Stack()))
					return
				}
				if strings.Contains(stack, fmt.Sprintf("%q:%q", label, r.id)) {
					r.find(Health, "panic: %v\n%s", v, debug.Stack())
					return
				}
			}
		}
	}
	panic(v) // not a controller's goroutine
}
