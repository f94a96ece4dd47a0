package leader

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/tenure"
)

// ErrLost is the cause of the end of lead's context after leadership is lost, and the
// error of Term.Check from then on. Its type has the method LeadershipLost() bool,
// which returns true, so that packages can distinguish it from a requested stop without
// importing this one.
var ErrLost error = &lostError{}

type lostError struct{}

func (*lostError) Error() string        { return "leader: no longer the leader" }
func (*lostError) LeadershipLost() bool { return true }

// A Term is one uninterrupted leadership, and its fencing token. While the Lease is not
// deleted and etcd is not restored from a backup, every later Term has the same
// LeaseUID and a higher Number.
type Term struct {
	// LeaseUID is the UID of the Lease.
	LeaseUID types.UID
	// Number is the Lease's leaseTransitions. The first term of the first Lease has 0.
	Number int64
}

// TermFrom returns the term of lead's context, or of a context derived from it, and
// false for any other context. The term may be over: see [Term.Check].
func TermFrom(ctx context.Context) (Term, bool) {
	if t, ok := ctx.Value(termKey{}).(*term); ok {
		return t.Term, true
	}
	return Term{}, false
}

// Check returns nil if this process is the leader in term t at this moment, and ErrLost
// otherwise. It reads only the clock: a late timer or a call that hangs does not make
// it return nil too late. ctx must be lead's context or one derived from it. It may be
// done, because the Lease is held while lead drains. Call Check just before an effect
// that the next leader must not repeat. A receiver outside of the cluster can reject a
// Number below the highest that it has seen.
func (t Term) Check(ctx context.Context) error {
	current, ok := ctx.Value(termKey{}).(*term)
	if !ok {
		return errNoTerm
	}
	if current.Term != t || !current.Valid() {
		return ErrLost
	}
	return nil
}

var errNoTerm = errors.New("leader: the context has no term: use the context of lead")

type termKey struct{}

// A term is the state of a running Term: its period of lease.
type term struct {
	Term
	tenure.Period
	unhealthyAfter time.Duration
	took           time.Duration // from when the Lease was seen to be free
	doubt          chan struct{} // requests a renewal at once: the Lease may be another's

	unrenewed atomic.Pointer[error] // of the last renewal; nil if it succeeded or none has ended
}

// newTerm returns the term of a Lease that was acquired by a request sent at the given
// time. All writes of earlier leaders have a resource version up to since, and this process saw
// the last write of an earlier one to the Lease at last. It keeps the values of ctx and ignores
// its end.
func newTerm(ctx context.Context, id Term, since string, last time.Time, sent tenure.Instant, validFor, unhealthyAfter time.Duration, wall func(time.Time) time.Time) *term {
	t := &term{
		Term:           id,
		unhealthyAfter: unhealthyAfter,
		doubt:          make(chan struct{}, 1),
	}
	if since != "" {
		ctx = calls.WithSince(ctx, since)
	}
	ctx = context.WithValue(ctx, calls.LastRenewal{}, last)
	t.Begin(context.WithValue(ctx, termKey{}, t), ErrLost, sent, validFor, wall)
	return t
}

// failed notes the error of a renewal, or nil.
func (t *term) failed(err error) {
	if err == nil {
		t.unrenewed.Store(nil)
		return
	}
	t.unrenewed.Store(&err)
}

// reason returns why the Lease was not renewed.
func (t *term) reason() error {
	if err := t.unrenewed.Load(); err != nil {
		return *err
	}
	return errors.New("no renewal has ended within RenewDeadline: the process was paused, its clock was set forward, or the API server has not responded")
}

// renewAtOnce requests a renewal before the next RetryPeriod.
func (t *term) renewAtOnce() {
	select {
	case t.doubt <- struct{}{}:
	default:
	}
}

// TermAnnotation is the key of the annotation, and of the attribute of the user, with the
// term of a write: "<Lease UID>/<number>".
const TermAnnotation = "controllerkit.github.io/leader-term"

func (t Term) stamp() string { return string(t.LeaseUID) + "/" + strconv.FormatInt(t.Number, 10) }

// Stamp writes the term into the annotation [TermAnnotation] of obj, before obj is created
// or updated, for the fence of package fence. It gives obj a new map of
// annotations, so obj may be a shallow copy of a shared object; obj itself must be the
// caller's. A fence refuses the stamp of a zero Term.
func (t Term) Stamp(obj metav1.Object) {
	annotations := maps.Clone(obj.GetAnnotations())
	if annotations == nil {
		annotations = t.Annotations()
	}
	annotations[TermAnnotation] = t.stamp()
	obj.SetAnnotations(annotations)
}

// Annotations returns the stamp of [Term.Stamp] for server-side apply:
//
//	applyconfigurationscorev1.ConfigMap(name, namespace).WithAnnotations(term.Annotations())
//
// The map is the caller's.
func (t Term) Annotations() map[string]string { return map[string]string{TermAnnotation: t.stamp()} }
