package finalizer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// A Plan is a cleanup of several steps. Its method Run is the cleanup that
// [Ensure] takes. A Plan holds no state: it may be used for many objects at once,
// and a crash at any point costs nothing but asking its steps again.
//
// The order of the steps is the order in which they stand: each is asked once the
// one before it is done. After and AtOnce of a Step loosen that, so that what
// needs not wait does not. Steps are called one after the other, never at once.
type Plan[T metav1.Object] struct {
	// Client is the one that Ensure gets: that of the object's namespace. Run looks at
	// the object itself before the first step, with a patch that changes nothing, so
	// that no step works from a stale copy. Required.
	Client Patcher[T]

	// Steps are what has to be done, at least one.
	Steps []Step[T]

	// GaveUp is called before a step with a GiveUpAfter counts as done although it
	// is not; cause is what it said last. It is the place to record an Event, as
	// something is left behind that nobody will clean up. An error of it keeps the
	// step blocking, so nothing is given up silently. A later pass over the same
	// object calls it again. ctx ends after the Timeout of the step. Required with a
	// GiveUpAfter.
	GaveUp func(ctx context.Context, held Held[T], step string, cause error) error

	// Metrics observes the steps. nil means none.
	Metrics Metrics
}

// A Step is one part of a cleanup.
type Step[T metav1.Object] struct {
	// Name stands in errors, conditions and metrics. Required, unique in its Plan.
	Name string

	// Run does this part or finds it done. It is called in every pass of the plan,
	// after crashes and after it was done before, so it must be idempotent and cheap
	// when there is nothing to do: nothing but the world itself remembers what was
	// done. held has the object as the API server has it now. ctx ends after Timeout;
	// a Run that does not heed it is waited for. Panics pass through. Required.
	//
	// What it says counts only if the error is nil; otherwise the step failed. A
	// claim that something is gone needs a read of its source, not of a cache:
	// [Remaining] is that for objects.
	Run func(ctx context.Context, held Held[T]) (Progress, error)

	// After names the steps that must be done before, all of which stand earlier in
	// the plan. nil means the step before this one.
	After []string

	// AtOnce is for a step that waits for no other; After must be nil then. false
	// means that After holds.
	AtOnce bool

	// Timeout bounds one call of Run. So do nine tenths of the time that the context
	// of the pass has left, or a step that hangs would leave none to the others and to
	// what follows. 0 means 1 minute.
	Timeout time.Duration

	// BaseDelay and MaxDelay bound the time until a step that failed, or waits
	// without saying how long, is asked again: half of the time since the deletion
	// was asked for, within these, and up to a fifth longer. That grows by half with
	// each try, and a restart of the process does not set it back. After a Conflict it
	// is BaseDelay, however old the deletion is. 0 means 1 second and 1 minute.
	BaseDelay, MaxDelay time.Duration

	// GiveUpAfter is how long after the deletion was asked for the step counts as
	// done although it is not, once it was asked a last time. What it should have
	// cleaned up stays. A pass that has less than half of the Timeout for it does not
	// give it up. 0 means never.
	GiveUpAfter time.Duration
}

// Progress is what a step says that did not fail. The zero value says that it is
// not done.
type Progress struct {
	// Done says that nothing is left to do; the other fields do not matter then.
	Done bool

	// After is when to ask again. 0 means what the BaseDelay of the step says. An
	// event that brings the object sooner is welcome.
	After time.Duration

	// Message says what the step waits for, such as "3 volumes left". It gets into
	// the condition, so it should not change when nothing does. "" means nothing
	// to say.
	Message string
}

// Metrics observes a [Plan]. finalizer is the finalizer's name, step that of the
// step; there are no names of objects. Its methods are called by Run, in its
// goroutine, and by several of them when objects are worked on at once.
type Metrics interface {
	// FinalizerStepStarted is called before each call of a step.
	FinalizerStepStarted(finalizer, step string)
	// FinalizerStepEnded is called after it with one of the results done, waiting,
	// failed, timed_out and gave_up, and the time that the call took. A panic counts as failed.
	FinalizerStepEnded(finalizer, step, result string, took time.Duration)
	// FinalizerBlocked is called at the end of a pass for each step that blocks it.
	// age is the time since the deletion was asked for, which survives restarts.
	FinalizerBlocked(finalizer, step string, age time.Duration)
	// FinalizerFinished is called when all steps are done: once for an object, unless
	// the removal of the finalizer then fails and the plan runs again.
	FinalizerFinished(finalizer string, age time.Duration)
}

// The results of a call of a step.
const (
	resultDone     = "done"
	resultWaiting  = "waiting"
	resultFailed   = "failed"
	resultTimedOut = "timed_out"
	resultGaveUp   = "gave_up"
)

// Run asks the steps of the plan in their order, and returns nil once all of them
// have said in this one pass that they are done. Otherwise it returns a
// [*BlockedError], unless the plan or held is not valid or the look at the object
// fails; those errors say so.
//
// It asks none of them, and returns nil, if the API server has no object with that
// UID any more, or one without the finalizer: the cleanup of that object is over.
// It refuses an object that is not being deleted.
func (p Plan[T]) Run(ctx context.Context, held Held[T]) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if !held.Valid() {
		return errors.New("finalizer: Run got the zero Held: pass the one that Ensure gives to its cleanup")
	}
	live, err := look(ctx, p.Client, held.object)
	missing := func() bool { return kube.IsGone(err, held.object.GetName()) || kube.IsFailedTest(err) }
	if missing() {
		// That is what a client of another namespace or resource says too, and Ensure
		// would remove the finalizer with its own.
		if live, err = look(ctx, held.client, held.object); err == nil {
			return fmt.Errorf("finalizer: Plan.Client does not find object %q, and the client of Ensure does: set it to that one, of the object's resource and namespace", live.GetName())
		}
	}
	switch {
	case missing() || err == nil && !Has(live, held.name):
		return nil
	case err != nil:
		return fmt.Errorf("look at the object: %w", err)
	case live.GetDeletionTimestamp() == nil:
		return fmt.Errorf("object %q is not being deleted: a plan runs only as the cleanup of one that is", live.GetName())
	}
	held.object = live

	blocked := &BlockedError{Since: live.GetDeletionTimestamp().Time}
	done := make(map[string]bool, len(p.Steps))
	for i, step := range p.Steps {
		if !p.ready(i, done) {
			continue
		}
		if ctx.Err() != nil {
			blocked.add(held.name, BlockedStep{Name: step.Name, Err: fmt.Errorf("not started: %w", context.Cause(ctx)), After: step.base()})
			break
		}
		if b := p.ask(ctx, step, held, blocked.Since); b != nil {
			blocked.add(held.name, *b)
		} else {
			done[step.Name] = true
		}
	}
	// Whatever was not asked waits, at the end of its chain, for a step that was.
	age := since(blocked.Since)
	if len(blocked.Steps) == 0 {
		if p.Metrics != nil {
			p.Metrics.FinalizerFinished(held.name, age)
		}
		return nil
	}
	if p.Metrics != nil {
		for _, b := range blocked.Steps {
			p.Metrics.FinalizerBlocked(held.name, b.Name, age)
		}
	}
	return blocked
}

// ready reports whether the steps that the i-th one waits for are done.
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

// ask calls a step and returns nil if it is done, or counts as such.
func (p Plan[T]) ask(ctx context.Context, step Step[T], held Held[T], deleted time.Time) *BlockedStep {
	result := resultFailed // a panic leaves it at that
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

	b := &BlockedStep{Name: step.Name, Message: progress.Message, After: progress.After}
	switch late := bounded.Err() != nil && ctx.Err() == nil; {
	case err != nil && late:
		result = resultTimedOut
		after := own.String()
		if timeout < own { // which differs from pass to pass, and a condition must not
			after = "most of what the pass had left"
		}
		b = &BlockedStep{Name: step.Name, Err: fmt.Errorf("timed out after %s: %w", after, err), TimedOut: true}
	case err != nil:
		b = &BlockedStep{Name: step.Name, Err: err}
	case progress.Done:
		result = resultDone
		return nil
	default:
		result = resultWaiting
	}
	age := since(deleted)
	// A step that a stop interrupts, or that others left too little time, had no fair
	// last try.
	if fair := ctx.Err() == nil && timeout >= own/2; fair && step.GiveUpAfter > 0 && age >= step.GiveUpAfter {
		result = resultFailed
		told, cancel := context.WithTimeout(ctx, own)
		defer cancel()
		err := p.GaveUp(told, held, step.Name, b.cause())
		if err == nil {
			result = resultGaveUp
			return nil
		}
		b = &BlockedStep{Name: step.Name, Err: fmt.Errorf("%w; not given up: %w", b.cause(), err), TimedOut: b.TimedOut}
	}
	if b.After <= 0 {
		b.After = step.delay(age, b.Err)
	}
	if left := step.GiveUpAfter - age; left > 0 {
		b.After = min(b.After, left)
	}
	return b
}

func (s Step[T]) base() time.Duration { return cmp.Or(s.BaseDelay, time.Second) }

// delay is the time until the step is asked again if it does not say it itself.
// It comes from the age of the deletion and not from a count of tries, which
// would have to be kept somewhere.
func (s Step[T]) delay(age time.Duration, err error) time.Duration {
	d := s.base()
	if !apierrors.IsConflict(err) { // that one is over as soon as it is read again
		d = max(d, min(age/2, cmp.Or(s.MaxDelay, max(d, time.Minute))))
	}
	// The objects of one namespace are deleted at one time.
	return d + min(rand.N(d/5+1), math.MaxInt64-d)
}

// since is the age of a deletion. Its timestamp is the server's, and that of a
// pod lies in the future by the grace period.
func since(deleted time.Time) time.Duration { return max(0, time.Since(deleted)) }

// Validate reports what is wrong with the plan, all of which is a mistake in the
// program. Run does it too, but that is when the first object is deleted; call it
// at start.
func (p Plan[T]) Validate() error {
	switch {
	case kube.IsNil(p.Client):
		return errors.New("finalizer: Plan.Client is nil: set it to the client that Ensure gets")
	case p.Metrics != nil && kube.IsNil(p.Metrics):
		return fmt.Errorf("finalizer: Plan.Metrics is a nil %T: leave it out to have none", p.Metrics)
	case len(p.Steps) == 0:
		return errors.New("finalizer: Plan.Steps is empty: a plan needs at least one step")
	}
	for i, s := range p.Steps {
		at := fmt.Sprintf("finalizer: Plan.Steps[%d]", i)
		switch earlier := p.Steps[:i]; {
		case s.Name == "":
			return fmt.Errorf("%s.Name is empty: set it, errors name the step", at)
		case s.Run == nil:
			return fmt.Errorf("%s.Run is nil: set it to the function of step %s", at, s.Name)
		case has(earlier, s.Name):
			return fmt.Errorf("%s.Name is %s, as that of a step before: give each step a name of its own", at, s.Name)
		case s.AtOnce && s.After != nil:
			return fmt.Errorf("%s has AtOnce and After: step %s can have one of them", at, s.Name)
		case s.After != nil && len(s.After) == 0:
			return fmt.Errorf("%s.After is empty and not nil: use nil to wait for the step before, AtOnce to wait for none", at)
		case min(s.Timeout, s.BaseDelay, s.MaxDelay, s.GiveUpAfter) < 0:
			return fmt.Errorf("%s has a negative duration: use 0 for the default of step %s", at, s.Name)
		case s.MaxDelay > 0 && s.MaxDelay < s.base():
			return fmt.Errorf("%s.MaxDelay is %v, shorter than its BaseDelay of %v", at, s.MaxDelay, s.base())
		case s.GiveUpAfter > 0 && p.GaveUp == nil:
			return fmt.Errorf("finalizer: Plan.GaveUp is nil, and step %s has a GiveUpAfter: set it, to tell what is left behind", s.Name)
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

// A BlockedError says that a [Plan] is not through, and by what. Find it with
// errors.As in what [Ensure] returns. To wait is no failure: Err tells, and After
// is when to come again, either way. With package reconcile of this module:
//
//	_, live, err := finalizer.Ensure(ctx, client, obj, name, plan.Run)
//	if blocked, ok := errors.AsType[*finalizer.BlockedError](err); ok {
//		// the place to write blocked.Condition to the status
//		return reconcile.Result{RequeueAfter: blocked.After}, blocked.Err
//	}
//
// A loop written by hand calls the queue's AddAfter with After. Returned as it is
// to code that does not know it, a BlockedError is an error like others.
type BlockedError struct {
	// Steps are those that were asked and are not done, in the order of the plan.
	// There is at least one.
	Steps []BlockedStep

	// Since is when the deletion was asked for, by the API server's clock.
	Since time.Time

	// After is when to ask again: the shortest of all steps.
	After time.Duration

	// Err joins the errors of the steps that failed, each with the name of finalizer
	// and step. nil means that none did, and all of them wait.
	Err error
}

// A BlockedStep is a step that is not done.
type BlockedStep struct {
	Name     string        // of the step
	Message  string        // of its Progress; "" next to an Err
	Err      error         // what Run returned; nil means that it waits
	TimedOut bool          // whether Err comes from the step's own Timeout
	After    time.Duration // when to ask again
}

// cause says as an error why the step is not done.
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

// Error names every step that blocks and what it says.
func (e *BlockedError) Error() string {
	var text []string
	for _, b := range e.Steps {
		text = append(text, fmt.Sprintf("step %s: %v", b.Name, b.cause()))
	}
	return "not finished: " + strings.Join(text, "; ")
}

// Unwrap returns Err.
func (e *BlockedError) Unwrap() error { return e.Err }

// Condition returns a condition of type Terminating for whoever writes the
// object's status. Its status is True. Its reason is StepWaiting, StepFailed or
// StepTimedOut, whichever is worst; its message names each step that blocks and
// what it says; its lastTransitionTime is when the deletion was asked for, so it
// tells for how long. generation is that of the object.
//
// It is the same as long as nothing changes, errors with changing texts aside, so
// writing it when it differs is no loop.
func (e *BlockedError) Condition(generation int64) metav1.Condition {
	reason := "StepWaiting"
	for _, b := range e.Steps {
		switch {
		case b.TimedOut:
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
