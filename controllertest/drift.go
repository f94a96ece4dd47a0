package controllertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/controllertest/internal/fields"
)

// Drift is a change of an object that the controller has created. Some controllers restore
// such an object, and others leave it to a person. Both are correct, and the scenario does not
// say which. But a controller that restores the object only after a restart knows what it should
// be, and has missed the change: it has no watch on the object, or ignores its event. So if the
// state is not that without faults, the processes are restarted, and only a state that a restart
// restores is a finding.

// maxDrifts bounds the objects that are changed at the rest after a step.
const maxDrifts = 10

// atRest is the operation of the rest after a step.
const atRest = "rest"

// drifts are the plans with a change of an object at one of the rests.
func drifts(kind Kind, rests []checkpoint) []plan {
	var plans []plan
	for n, rest := range rests {
		for _, object := range rest.made[:min(len(rest.made), maxDrifts)] {
			plans = append(plans, plan{{kind: kind, about: object, at: fmt.Sprintf("%s#%d", atRest, n+1)}})
		}
	}
	return plans
}

// restores reports whether the controller may restore a kind of drift of a resource: no earlier
// plan has shown that it leaves that to a person.
func (x *explorer) restores(kind Kind, resource string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !x.kept[string(kind)+" of "+resource]
}

// keeps stores that the controller does not restore a kind of drift of a resource.
func (x *explorer) keeps(drifted []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, what := range drifted {
		if !x.kept[what] {
			x.kept[what] = true
			x.report.Skipped = append(x.report.Skipped, what+", which the controller does not restore")
		}
	}
}

// responded stores the response to a request of the process.
func (i *incarnation) responded(op *fault.Op, status int, body []byte) {
	r := i.run
	r.responded(op, status, body)
	if status != http.StatusCreated || op.Subresource != "" || unobserved(op.Resource) {
		return
	}
	var stored metav1.PartialObjectMetadata
	var sent map[string]any
	if json.Unmarshal(body, &stored) != nil || stored.Name == "" || yaml.Unmarshal(op.Body, &sent) != nil { // JSON is YAML
		return
	}
	r.mu.Lock()
	r.made[objectKey{op.Resource, stored.Namespace, stored.Name}] = sent
	r.mu.Unlock()
}

// madeInLocked returns the objects of a state that the controller has created, in the form of
// plans.
func (r *run) madeInLocked(s *State) []string {
	var names []string
	for key := range r.made {
		if s.objects[key] != nil {
			names = append(names, r.madeNameLocked(key))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (r *run) madeNameLocked(key objectKey) string {
	return tidy(key.resource + "/" + r.maskLocked(key.name))
}

// madeByLocked returns the object of a write if the controller has created it.
func (r *run) madeByLocked(op *fault.Op) string {
	key := objectKey{op.Resource, op.Namespace, op.Name}
	if r.made[key] == nil || op.Verb == "create" || op.Subresource != "" || !op.IsWrite() {
		return ""
	}
	return r.madeNameLocked(key)
}

// driftsLocked returns the object of a drift, and stores that the object is not restored yet. If
// several objects have the name, as generated names are masked, it takes one that is present.
func (r *run) driftsLocked(j injection) (_ objectKey, ok bool) {
	keys := slices.SortedFunc(maps.Keys(r.made), func(a, b objectKey) int { return strings.Compare(a.String(), b.String()) })
	for _, key := range keys {
		if r.present[key] == nil || r.madeNameLocked(key) != j.about {
			continue
		}
		if !r.x.restores(j.kind, key.resource) {
			r.soon = true
			return objectKey{}, false
		}
		r.drifted = append(r.drifted, string(j.kind)+" of "+key.resource)
		return key, true
	}
	return objectKey{}, false
}

// drift changes an object of the controller. If that is impossible, the plan has no outcome.
func (r *run) drift(kind Kind, key objectKey) {
	defer r.begin()()
	ctx, cancel := context.WithTimeout(context.Background(), r.x.options.ConvergeTimeout)
	defer cancel()
	client := r.x.dyn.Resource(r.x.observer.gvr(key.resource)).Namespace(key.namespace)
	var err error
	if kind == DriftDelete {
		r.note("user: delete %s", key)
		err = client.Delete(ctx, key.name, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)})
	} else {
		r.mu.Lock()
		edits := fields.Edits(key.resource, r.made[key])
		r.mu.Unlock()
		err = errNoField
		for _, edit := range edits[:min(len(edits), maxDrifts)] {
			r.note("user: patch %s %s", key, edit)
			if _, err = client.Patch(ctx, key.name, types.MergePatchType, edit, metav1.PatchOptions{}); err == nil || !refused(err) {
				break
			}
		}
	}
	if err == nil {
		return
	}
	if !refused(err) {
		r.doubt("the user of the plan: %v", err)
		return
	}
	r.note("the user of the plan: %v", err)
	r.mu.Lock()
	r.useless, r.soon = true, true
	r.mu.Unlock()
	r.x.keeps([]string{string(kind) + " of " + key.resource})
}

var errNoField = errors.New("the controller has written no field that can be changed")

// refused reports whether a change is not possible.
func refused(err error) bool {
	return errors.Is(err, errNoField) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err)
}

// settle is rest with the drift of the plan. over reports that the run ends without a finding,
// because the controller leaves the drift to a person.
func (r *run) settle(ctx context.Context) (_ *State, _ []Finding, over bool) {
	r.mu.Lock()
	differed := r.differs // after an earlier step
	r.mu.Unlock()
	state, findings := r.rest(ctx)
	if len(findings) == 0 && state != nil && r.driftsAtRest() {
		state, findings = r.rest(ctx)
	}
	if state == nil && len(findings) == 0 || ctx.Err() != nil {
		return state, findings, false
	}
	r.mu.Lock()
	drifted, missed := r.drifted, r.differs && !differed
	r.drifted = nil
	r.mu.Unlock()
	missed = missed || slices.ContainsFunc(findings, func(f Finding) bool { return f.Oracle == Liveness })
	if len(drifted) == 0 || !missed {
		return state, findings, false
	}
	what := strings.Join(drifted, ", ")
	r.note("%s: not restored; the processes are restarted", what)
	restored, findings, known := r.restored(ctx)
	if !known {
		return nil, findings, false
	}
	if !restored {
		r.note("%s: not restored by a restart either, so the controller leaves it to a person", what)
		r.x.keeps(drifted)
		return nil, nil, true
	}
	_, resource, _ := strings.Cut(drifted[0], " of ")
	return nil, []Finding{{Oracle: Liveness, Object: resource, Field: "restored by a restart", Text: fmt.Sprintf(
		"%s: the controller restores it after a restart, but not within %v of the change: let it watch %s, or leave the kind out of Options.Faults if it restores less often", what, r.x.options.ConvergeTimeout, resource)}}, false
}

// restored restarts the processes and reports whether the state is then as without faults. If known is
// false, the rest after the restart has no outcome, and the findings are those of a stopped exploration.
func (r *run) restored(ctx context.Context) (restored bool, findings []Finding, known bool) {
	r.mu.Lock()
	r.differs = false
	life := slices.Clone(r.life)
	r.mu.Unlock()
	for _, i := range life {
		i.crash(effects{})
	}
	state, findings := r.rest(ctx)
	if ctx.Err() != nil || state == nil && len(findings) == 0 {
		r.doubt("it is unknown whether a restart restores the drift")
		return false, findings, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(findings) == 0 && !r.differs, findings, true
}

// driftsAtRest makes the drift of the plan that belongs to this rest.
func (r *run) driftsAtRest() bool {
	r.mu.Lock()
	if r.former { // it has no faults, and its rests have no numbers
		r.mu.Unlock()
		return false
	}
	id := r.countLocked(atRest)
	if r.next == len(r.plan) || r.plan[r.next].at != id || r.plan[r.next].kind.scope() != madeObject {
		r.mu.Unlock()
		return false
	}
	j := r.plan[r.next]
	key, ok := r.driftsLocked(j)
	if ok {
		r.noteLocked("FAULT %s", j)
		r.next++
		clear(r.counts)
		r.faultLocked()
	}
	r.mu.Unlock()
	if ok {
		r.drift(j.kind, key)
	}
	return ok
}
