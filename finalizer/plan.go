package finalizer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// Plan is a cleanup of several steps. Its method Run is a cleanup for [Ensure]. A Plan
// has no state: several objects can use it at once, and a crash costs only another pass.
//
// The steps run one after the other in their order, each once the step before it is done.
// After and AtOnce of a Step change that.
//
// A step that failed, or waits without an After, is tried again after half of the object's
// time in deletion, at least 1s and at most 1m, plus up to a fifth. So the delay grows
// with each try and survives restarts. After a Conflict it is 1s, plus up to a fifth.
type Plan[T metav1.Object] struct {
	// Client is the client that Ensure gets, for the object's namespace. Run reads the
	// live object with it before each step, so that no step works from a stale copy. Required.
	Client controllerkit.Patcher[T]

	// Steps has at least one step. Required.
	Steps []Step[T]

	// GaveUp is called before a step whose GiveUpAfter has passed counts as done; cause
	// is the step's last error or message. Record an Event, because the step's leftovers
	// remain for good. If GaveUp fails, the step keeps blocking. A later pass over the
	// same object calls it again. ctx ends after the Timeout of the step. Required with a
	// GiveUpAfter.
	GaveUp func(ctx context.Context, held Held[T], step string, cause error) error

	// Metrics observes the steps. nil means the Metrics of the reconcile.Controller that calls
	// Run, if it has these methods, as in package operator.
	Metrics Metrics
}

// Step is one part of a cleanup.
type Step[T metav1.Object] struct {
	// Name identifies the step in errors, conditions and metrics. Required, and unique in
	// its Plan.
	Name string

	// Run performs this part or finds it done. Every pass calls it, also after it was
	// done, so it must be idempotent and cheap in that case. held has the API server's
	// current object. ctx ends after Timeout, and Run must return then. Panics pass
	// through. Required.
	//
	// If the error is not nil, the step failed and its Progress is ignored, unless the error is a
	// controllerkit.WaitingError: then the step waits. A claim that
	// an object is gone needs a read of its source, such as [Remaining], and not of a
	// cache. Find the objects to delete by the UID of the object, not by its name alone.
	Run func(ctx context.Context, held Held[T]) (Progress, error)

	// After names the steps that must be done before. They come earlier in the plan. Nil
	// means the step before this one.
	After []string

	// AtOnce makes the step wait for no other. After must be nil then. False means that
	// After applies.
	AtOnce bool

	// Timeout bounds one call of Run. A call also gets at most nine tenths of the time
	// that the pass has left, so that a step that hangs leaves some to the others. The
	// Timeouts of all steps should fit into the reconcile's Timeout. 0 means 1m.
	Timeout time.Duration

	// GiveUpAfter is the time in deletion, by the process's clock, after which the step counts
	// as done although it is not, after one last try. Its leftovers remain. A try counts only
	// with at least half of the Timeout. 0 means never.
	GiveUpAfter time.Duration
}

// Progress is the result of a step that did not fail. The zero Progress means that the
// step is not done.
type Progress struct {
	// Done reports that the step is done. The other fields are ignored then.
	Done bool

	// After is the delay until the next try. Events can bring the object earlier. 0 means
	// the delay that [Plan] describes.
	After time.Duration

	// Message describes the reason for waiting, such as "3 volumes left". It becomes a
	// part of the condition, so it should change only with the reason. It can be empty.
	Message string
}

// Metrics observes a [Plan]. finalizer and step are names; metrics never have the names
// of objects. Run calls the methods in its goroutine, and for several objects at once.
type Metrics interface {
	// FinalizerStepStarted is called before each call of a step.
	FinalizerStepStarted(finalizer, step string)
	// FinalizerStepEnded is called after each call of a step. result is done, waiting,
	// failed, timed_out or gave_up, and took the duration of the call. A panic counts as
	// failed.
	FinalizerStepEnded(finalizer, step, result string, took time.Duration)
	// FinalizerBlocked is called at the end of a pass for each step that blocks it. age
	// is the object's time in deletion.
	FinalizerBlocked(finalizer, step string, age time.Duration)
	// FinalizerFinished is called when all steps are done, and by Ensure once its whole cleanup is. If the
	// removal of the finalizer then fails, a later pass calls it again.
	FinalizerFinished(finalizer string, age time.Duration)
	// FinalizerObject is called at the end of each pass over an object, which metrics
	// distinguish by its uid alone. steps has the names of the steps that block it, or removal if the
	// cleanup has ended and the removal of the finalizer fails. Without one, nothing blocks the object.
	// again is the longest delay until the next pass, if there is one: a terminal error has none.
	FinalizerObject(finalizer string, uid types.UID, steps []string, age, again time.Duration)
}

// metricsOf returns the Metrics of the reconcile that ctx belongs to, or nil.
func metricsOf(ctx context.Context) Metrics {
	m, _ := ctx.Value(calls.Metrics{}).(Metrics)
	if kube.IsNil(m) {
		return nil
	}
	return m
}

// blocks passes the steps that block an object to Metrics, and the term of the call, which the end of its
// shard closes.
func blocks(ctx context.Context, m Metrics, name string, uid types.UID, steps []string, age, again time.Duration) {
	m.FinalizerObject(name, uid, steps, age, again)
	if m, ok := m.(interface {
		FinalizerTerm(finalizer string, uid types.UID, term <-chan struct{})
	}); ok {
		if term := calls.Term(ctx); term != nil {
			m.FinalizerTerm(name, uid, term)
		}
	}
}

// The results of a call of a step.
const (
	resultDone     = "done"
	resultWaiting  = "waiting"
	resultFailed   = "failed"
	resultTimedOut = "timed_out"
	resultGaveUp   = "gave_up"
)

// Run runs the steps of the plan in their order, and returns nil once all of them were
// done in this pass. Otherwise it returns a [*BlockedError]. If the plan or held is not
// valid, or the live object cannot be read, it returns another error.
//
// If a read shows that the object is gone or replaced, or does not carry the finalizer, Run
// returns nil and starts no further step. If the object is not being deleted, it returns an
// error.
func (p Plan[T]) Run(ctx context.Context, held Held[T]) error {
	if err := p.Validate(); err != nil {
		return err
	}
	own := !kube.IsNil(p.Metrics)
	if !own {
		p.Metrics = metricsOf(ctx) // p is a copy
	}
	if !held.Valid() {
		return errors.New("finalizer: Run got the zero Held: pass the one that Ensure gives to its cleanup")
	}
	live, exists, err := p.read(ctx, held)
	if err != nil {
		return err
	}
	if !exists {
		p.noteGone(held)
		return nil
	}
	fresh := true // no step has run since the read
	held.object = live

	blocked := &BlockedError{planned: true, Since: live.GetDeletionTimestamp().Time}
	done := make(map[string]bool, len(p.Steps))
	for i, step := range p.Steps {
		if !p.ready(i, done) {
			continue
		}
		if ctx.Err() != nil {
			blocked.add(held.name, BlockedStep{Name: step.Name, Err: fmt.Errorf("not started: %w", context.Cause(ctx)), After: minDelay})
			break
		}
		// While the step before ran, another object can have taken the name.
		if !fresh {
			live, exists, err := p.read(ctx, held)
			if err != nil {
				b := BlockedStep{Name: step.Name, Err: fmt.Errorf("not started: %w", err)}
				b.After = delay(since(blocked.Since), b.Err)
				blocked.add(held.name, b)
				break
			}
			if !exists {
				p.noteGone(held)
				return nil
			}
			held.object = live
		}
		fresh = false
		if b := p.ask(ctx, step, held, blocked.Since); b != nil {
			blocked.add(held.name, *b)
		} else {
			done[step.Name] = true
		}
	}
	// A step that did not run waits, directly or not, for a step that did.
	age := since(blocked.Since)
	if len(blocked.Steps) == 0 {
		if p.Metrics != nil {
			held.plans.finish(func() { p.Metrics.FinalizerFinished(held.name, age) })
		}
		if p.Metrics != nil && (own || held.plans == nil) { // Ensure reports to those of ctx, once it has removed the finalizer
			p.Metrics.FinalizerObject(held.name, held.object.GetUID(), nil, age, 0)
			held.plans.add(p.Metrics)
		}
		return nil
	}
	if p.Metrics != nil {
		var steps []string
		for _, b := range blocked.Steps {
			p.Metrics.FinalizerBlocked(held.name, b.Name, age)
			steps = append(steps, b.Name)
		}
		again := blocked.After
		if blocked.Err != nil { // the caller may retry by the class of the error
			again = max(again, cleanupDelay)
		}
		blocks(ctx, p.Metrics, held.name, held.object.GetUID(), steps, age, again)
	}
	return blocked
}

// read returns the live object. exists is false if it is gone or replaced, or does not
// carry the finalizer.
func (p Plan[T]) read(ctx context.Context, held Held[T]) (live T, exists bool, err error) {
	live, err = look(ctx, p.Client, held.object)
	missing := func() bool { return kube.IsGone(err, held.object.GetName()) || kube.IsFailedTest(err) }
	if missing() {
		// A client of another namespace or resource gets the same response. Ensure has its
		// own client and would remove the finalizer.
		if live, err = look(ctx, held.client, held.object); err == nil {
			return live, false, fmt.Errorf("finalizer: Plan.Client does not find object %q, and the client of Ensure does: set it to that one, of the object's resource and namespace", live.GetName())
		}
	}
	switch {
	case missing() || err == nil && !Has(live, held.name):
		return live, false, nil
	case err != nil:
		return live, false, fmt.Errorf("read the live object: %w", err)
	case live.GetDeletionTimestamp() == nil:
		return live, false, fmt.Errorf("object %q is not being deleted: a plan runs only as the cleanup of one that is", live.GetName())
	}
	return live, true, nil
}

func (p Plan[T]) noteGone(held Held[T]) {
	if p.Metrics != nil {
		p.Metrics.FinalizerObject(held.name, held.object.GetUID(), nil, 0, 0)
	}
}

// ready reports whether the steps before the i-th one are done.
func (p Plan[T]) ready(i int, done map[string]bool) bool {
	step := p.Steps[i]
	switch {
	case step.AtOnce || i == 0 && step.After == nil:
		return true
	case step.After == nil:
		return done[p.Steps[i-1].Name]
	}
	return !slices.ContainsFunc(step.After, func(name string) bool { return !done[name] })
}

// ask runs a step. It returns nil if the step is done or was given up.
func (p Plan[T]) ask(ctx context.Context, step Step[T], held Held[T], deleted time.Time) *BlockedStep {
	result := resultFailed // also after a panic
	var took time.Duration
	if p.Metrics != nil {
		p.Metrics.FinalizerStepStarted(held.name, step.Name)
		defer func() { p.Metrics.FinalizerStepEnded(held.name, step.Name, result, took) }()
	}
	own := cmp.Or(step.Timeout, time.Minute)
	timeout := own
	if end, ok := ctx.Deadline(); ok {
		timeout = min(own, time.Until(end)/10*9)
	}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	start := time.Now()
	progress, err := func() (Progress, error) {
		defer func() { took = time.Since(start) }()
		return step.Run(bounded, held)
	}()

	if wait := kube.Waits(err); wait > 0 {
		progress, err = Progress{After: wait, Message: err.Error()}, nil
	}
	b := &BlockedStep{Name: step.Name, Message: progress.Message, After: progress.After}
	switch late := bounded.Err() != nil && ctx.Err() == nil; {
	case err != nil && late:
		result = resultTimedOut
		after := own.String()
		if timeout < own { // it differs between passes, and the condition must not
			after = "most of the time that the pass had left"
		}
		b = &BlockedStep{Name: step.Name, Err: fmt.Errorf("timed out after %s: %w", after, err), timedOut: true}
	case err != nil:
		b = &BlockedStep{Name: step.Name, Err: err}
	case progress.Done:
		result = resultDone
		return nil
	default:
		result = resultWaiting
	}
	age := since(deleted)
	// A step had no fair last try if the process stopped, or if other steps left it too
	// little time.
	if fair := ctx.Err() == nil && timeout >= own/2; fair && step.GiveUpAfter > 0 && age >= step.GiveUpAfter {
		result = resultFailed
		bounded, cancel := context.WithTimeout(ctx, own)
		defer cancel()
		err := p.GaveUp(bounded, held, step.Name, b.cause())
		if err == nil {
			result = resultGaveUp
			return nil
		}
		b = &BlockedStep{Name: step.Name, Err: fmt.Errorf("%w; not given up: %w", b.cause(), err), timedOut: b.timedOut}
	}
	if b.After <= 0 {
		b.After = delay(age, b.Err)
	}
	if left := step.GiveUpAfter - age; left > 0 {
		b.After = min(b.After, left)
	}
	return b
}

// The bounds of the delay of a step without an After, without the jitter.
const (
	minDelay = time.Second
	maxDelay = time.Minute
)

// delay returns the time until the next try of a step without an After. It depends on the
// time in deletion and not on a number of tries, which would have to be stored.
func delay(age time.Duration, err error) time.Duration {
	d := minDelay
	if !apierrors.IsConflict(err) { // a conflict is over after the next read
		d = max(d, min(age/2, maxDelay))
	}
	return d + rand.N(d/5) // jitter: the objects of a namespace are deleted at the same time
}

// since returns the time in deletion. The timestamp is the API server's, and a Pod's
// is in the future by its grace period.
func since(deleted time.Time) time.Duration { return max(0, time.Since(deleted)) }

// Validate returns an error if the plan is not valid. Run calls it for each object, so
// call it at start too.
func (p Plan[T]) Validate() error {
	switch {
	case kube.IsNil(p.Client):
		return errors.New("finalizer: Plan.Client is nil: set it to the client that Ensure gets")
	case len(p.Steps) == 0:
		return errors.New("finalizer: Plan.Steps is empty: a plan needs at least one step")
	}
	for i, s := range p.Steps {
		at := fmt.Sprintf("finalizer: Plan.Steps[%d]", i)
		switch earlier := p.Steps[:i]; {
		case s.Name == "":
			return fmt.Errorf("%s.Name is empty: set it, because errors name the step", at)
		case s.Run == nil:
			return fmt.Errorf("%s.Run is nil: set it to the function of step %s", at, s.Name)
		case has(earlier, s.Name):
			return fmt.Errorf("%s.Name is %s, as that of a step before: give each step a name of its own", at, s.Name)
		case s.AtOnce && s.After != nil:
			return fmt.Errorf("%s has AtOnce and After: step %s can have one of them", at, s.Name)
		case s.After != nil && len(s.After) == 0:
			return fmt.Errorf("%s.After is empty and not nil: use nil to wait for the step before, AtOnce to wait for none", at)
		case min(s.Timeout, s.GiveUpAfter) < 0:
			return fmt.Errorf("%s has a negative duration: use 0 for the default of step %s", at, s.Name)
		case s.GiveUpAfter > 0 && p.GaveUp == nil:
			return fmt.Errorf("finalizer: Plan.GaveUp is nil, and step %s has a GiveUpAfter: set it to report the leftovers", s.Name)
		default:
			for _, name := range s.After {
				if !has(earlier, name) {
					return fmt.Errorf("%s.After names %q, which is no step before %s: declare it earlier", at, name, s.Name)
				}
			}
		}
	}
	return nil
}

func has[T metav1.Object](steps []Step[T], name string) bool {
	return slices.ContainsFunc(steps, func(s Step[T]) bool { return s.Name == name })
}

// BlockedError reports the steps that block a [Plan]. [Ensure] returns it in its error.
// If all steps wait, none has failed, and Err is nil:
//
//	_, live, err := finalizer.Ensure(ctx, client, obj, name, plan.Run)
//	if blocked, ok := errors.AsType[*finalizer.BlockedError](err); ok {
//		// the place to write blocked.Condition to the status
//		return reconcile.Result{RequeueAfter: blocked.After}, blocked.Err
//	}
//
// A hand-written loop passes After to the queue's AddAfter. If all steps wait, a
// reconcile.Controller runs the key again after After also if its function returns the error as it
// is. If a step has failed, the class of Err decides, and of a terminal one no retry comes, also
// not for the steps that wait: set RequeueAfter as above. If the cleanup joins other errors with that
// of the Plan, return the error as it is, because blocked.Err is without them.
type BlockedError struct {
	// Steps has the steps that ran and are not done, at least one, in the order of the
	// plan.
	Steps []BlockedStep

	// Since is the object's deletionTimestamp.
	Since time.Time

	// After is the delay until the next pass, the shortest of all steps.
	After time.Duration

	// Err joins the errors of the failed steps, with the names of finalizer and step. Nil
	// means that all steps wait.
	Err error

	planned bool // Plan.Run made it, and has reported its steps to Metrics
}

// Waits returns After if all steps wait, and 0 if one has failed. See controllerkit.WaitingError.
func (e *BlockedError) Waits() time.Duration {
	if e.Err != nil {
		return 0
	}
	return e.After
}

// BlockedStep is a step that is not done.
type BlockedStep struct {
	Name     string        // of the Step
	Message  string        // of its Progress; "" with an Err
	Err      error         // the error of Run; nil means that the step waits
	After    time.Duration // the delay until the next try
	timedOut bool          // whether the step's own Timeout ended the call
}

// asBlocked returns the error of a cleanup that is not a Plan, as a BlockedError if it waits.
func asBlocked(err error, deleted time.Time) error {
	wait := kube.Waits(err)
	if _, ok := errors.AsType[*BlockedError](err); ok || wait <= 0 {
		return err
	}
	return &BlockedError{Steps: []BlockedStep{{Name: wholeCleanup, Message: err.Error(), After: wait}}, Since: deleted, After: wait}
}

// cause returns the reason why the step is not done.
func (b *BlockedStep) cause() error {
	if b.Err != nil {
		return b.Err
	}
	return errors.New(cmp.Or(b.Message, "not done"))
}

func (e *BlockedError) add(finalizer string, b BlockedStep) {
	if len(e.Steps) == 0 || b.After < e.After {
		e.After = b.After
	}
	e.Steps = append(e.Steps, b)
	if b.Err != nil {
		e.Err = errors.Join(e.Err, fmt.Errorf("finalizer %s: step %s: %w", finalizer, b.Name, b.Err))
	}
}

// Error names every step that blocks, with its reason.
func (e *BlockedError) Error() string {
	var text []string
	for _, b := range e.Steps {
		text = append(text, fmt.Sprintf("step %s: %v", b.Name, b.cause()))
	}
	return "not finished: " + strings.Join(text, "; ")
}

// Unwrap returns Err.
func (e *BlockedError) Unwrap() error { return e.Err }

// Condition returns a condition of type Terminating for the object's status. Its status
// is True. Its reason is the worst of StepWaiting, StepFailed and StepTimedOut. Its
// message has the reason of each step that blocks. Its lastTransitionTime is the
// deletionTimestamp. generation is the object's metadata.generation.
//
// It depends on the reasons alone, so a controller that writes it on each change does not trigger
// itself. Keep request ids and durations out of errors.
func (e *BlockedError) Condition(generation int64) metav1.Condition {
	reason := "StepWaiting"
	for _, b := range e.Steps {
		switch {
		case b.timedOut:
			reason = "StepTimedOut"
		case b.Err != nil && reason == "StepWaiting":
			reason = "StepFailed"
		}
	}
	return metav1.Condition{
		Type:               "Terminating",
		Status:             metav1.ConditionTrue,
		ObservedGeneration: generation,
		LastTransitionTime: metav1.NewTime(e.Since),
		Reason:             reason,
		Message:            kube.Message(e.Error()),
	}
}
