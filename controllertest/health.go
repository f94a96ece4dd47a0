package controllertest

import (
	"bytes"
	"context"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

const mergePatch = types.MergePatchType

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// stacks are the goroutines of a run, as far as they carry its label: those that
// Start has started, and those that they have.
func stacks(id string) string {
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return err.Error()
	}
	var found []string
	want := fmt.Sprintf("%q:%q", label, id)
	for stack := range strings.SplitSeq(profile.String(), "\n\n") {
		if strings.Contains(stack, want) {
			found = append(found, strings.TrimSpace(stack))
		}
	}
	text := strings.Join(found, "\n\n")
	if len(text) > 8<<10 {
		text = text[:8<<10] + "\n..."
	}
	return text
}

// leaks adds a finding for each run whose goroutines are still there.
func (x *explorer) leaks() error {
	deadline := time.Now().Add(x.options.StopTimeout)
	left := x.leftovers()
	for len(left) > 0 && time.Now().Before(deadline) {
		time.Sleep(50 * time.Millisecond) // nothing tells when a goroutine ends
		left = x.leftovers()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, id := range left[:min(len(left), 5)] {
		p := x.plans[id]
		x.report.Failures = append(x.report.Failures, Failure{
			Plan:     p.String(),
			Findings: []Finding{{Health, fmt.Sprintf("goroutines are left %v after the run:\n%s", x.options.StopTimeout, stacks(id))}},
			Replay:   x.replay(p),
		})
	}
	return nil
}

// leftovers are the runs with goroutines.
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

// client-go lets a panic in one of its goroutines end the process. While
// explorations go on it becomes a finding instead: client-go's own switch for
// that is a variable of its package, so what was there has to be put back by the
// last one.
var panics struct { //nolint:gochecknoglobals // as what it guards is
	sync.Mutex
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

// panicked finds the run that a panic belongs to by the label of this goroutine,
// which only the profile tells.
func panicked(_ context.Context, v any) {
	var profile bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&profile, 1)
	panics.Lock()
	explorers := slices.Clone(panics.explorers)
	panics.Unlock()
	for stack := range strings.SplitSeq(profile.String(), "\n\n") {
		if !strings.Contains(stack, "controllertest.panicked") {
			continue
		}
		for _, x := range explorers {
			x.observer.mu.Lock()
			runs := make([]*run, 0, len(x.observer.runs))
			for _, r := range x.observer.runs {
				runs = append(runs, r)
			}
			x.observer.mu.Unlock()
			for _, r := range runs {
				if strings.Contains(stack, fmt.Sprintf("%q:%q", label, r.id)) {
					r.find(Health, "panic: %v\n%s", v, debug.Stack())
					return
				}
			}
		}
	}
	panic(v) // it is none of the controllers'
}
