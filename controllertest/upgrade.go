package controllertest

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// A Former is the version of the controller that runs before: see Scenario.From.
type Former struct {
	// Start or Command runs it, as those of the Scenario, which may have the other one. One of them is
	// required.
	Start   func(ctx context.Context, cfg *rest.Config, env *Env) error
	Command func(p Process) (*exec.Cmd, error)

	// Steps is the number of steps of the script before the takeover. 0 means 1.
	Steps int

	// Beside keeps it running until the cluster has converged while both run, as in a rolling
	// update. Both versions then need an election.
	Beside bool
}

// The steps of an upgrade.
const (
	upgradeStep = "the new version takes over"
	besideStep  = "the new version starts beside the former one"
)

// upgrades reports whether a step is one of an upgrade. The user does not act in it.
func (x *explorer) upgrades(step int) bool {
	from := x.scenario.From
	return from != nil && (step == from.Steps || from.Beside && step == from.Steps+1)
}

// validate returns an error that names the field of a Former.
func (f *Former) validate(s *Scenario) error {
	switch {
	case (f.Start == nil) == (f.Command == nil):
		return fmt.Errorf("controllertest: %s: Scenario.From needs one of Start and Command: set the function of the former version", s.Name)
	case f.Steps < 0 || f.Steps > len(s.Script):
		return fmt.Errorf("controllertest: %s: Scenario.From.Steps is %d, and the script has %d steps: use a number up to that, or 0 for 1", s.Name, f.Steps, len(s.Script))
	}
	return nil
}

// formerSteps returns the number of steps in which only the former version runs.
func (s *Scenario) formerSteps() int {
	if s.From == nil {
		return 0
	}
	return s.From.Steps
}

// withUpgrade returns the scenario with the steps of the upgrade.
func (s Scenario) withUpgrade() Scenario {
	if s.From == nil {
		return s
	}
	from := *s.From
	from.Steps = max(from.Steps, 1)
	none := func(context.Context, *rest.Config, *Env) error { return nil } // execute does more
	steps := []Step{{Name: upgradeStep, Do: none}}
	if from.Beside {
		steps = []Step{{Name: besideStep, Do: none}, {Name: upgradeStep, Do: none}}
	}
	s.From, s.Script = &from, slices.Insert(slices.Clone(s.Script), from.Steps, steps...)
	return s
}

// upgrade lets the new version take over.
func (r *run) upgrade(step int) {
	r.mu.Lock()
	acted := make(chan struct{})
	r.taken, r.worked = len(r.history), acted
	former := slices.Clone(r.life)
	if step > r.x.scenario.From.Steps { // the former one is in past
		former = nil
		for _, i := range r.past {
			if i.former {
				former = append(former, i)
			}
		}
	}
	r.mu.Unlock()
	if !r.x.scenario.From.Beside || step > r.x.scenario.From.Steps {
		for _, i := range former {
			i.cancel() // so that it can release its Lease
		}
		for _, i := range former {
			timer := time.NewTimer(r.x.options.StopTimeout)
			select {
			case <-i.ended:
			case <-timer.C:
			}
			timer.Stop()
			i.die()
			r.note("process %d of the former version has ended", i.number)
		}
	}
	if step == r.x.scenario.From.Steps {
		r.mu.Lock()
		r.former, r.asked = false, false
		r.mu.Unlock()
		for replica := range former {
			r.launch(replica)
		}
	}
	if !r.x.scenario.From.Beside || step > r.x.scenario.From.Steps {
		r.takesOver(acted)
	}
}

// takesOver waits for the first operations of the new version. The cluster is in the desired state before them, so
// the rest after the step would not wait. A version that has nothing to do costs firstOperation.
func (r *run) takesOver(acted <-chan struct{}) {
	limit := time.NewTimer(firstOperation)
	defer limit.Stop()
	select {
	case <-acted:
	case <-limit.C:
		return
	}
	operations := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.trace)
	}
	for deadline := time.Now().Add(r.x.options.ConvergeTimeout); time.Now().Before(deadline); {
		before := operations()
		if time.Sleep(2 * r.x.options.QuietPeriod); operations() == before {
			return
		}
	}
}

// firstOperation bounds the wait for a new version.
const firstOperation = 5 * time.Second

// formerRequest prepares a request of the former version, which has no fault.
func (i *incarnation) formerRequest(op *fault.Op) {
	r := i.run
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = true
	if !op.IsWrite() {
		return
	}
	r.observesLocked(op)
	signature := r.signatureLocked(op)
	r.noteLocked("process %d of the former version: %s", i.number, signature)
	if !unobserved(op.Resource) {
		i.writes()
		r.lastWrite = time.Now()
		r.wrotes++
		r.writes = append(r.writes[max(0, len(r.writes)-4):], signature)
		r.touchLocked()
	}
}

// judgeUpgradeLocked returns a finding for each field that the last step, of an upgrade, has changed outside of a status,
// and for each object that it has created or deleted.
func (r *run) judgeUpgradeLocked() (findings []Finding) {
	n := len(r.rests) - 1
	before, after := r.rests[n-1], r.rests[n]
	byUser := slices.ContainsFunc(r.plan, func(j injection) bool {
		return j.kind == UserDelete || j.kind == UserEdit || j.kind == UserRecreate || j.kind.scope() == madeObject
	})
	if byUser || before.hurried || before.repeats || after.repeats {
		return nil
	}
	found := map[[2]string]bool{}
	add := func(object, field, format string, args ...any) {
		if key := [2]string{object, numbers.ReplaceAllString(field, "N")}; !found[key] && len(found) < maxUpgrades {
			found[key] = true
			findings = append(findings, Finding{Oracle: Upgrade, Object: object, Field: field, Text: fmt.Sprintf("in the step %q, in which the user asks for nothing, ", after.step) + fmt.Sprintf(format, args...)})
		}
	}
	for _, e := range r.history[min(r.taken, len(r.history)):] {
		if e.object == nil || r.world.hasMadeLocked(e) || r.world.hasCreatedLocked(e.object) {
			continue
		}
		switch name := r.maskedKeyLocked(e.key); e.kind {
		case watch.Added:
			add(name, "created", "%s is created", name)
		case watch.Deleted:
			add(name, "deleted", "%s is deleted", name)
		}
	}
	union := maps.Clone(before.state)
	maps.Copy(union, after.state)
	for _, path := range slices.Sorted(maps.Keys(union)) {
		object, field := about("  ~ " + path + ": ")
		was, now := before.state[path], after.state[path]
		masked := r.ref != nil && (r.ref.masked[strconv.Itoa(n)+" "+path] || r.ref.masked[strconv.Itoa(n-1)+" "+path])
		events := field == existence && !strings.HasPrefix(object, "cloud/") || found[[2]string{object, "created"}] || found[[2]string{object, "deleted"}] // tell it
		if masked || events || strings.HasSuffix(path, inOrder) || strings.HasPrefix(field, ".status") || reflect.DeepEqual(was, now) {
			continue
		}
		add(object, field, "%s%s changes from %s to %s", object, field, shown(path, textOr(was)), shown(path, textOr(now)))
	}
	return findings
}

// maxUpgrades bounds the findings of a step.
const maxUpgrades = 100

func textOr(v any) string {
	if v == nil {
		return "(absent)"
	}
	return fmt.Sprint(v)
}
