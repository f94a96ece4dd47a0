package controllertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/controllertest/internal/fields"
)

// rest waits until the cluster has converged and is at rest. It returns the state or the
// findings, or neither if the next step begins early. If something happens while the state
// is listed and judged, rest begins again, so the state is the present one.
func (r *run) rest(ctx context.Context) (*State, []Finding) {
	missing := errors.New("it was never at rest")
	var early difference // of the first state that Converged accepted
	for {
		changed, err := r.quiet(ctx)
		switch {
		case errors.Is(err, errHurry):
			return nil, nil
		case err != nil:
			return nil, []Finding{stopped(err)}
		case changed == nil:
			return nil, r.unrested(missing)
		}
		state, err := r.list(ctx)
		if err != nil && ctx.Err() == nil {
			if !time.Now().Before(r.deadline()) {
				r.doubt("the API server does not list the state: %v", err)
				return nil, nil
			}
			_ = sleep(ctx, nil, r.x.options.QuietPeriod) // the end of an overload is no event
			continue
		}
		if err == nil {
			err = r.agrees(state)
		}
		if err == nil {
			err = r.missing(state)
			missing = err
		}
		select {
		case <-changed: // meanwhile
			if !time.Now().Before(r.deadline()) {
				return nil, r.unrested(missing)
			}
			continue
		default:
		}
		if err == nil {
			r.tooEarly(early)
			return state, nil
		}
		diff, differs := errors.AsType[difference](err)
		if early == nil {
			early = diff
		}
		// Not there yet: wait until something happens.
		switch happens, ctxErr := r.happens(ctx, changed, errors.Is(err, errQueue)); {
		case ctxErr != nil:
			return nil, []Finding{stopped(ctxErr)}
		case happens:
		case errors.Is(err, errUnseen) && r.writesOn():
			return nil, []Finding{r.restless(err)} // the writes do not end
		case errors.Is(err, errUnseen):
			r.doubt("the observer has not seen a write: %v", err)
			return nil, nil
		case differs:
			if why, unjudged := r.unjudged(); unjudged {
				r.doubt("%s; %v", why, err)
				return nil, nil
			}
			r.mu.Lock()
			r.differs = true // later steps differ too; judge reports it
			r.mu.Unlock()
			return state, nil
		default:
			if why, unjudged := r.unjudged(); unjudged {
				r.doubt("%s; %v", why, err)
				return nil, nil
			}
			return nil, []Finding{r.unconverged(err)}
		}
	}
}

// unrested is the finding of a cluster that does not come to rest, or none if that cannot be judged.
func (r *run) unrested(missing error) []Finding {
	if why, unjudged := r.unjudged(); unjudged {
		r.doubt("%s", why)
		return nil
	}
	return []Finding{r.restless(missing)}
}

// missing returns why a state is not the end.
func (r *run) missing(s *State) error {
	if err := r.converged(s); err != nil {
		return err
	}
	if err := r.queuesEmpty(); err != nil {
		return err
	}
	return r.unexpected(s)
}

// converged calls Scenario.Converged twice, because a function that does not depend on the
// state alone makes every finding doubtful.
func (r *run) converged(s *State) error {
	err := r.x.scenario.Converged(s)
	if again := r.x.scenario.Converged(s); (err == nil) != (again == nil) {
		r.x.abort(fmt.Errorf("Scenario.Converged returned nil and also an error for one state: let it depend on the state alone: %w", cmp.Or(err, again)))
	}
	return err
}

func stopped(err error) Finding {
	return Finding{Oracle: Health, Field: "stopped", Text: fmt.Sprintf("the exploration was stopped: %v", err)}
}

// A difference is the error of a state that differs from the runs without faults.
type difference []string

func (d difference) Error() string {
	return "the state differs from that without faults:\n" + strings.Join(d, "\n")
}

// unexpected compares a state that Converged accepted with the runs without faults. A
// Converged that does not check everything accepts a state too early.
func (r *run) unexpected(s *State) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.rests)
	if r.ref == nil || r.differs || r.repeatsLocked() || !r.comparable(n, r.ref) {
		return nil
	}
	if diff := differences(r.ref.rests[n].state, r.normalizeLocked(s), r.ref.masked, n, shownDifferences); len(diff) > 0 {
		return difference(diff)
	}
	return nil
}

// tooEarly reports the fields that Converged does not check, if any.
func (r *run) tooEarly(diff difference) {
	if diff == nil {
		return
	}
	r.mu.Lock()
	step, plan := r.stepNameLocked(), r.plan
	r.noteLocked("Converged accepted the state too early; it differed by:\n%s", strings.Join(diff, "\n"))
	r.mu.Unlock()
	r.x.tooEarly(step, plan, diff)
}

// deadline returns when the cluster must be at rest. The time in which the observer was late,
// a request waited for the API server, or the process stalled does not count. Endless writes
// make the observer late forever, so the bound is maxLate times Options.ConvergeTimeout.
func (r *run) deadline() time.Time {
	settle := r.x.options.ConvergeTimeout
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending > r.step+1-r.did { // other than the step that the user is doing
		return now.Add(settle)
	}
	return r.lastFault.Add(settle + min(r.lateLocked(now), maxLate*settle))
}

// lateLocked returns the time since the last fault that does not count.
func (r *run) lateLocked(now time.Time) time.Duration {
	return max(r.late.sum(now), r.slow.sum(now), r.x.stalls.Sum()-r.stalled)
}

const maxLate = 5

// restless returns the finding of a cluster that does not come to rest.
func (r *run) restless(missing error) Finding {
	silent := r.silent()
	r.mu.Lock()
	defer r.mu.Unlock()
	text := fmt.Sprintf("no rest of %v within %v of the last fault or step; the last writes: %s", r.x.options.QuietPeriod, r.x.options.ConvergeTimeout, strings.Join(r.writes, "; "))
	if late := r.lateLocked(time.Now()); late > r.x.options.ConvergeTimeout/10 {
		text += fmt.Sprintf("; the observer was late, a request waited for the API server, or this process did not run, for %v, which does not count up to %d times that time", late.Round(time.Millisecond), maxLate)
	}
	if w := r.world; w != nil && len(w.writes) > 0 {
		text += "; the last writes of Scenario.World: " + strings.Join(w.writes, "; ")
		if len(r.plan) == 0 && w.restlessLocked(r.x.options.ConvergeTimeout) {
			r.x.abort(fmt.Errorf("Scenario.World writes without end, so there is no rest of %v: let it write only if something changes: %s", r.x.options.QuietPeriod, strings.Join(w.writes, "; ")))
		}
	}
	if missing != nil {
		text += "; " + missing.Error()
	}
	object, field := r.hottestLocked()
	if values := r.valuesLocked(); values != "" {
		text += "; " + values
	}
	return Finding{Oracle: Quiescence, Object: object, Field: field, Text: text + silent + r.othersLocked() + r.x.observer.unserved()}
}

// othersLocked returns a hint if another client wrote an object in a run without faults.
func (r *run) othersLocked() string {
	if len(r.plan) > 0 {
		return "" // a fault can lose the response that shows the writer
	}
	for _, e := range slices.Backward(r.history) {
		if e.object == nil || e.kind == watch.Deleted || e.object.GetDeletionTimestamp() != nil || r.responses[e.object.GetResourceVersion()] || r.bound[e.key] {
			continue
		}
		writer := "an unknown client" // the API server manages no fields of an object that was created without fields
		var at *metav1.Time
		for _, m := range e.object.GetManagedFields() {
			if at == nil || at.Before(m.Time) {
				writer, at = strconv.Quote(m.Manager), m.Time
			}
		}
		return fmt.Sprintf("; %s was written by %s, which is no part of the exploration: use a cluster on which it does not run", e.key, writer)
	}
	return ""
}

// others is othersLocked without the lock.
func (r *run) others() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.othersLocked()
}

// hottestLocked returns the object of the last write and its changed fields.
func (r *run) hottestLocked() (object, field string) {
	if len(r.writes) == 0 {
		return "", "no rest"
	}
	last := r.writes[len(r.writes)-1]
	parts := strings.SplitN(last[:strings.LastIndexByte(last, '#')], " ", 4) // verb, resource, name, fields
	switch {
	case len(parts) < 3 || parts[0] == "external":
		return "", strings.Join(parts, " ")
	case len(parts) == 3:
		return parts[1] + "/" + parts[2], parts[0]
	}
	return parts[1] + "/" + parts[2], parts[3]
}

// valuesLocked names the first field that the last change of an object has changed, and
// its last values.
func (r *run) valuesLocked() string {
	var last []map[string]any
	var key objectKey
	for n := len(r.history) - 1; n >= 0 && len(last) < 4; n-- {
		e := r.history[n]
		if e.object == nil || e.kind == watch.Deleted || len(last) > 0 && e.key != key {
			continue
		}
		key, last = e.key, append(last, e.object.Object)
	}
	if len(last) < 3 {
		return ""
	}
	slices.Reverse(last)
	for _, path := range fields.Leaves(nil, last[len(last)-2], last[len(last)-1]) {
		if len(path) > 1 && ignoredField(path[0]+"."+path[1]) {
			continue
		}
		field := fmt.Sprintf("%s .%s", key, strings.Join(path, "."))
		var values []string
		for _, object := range last {
			value, _, _ := unstructured.NestedFieldNoCopy(object, path...)
			values = append(values, shown(field, text(value)))
		}
		return fmt.Sprintf("%s was %s", field, strings.Join(values, ", then "))
	}
	return ""
}

// silent is the hint for a controller that has made no request.
func (r *run) silent() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	start, command, isProcess := "Start", "Scenario.Command", r.x.scenario.Command != nil
	if r.former {
		start, command, isProcess = "Scenario.From.Start", "Scenario.From.Command", r.x.scenario.From.Command != nil
	}
	switch {
	case r.asked:
		return ""
	case isProcess:
		return "; the process of " + command + " made no request: let it use Process.Kubeconfig, or set a longer Options.ConvergeTimeout if it starts slowly"
	}
	return "; the controller made no request: let " + start + " use its configuration"
}

func (r *run) unconverged(err error) Finding {
	oracle := Liveness
	if errors.Is(err, errQueue) {
		oracle = Quiescence
	}
	return Finding{Oracle: oracle, Field: headline(err.Error()), Text: fmt.Sprintf("not converged %v after the last fault or step: %v%s", r.x.options.ConvergeTimeout, err, r.silent()+r.others()+r.x.observer.unserved())}
}

var (
	errQueue  = errors.New("a queue is not empty at rest")
	errUnseen = errors.New("not yet observed")
)

func (r *run) queuesEmpty() error {
	r.mu.Lock()
	queues := r.queuesLocked()
	r.mu.Unlock()
	for _, q := range queues {
		if n := q.Len(); n > 0 && !q.isShutDown() {
			return fmt.Errorf("%w: Len() is %d", errQueue, n)
		}
	}
	return nil
}

// queuesLocked returns the registered queues of the present processes. Their methods are
// code of the controller, so they are called without the lock.
func (r *run) queuesLocked() []*watched {
	var all []*watched
	for _, i := range r.life {
		all = append(all, i.queues...)
	}
	return all
}

// quiet waits for Options.QuietPeriod without events. Before that, the faults of the plan
// must be over, the watches of the controller established, and the waiting keys of its
// queues handed out. The returned channel is closed at the next event. If the cluster is
// not quiet within Options.ConvergeTimeout, the channel is nil.
func (r *run) quiet(ctx context.Context) (changed <-chan struct{}, err error) {
	var asked <-chan struct{} // r.changed when due was computed
	var due time.Time
	for {
		deadline := r.deadline()
		r.mu.Lock()
		if r.hurriesLocked() {
			r.mu.Unlock()
			return nil, errHurry
		}
		now := time.Now()
		silence := now.Sub(r.lastEvent)
		wait := r.x.options.QuietPeriod - silence
		busy := r.pending > 0 || r.underway > 0 || len(r.life) == 0
		if busy {
			wait = deadline.Sub(now)
		} else if !r.watchesLocked() {
			// With a bound, because a controller may close a watch on purpose.
			wait = max(wait, patience-silence)
		}
		changed, queues := r.changed, r.queuesLocked()
		if r.repeatsLocked() {
			queues = nil
		}
		r.mu.Unlock()
		if wait <= 0 && !busy {
			running, next := waiting(queues, now)
			switch {
			case running && silence < patience:
				// The end of a call is no event, and may delay the key.
				asked, due = nil, now.Add(r.x.options.QuietPeriod/8)
			case asked != changed:
				// Once for each event, because a key that polls is always delayed.
				asked, due = changed, next.Add(r.x.options.QuietPeriod)
			}
			wait = due.Sub(now)
			if wait <= 0 {
				return changed, nil
			}
		}
		if !now.Before(deadline) {
			return nil, nil
		}
		if err := sleep(ctx, changed, min(wait, deadline.Sub(now))); err != nil {
			return nil, err
		}
	}
}

// repeatsLocked reports whether the next step has to begin while a call waits to repeat
// its request: the purpose of CommitThen503. After the last step there is no next one.
func (r *run) repeatsLocked() bool {
	return r.ref != nil && len(r.rests) < len(r.ref.rests)-1 && time.Now().Before(r.repeated)
}

// waiting reports whether a key is running or waits for a gate, and when the last delayed
// key becomes ready. It skips keys with a longer delay than patience, keys of queues that
// are shut down, and in queues without a Snapshot all running and delayed keys.
func waiting(queues []*watched, now time.Time) (running bool, due time.Time) {
	for _, q := range queues {
		if q.gated != nil && q.gated() > 0 {
			running = true
		}
		q, ok := q.lengther.(interface {
			Snapshot() controllerkit.QueueState
		})
		if !ok {
			continue
		}
		s := q.Snapshot()
		running = running || s.Running > 0
		if s.ShuttingDown {
			continue
		}
		for _, key := range s.Keys {
			if key.Until.After(due) && key.Until.Before(now.Add(patience)) {
				due = key.Until
			}
		}
	}
	return running, due
}

// sleep waits until the channel is closed, the time is over, or ctx is done.
func sleep(ctx context.Context, changed <-chan struct{}, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// patience bounds the wait for a missing watch and a running, gated or delayed key. After it,
// they count as normal for the controller at rest. client-go establishes a watch again
// within two seconds, and errors delay a key for some seconds.
const patience = 5 * time.Second

// watchesLocked reports whether the controller has as many watches as without faults.
func (r *run) watchesLocked() bool {
	if r.former {
		return true // those of the former version are not known
	}
	for resource, n := range r.x.watched {
		have := 0
		for _, i := range r.life {
			have += i.Watches()[resource]
		}
		if have < n {
			return false
		}
	}
	return true
}

// happens waits until the channel is closed. If the deadline comes first, it returns
// false.
func (r *run) happens(ctx context.Context, changed <-chan struct{}, queues bool) (bool, error) {
	for {
		deadline := r.deadline()
		select {
		case <-changed:
			return time.Now().Before(deadline), nil
		default:
		}
		if !time.Now().Before(deadline) {
			return false, nil
		}
		pause := time.Until(deadline)
		if queues { // a queue that becomes empty is no event
			if r.queuesEmpty() == nil {
				return true, nil
			}
			pause = min(pause, r.x.options.QuietPeriod/8)
		}
		if err := sleep(ctx, changed, pause); err != nil {
			return false, err
		}
	}
}

// touchLocked wakes the waiters because of an event.
func (r *run) touchLocked() {
	r.lastEvent = time.Now()
	close(r.changed)
	r.changed = make(chan struct{})
}

// faultLocked is touchLocked for faults and steps, at which Options.ConvergeTimeout starts
// again.
func (r *run) faultLocked() {
	r.touchLocked()
	r.lastFault = r.lastEvent
	r.wrotes = 0
	r.late.reset(r.lastFault)
	r.slow.reset(r.lastFault)
	r.stalled = r.x.stalls.Sum()
}

// begin marks an action that must end before the cluster can be at rest.
func (r *run) begin() (end func()) {
	r.mu.Lock()
	r.pending++
	r.faultLocked()
	r.mu.Unlock()
	return sync.OnceFunc(func() {
		r.mu.Lock()
		r.pending--
		r.faultLocked()
		r.mu.Unlock()
	})
}

// list reads the run's part of the cluster from the API server.
func (r *run) list(ctx context.Context) (*State, error) {
	known, cancel := context.WithDeadline(ctx, time.Now().Add(r.x.options.ConvergeTimeout))
	defer cancel()
	resources, err := r.x.observer.resources(known)
	if err != nil {
		return nil, err
	}
	s := &State{namespace: r.env.Namespace, objects: map[objectKey]*unstructured.Unstructured{}, cloud: r.env.Cloud.Resources()}
	r.mu.Lock()
	var single []objectKey // cluster-scoped
	namespaces := map[string]bool{r.env.Namespace: true}
	// The observer may see a write late, so written objects are listed too.
	objects := maps.Clone(r.owned)
	maps.Copy(objects, r.present)
	for _, key := range r.uids {
		objects[key] = nil
	}
	r.mu.Unlock()
	for key := range objects {
		switch {
		case key.namespace != "":
			namespaces[key.namespace] = true
		case resources[key.resource] != nil:
			single = append(single, key)
		}
	}
	for _, key := range single {
		obj, err := r.x.dyn.Resource(resources[key.resource].gvr).Get(ctx, key.name, metav1.GetOptions{})
		if hasNoList(err) { // or there is none
			continue
		}
		if err != nil {
			return nil, err
		}
		s.objects[key] = obj
	}
	for name, t := range resources {
		if !t.namespaced {
			continue
		}
		for namespace := range namespaces {
			list, err := r.x.dyn.Resource(t.gvr).Namespace(namespace).List(ctx, metav1.ListOptions{})
			if hasNoList(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			for n := range list.Items {
				obj := &list.Items[n]
				s.objects[objectKey{name, obj.GetNamespace(), obj.GetName()}] = obj
			}
		}
	}
	return s, nil
}

// agrees returns nil if the observer has seen every write that led to the state.
func (r *run) agrees(s *State) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, obj := range s.objects {
		if have := r.present[key]; have == nil || have.GetResourceVersion() != obj.GetResourceVersion() {
			return fmt.Errorf("%w: %s", errUnseen, key)
		}
	}
	for key := range r.present {
		if s.objects[key] == nil {
			return fmt.Errorf("%w: the deletion of %s", errUnseen, key)
		}
	}
	return nil
}

func (k objectKey) String() string {
	if k.namespace == "" {
		return k.resource + "/" + k.name
	}
	return k.resource + "/" + k.namespace + "/" + k.name
}
