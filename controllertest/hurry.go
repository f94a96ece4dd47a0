package controllertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// NextStep begins a step of the script while a cache is stale and before the cluster is at
// rest. StepBefore and TwoSteps do so while an operation waits for the step. So the state after the step before it is not compared, and a step that fails now has no
// outcome: it may need the result of that step.

// errHurry ends the wait for rest.
var errHurry = errors.New("the next step begins now")

// hasNext reports whether a number of steps of the script follow that can begin early.
func (x *explorer) hasNext(step, steps int) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for n := step + 1; n <= step+steps; n++ {
		if n >= len(x.scenario.Script) || x.dependent[n] {
			return false
		}
	}
	return true
}

// hurry ends the wait for rest before each step up to a step.
func (r *run) hurry(to int) {
	r.mu.Lock()
	r.hurried = to
	r.touchLocked()
	r.mu.Unlock()
}

// hurriesLocked reports whether the next step begins now.
func (r *run) hurriesLocked() bool { return r.hurried > r.step }

// eventTime is the time in which the events of a step reach the controller.
const eventTime = 100 * time.Millisecond

// window lets the user do the steps after a step while an operation of the process waits. When
// it returns, the controller has the events of the steps, and its watches are held until release
// is called. If a step waits for the operation, the operation is sent before the step has ended.
func (i *incarnation) window(step, steps int) (release func()) {
	r := i.run
	defer r.begin()()
	ctx, cancel := context.WithTimeout(i.ctx, patience)
	defer cancel()
	r.hurry(step + steps)
	for {
		r.mu.Lock()
		changed, done := r.changed, r.did > step+steps
		r.mu.Unlock()
		if done || sleep(ctx, changed, patience) != nil {
			break
		}
	}
	_ = sleep(i.ctx, nil, eventTime) // a killed process sends nothing
	var held []func()
	for _, resource := range slices.Sorted(maps.Keys(i.Watches())) {
		held = append(held, i.hold(resource))
	}
	return func() {
		for _, deliver := range held {
			deliver()
		}
	}
}

// cannotHurry reports whether the plan has a fault that does not fit the scenario: an early step
// that needs the step before, or a change of an object that the controller does not restore.
func (r *run) cannotHurry() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.soon
}

// tooSoon reports whether the error of a step can be due to its early begin. Later plans do
// not hurry to a step that needs the result of the step before.
func (r *run) tooSoon(step int, early bool, err error) bool {
	if !early || err == nil || unreached(err) || errors.Is(err, context.Canceled) {
		return false
	}
	// Another fault of the plan can be the cause, such as a user who deletes the object.
	if len(r.plan) == 1 && !apierrors.IsConflict(err) {
		r.x.mu.Lock()
		known := r.x.dependent[step]
		r.x.dependent[step] = true
		if !known {
			r.x.report.Skipped = append(r.x.report.Skipped, fmt.Sprintf("early begin of step %q, which needs the step before", r.x.scenario.Script[step].Name))
		}
		r.x.mu.Unlock()
		r.x.log("step %q fails if it begins before the step before has an effect, so it does not begin early any more: %v", r.x.scenario.Script[step].Name, err)
	}
	return true
}

// afterUser calls end some time after the next write of the user in a later step, and
// postpones rest until then. The user may never write.
func (r *run) afterUser(step int, end func()) {
	done := r.begin()
	r.goes(func() {
		defer done()
		defer end()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		for {
			r.mu.Lock()
			changed, acted := r.changed, r.acted > step
			r.mu.Unlock()
			if acted || sleep(ctx, changed, patience) != nil {
				time.Sleep(holdTime)
				return
			}
		}
	})
}
