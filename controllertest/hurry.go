package controllertest

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// NextStep begins a step of the script while a cache is stale and before the cluster is at
// rest. So the state after the step before it is not compared, and a step that fails now has no
// outcome: it may need the result of that step.

// errHurry ends the wait for rest.
var errHurry = errors.New("the next step begins now")

// hasNext reports whether a step of the script follows.
func (x *explorer) hasNext(step int) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return step+1 < len(x.scenario.Script) && !x.dependent[step+1]
}

// hurry ends the wait for rest after a step.
func (r *run) hurry(step int) {
	r.mu.Lock()
	r.hurried = step + 1
	r.touchLocked()
	r.mu.Unlock()
}

// hurriesLocked reports whether the next step begins now.
func (r *run) hurriesLocked() bool { return r.hurried > 0 && r.hurried == r.step+1 }

// cannotHurry reports whether the plan has a NextStep that does not fit the script.
func (r *run) cannotHurry() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.soon
}

// tooSoon reports whether the error of a step can be due to its early begin. Later plans do
// not hurry to a step that needs the result of the step before.
func (r *run) tooSoon(step int, err error) bool {
	r.mu.Lock()
	hurried := r.hurried > 0 && r.hurried == step
	r.mu.Unlock()
	if !hurried || err == nil || unreached(err) || errors.Is(err, context.Canceled) {
		return false
	}
	// Another fault of the plan can be the cause, such as a user who deletes the object.
	if len(r.plan) == 1 && !apierrors.IsConflict(err) {
		r.x.mu.Lock()
		known := r.x.dependent[step]
		r.x.dependent[step] = true
		if !known {
			r.x.report.Skipped = append(r.x.report.Skipped, fmt.Sprintf("%s at step %q, which cannot begin early", NextStep, r.x.scenario.Script[step].Name))
		}
		r.x.mu.Unlock()
		r.x.log("step %q fails if it begins before the step before has an effect, so %s is left out there: %v", r.x.scenario.Script[step].Name, NextStep, err)
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
