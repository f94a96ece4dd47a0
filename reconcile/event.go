package reconcile

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"
)

// EventClient is what an [EventRecorder] needs of the client of one namespace. The
// typed client of events.k8s.io/v1 has it. Its role needs create and patch on events
// of the group events.k8s.io.
type EventClient interface {
	Create(ctx context.Context, event *eventsv1.Event, opts metav1.CreateOptions) (*eventsv1.Event, error)
	Patcher[*eventsv1.Event]
}

// EventRecorder writes Events about objects, next to what a Func does. Most callers
// set Client and Controller, start Run beside their controllers, stop it after them,
// and share one recorder among all controllers of a process.
//
//	recorder := &reconcile.EventRecorder{
//		Controller: "example.com/widgets",
//		Client:     func(ns string) reconcile.EventClient { return client.EventsV1().Events(ns) },
//	}
//
// Events that are the same but for the time become one Event whose series counts
// them: it is written at once when it is new, then by one patch per Interval while it
// is seen again. The same means: regarding, related, type, reason, action and note. A
// series that was not seen for ten times Interval is over, and the next a new Event.
//
// A flood is bounded. An object gets 25 different Events, then one more per 5min;
// MaxSeries bounds the memory, QPS the requests. What is beyond is dropped, counted
// and logged, and so is what the API server refuses. A write that may succeed later
// (a 429, a 5xx, a conflict, a timeout, no answer) is tried up to 10 times, over some
// 3min: after 1s, twice as long each time up to 30s, or when Retry-After asks for it,
// 1min at most. A request ends after 10s. Drops are logged once a minute, one line per reason.
//
// An EventRecorder is configured by its fields, which must not change after first
// use, and must not be copied. Its methods are safe for concurrent use. A nil
// *EventRecorder records nothing, so that the test of a Func needs none.
type EventRecorder struct {
	// Client returns the client of a namespace. Required.
	Client func(namespace string) EventClient

	// Controller is the Events' reportingController, such as example.com/widgets: a
	// qualified name, like the key of a label. Required.
	Controller string

	// Instance is the Events' reportingInstance, such as the name of the pod, cut at
	// 128 bytes. "" means Controller.
	Instance string

	// Interval is the least time between two writes of one series, retries aside. 0
	// means 1min.
	Interval time.Duration

	// MaxSeries is how many series may wait to be written; an event of one more is
	// dropped. As many that are written are remembered, and as many objects' budgets:
	// those that were used last. 0 means 1024.
	MaxSeries int

	// QPS is how many requests a second a Run makes at most, one at a time, after a
	// burst of ten times as many. 0 means 20.
	QPS float64

	// StopTimeout is how long Run goes on writing what it holds once its context is
	// done. 0 means 5s.
	StopTimeout time.Duration

	running atomic.Bool // Run is running

	mu                    sync.Mutex            // guards the fields below and every series
	wake                  chan struct{}         // has an element when the writer should look again; nil before first use
	held                  map[seriesKey]*series // with something to write
	idle                  *lru.Cache            // *series by seriesKey, with nothing to write
	objects               *lru.Cache            // *rate.Limiter by corev1.ObjectReference
	written, deduplicated uint64
	dropped               map[string]drops // by reason
}

// EventCounts tells what became of the calls of [EventRecorder.Event]. Each call is
// counted in one place at any time: the numbers add up to the number of calls.
type EventCounts struct {
	Written      uint64 // became an Event
	Deduplicated uint64 // were added to the series of an Event that is written
	Held         uint64 // are to be written

	// Dropped were lost, by reason. What a timeout dropped may have arrived.
	//
	//	full       MaxSeries series waited to be written
	//	limited    the object's budget was used up
	//	invalid    no kind or name of the object, no reason or action, or another type than Normal or Warning
	//	gone       the namespace does not exist or is being deleted
	//	forbidden  a role is missing
	//	rejected   the API server refused it for another reason
	//	failed     the retries were used up, or the one try when Run stops
	//	stopped    Run ended before it was written
	Dropped map[string]uint64
}

const (
	defaultEventInterval = time.Minute
	defaultMaxSeries     = 1024
	defaultEventQPS      = 20
	defaultStopTimeout   = 5 * time.Second

	eventTimeout = 10 * time.Second // of a request
	eventWindow  = 10               // Intervals
	eventTries   = 10
	eventLog     = time.Minute // between two lines about drops of one reason

	objectBurst  = 25
	objectRefill = 5 * time.Minute

	maxNote  = 1024 // bytes, as the API server's validation has it
	maxField = 128
)

// seriesKey is what makes events the same. Its references have no resourceVersion.
type seriesKey struct {
	regarding, related              corev1.ObjectReference
	eventType, reason, action, note string
}

// series is what was seen of one key, and how much of that is written.
type series struct {
	key           seriesKey
	name          string // of the Event; "" until a try to create it
	first, last   time.Time
	seen, written int64 // seen > written: there is something to write
	created       bool
	due           time.Time // of the next try; those that wait longest come first
	tries         int       // that failed in a row
}

// drops is what was dropped for one reason.
type drops struct {
	total, logged uint64
	err           error // the last one
}

// Reference is the reference of an Event to obj, whose kind is kind: typed objects do
// not carry it. It is the zero reference if obj is nil or a nil pointer.
func Reference(obj metav1.Object, kind schema.GroupVersionKind) corev1.ObjectReference {
	if v := reflect.ValueOf(obj); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return corev1.ObjectReference{}
	}
	return corev1.ObjectReference{
		APIVersion: kind.GroupVersion().String(), Kind: kind.Kind,
		Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: obj.GetUID(),
	}
}

// Event records that action was taken on regarding, or failed, for reason; note tells
// people more. related is a second object that it is about, such as the one created;
// the zero reference means none. See [Reference]. eventType is
// [corev1.EventTypeNormal] or [corev1.EventTypeWarning]. regarding needs a kind and a
// name; the Event goes to its namespace, or to default if it has none. The API wants
// a reason and an action, in CamelCase.
//
// Event never blocks and returns no error: what cannot be recorded is dropped and
// counted. It may be called before Run. Text that is too long is cut: note at 1024
// bytes, reason and action at 128. A note that differs each time, by a time in it
// say, makes no series and uses up the object's budget. Resource versions of the
// references are not recorded.
func (r *EventRecorder) Event(regarding, related corev1.ObjectReference, eventType, reason, action, note string) {
	if r == nil {
		return
	}
	regarding.ResourceVersion, related.ResourceVersion = "", ""
	key := seriesKey{regarding, related, eventType, cut(reason, maxField), cut(action, maxField), cut(note, maxNote)}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.initLocked()
	now := time.Now()
	s := r.held[key]
	if s == nil {
		var refused string
		if s, refused = r.seriesLocked(key, now); refused != "" {
			r.dropLocked(refused, 1, nil)
			return
		}
		r.held[key] = s
		select {
		case r.wake <- struct{}{}:
		default: // the writer is to look already
		}
	}
	if s.seen == 0 {
		s.first = now
	}
	s.last = now
	s.seen++
}

func (r *EventRecorder) initLocked() {
	if r.wake == nil {
		r.wake = make(chan struct{}, 1)
		r.held = map[seriesKey]*series{}
		r.idle, r.objects = lru.New(r.maxSeries()), lru.New(r.maxSeries())
		r.dropped = map[string]drops{}
	}
}

func (r *EventRecorder) interval() time.Duration { return cmp.Or(r.Interval, defaultEventInterval) }

func (r *EventRecorder) maxSeries() int { return max(1, cmp.Or(r.MaxSeries, defaultMaxSeries)) }

// seriesLocked returns the series of key to be held, or why there can be none.
func (r *EventRecorder) seriesLocked(key seriesKey, now time.Time) (s *series, refused string) {
	if key.regarding.Kind == "" || key.regarding.Name == "" || key.reason == "" || key.action == "" ||
		key.eventType != corev1.EventTypeNormal && key.eventType != corev1.EventTypeWarning {
		return nil, "invalid"
	}
	if len(r.held) >= r.maxSeries() {
		return nil, "full"
	}
	if value, ok := r.idle.Get(key); ok {
		r.idle.Remove(key)
		if s := value.(*series); now.Sub(s.last) <= eventWindow*r.interval() {
			return s, ""
		}
	}
	object := key.regarding
	object.FieldPath = ""
	value, _ := r.objects.Get(object)
	budget, ok := value.(*rate.Limiter)
	if !ok {
		budget = rate.NewLimiter(rate.Every(objectRefill), objectBurst)
		r.objects.Add(object, budget)
	}
	if !budget.AllowN(now, 1) {
		return nil, "limited"
	}
	return &series{key: key, due: now}, ""
}

func (r *EventRecorder) dropLocked(reason string, n int64, err error) {
	d := r.dropped[reason]
	r.dropped[reason] = drops{total: d.total + uint64(n), logged: d.logged, err: err}
}

// Counts returns what became of the events so far.
func (r *EventRecorder) Counts() EventCounts {
	if r == nil {
		return EventCounts{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := EventCounts{Written: r.written, Deduplicated: r.deduplicated, Dropped: map[string]uint64{}}
	for _, s := range r.held {
		counts.Held += uint64(s.seen - s.written)
	}
	for reason, d := range r.dropped {
		counts.Dropped[reason] = d.total
	}
	return counts
}

// Run writes what is recorded until ctx is done, then what it still holds, each Event
// once and for StopTimeout at most, and returns nil when all its goroutines have
// ended. What is left is dropped, counted and logged. An error means that it could
// not start. A client that ignores its context holds up Run.
//
// One Run at a time. After it returned it can be called again, and what was recorded
// in between is kept. Run of a nil recorder waits for ctx.
func (r *EventRecorder) Run(ctx context.Context) error {
	if r == nil {
		<-ctx.Done()
		return nil
	}
	if err := r.validate(); err != nil {
		return err
	}
	if !r.running.CompareAndSwap(false, true) {
		return fmt.Errorf("reconcile: EventRecorder %q: Run is called while it runs: wait for it to return, or use another EventRecorder", r.Controller)
	}
	defer r.running.Store(false)
	r.mu.Lock()
	r.initLocked()
	r.mu.Unlock()
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var stopper sync.WaitGroup
	stopper.Go(func() { // a request may hang when ctx ends
		<-ctx.Done()
		select {
		case <-time.After(cmp.Or(r.StopTimeout, defaultStopTimeout)):
			cancel()
		case <-requests.Done():
		}
	})
	r.work(ctx, requests)
	cancel()
	stopper.Wait()

	r.mu.Lock()
	for _, s := range r.held {
		r.dropLocked("stopped", s.seen-s.written, nil)
	}
	clear(r.held)
	r.idle.Clear()
	r.mu.Unlock()
	r.report(ctx)
	return nil
}

// validate returns one error that names every field in need of a cure.
func (r *EventRecorder) validate() error {
	var errs []error
	check := func(ok bool, field, cure string) {
		if !ok {
			errs = append(errs, fmt.Errorf("reconcile: EventRecorder.%s", field+" "+cure))
		}
	}
	check(r.Client != nil, "Client", "is nil: set it to a function that returns the client of a namespace")
	check(len(validation.IsQualifiedName(r.Controller)) == 0, "Controller", fmt.Sprintf("is %q: set it to a qualified name such as example.com/widgets", r.Controller))
	check(r.Interval >= 0, "Interval", fmt.Sprintf("is %v: set it to more than 0, or 0 for %v", r.Interval, defaultEventInterval))
	check(r.MaxSeries >= 0, "MaxSeries", fmt.Sprintf("is %d: set it to 1 or more, or 0 for %d", r.MaxSeries, defaultMaxSeries))
	check(r.QPS >= 0, "QPS", fmt.Sprintf("is %v: set it to more than 0, or 0 for %d", r.QPS, defaultEventQPS))
	check(r.StopTimeout >= 0, "StopTimeout", fmt.Sprintf("is %v: set it to more than 0, or 0 for %v", r.StopTimeout, defaultStopTimeout))
	return errors.Join(errs...)
}

// work is the one writer. Once ctx is done it drains, once requests is done it ends.
func (r *EventRecorder) work(ctx, requests context.Context) {
	qps := cmp.Or(r.QPS, defaultEventQPS)
	limiter := rate.NewLimiter(rate.Limit(qps), int(min(max(1, 10*qps), math.MaxInt32)))
	draining := false
	var reported time.Time
	for requests.Err() == nil {
		if time.Since(reported) >= eventLog {
			reported = time.Now()
			r.report(ctx)
		}
		hurry := !draining && ctx.Err() != nil
		draining = draining || hurry
		s, wait := r.next(hurry)
		switch {
		case wait <= 0:
			if limiter.Wait(requests) == nil {
				r.write(requests, s, draining)
			}
		case draining:
			return
		default:
			select {
			case <-r.wake:
			case <-time.After(wait):
			case <-ctx.Done():
			}
		}
	}
}

// next returns the series that is to be written first and how long to wait for it,
// more than 0 if there is none. With hurry, nothing waits any more. It looks at all of
// them, but no more often than there are requests and new series.
func (r *EventRecorder) next(hurry bool) (first *series, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wait = eventLog
	for _, s := range r.held {
		if hurry {
			s.due = s.first
		}
		if left := time.Until(s.due); left < wait || first == nil {
			first, wait = s, min(wait, left)
		}
	}
	return first, wait
}

// write makes one request for s, and does what its outcome asks for.
func (r *EventRecorder) write(requests context.Context, s *series, draining bool) {
	r.mu.Lock()
	event, sent, created := r.eventLocked(s), s.seen, s.created
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(requests, eventTimeout)
	defer cancel()
	client := r.Client(event.Namespace)
	var err error
	if created {
		series, _ := json.Marshal(event.Series) // in whole: a patch that comes twice changes nothing
		_, err = client.Patch(ctx, event.Name, types.MergePatchType, fmt.Appendf(nil, `{"series":%s}`, series), metav1.PatchOptions{})
	} else {
		_, err = client.Create(ctx, event, metav1.CreateOptions{})
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	s.tries++
	s.due = time.Now().Add(r.interval())
	retry := s.tries < eventTries
	switch {
	case err == nil:
		if s.written == 0 {
			r.written++
			r.deduplicated--
		}
		r.deduplicated += uint64(sent - s.written)
		s.written, s.created = sent, true
	case requests.Err() != nil:
		return // Run drops it
	case retry && (created && apierrors.IsNotFound(err) || !created && apierrors.IsAlreadyExists(err)):
		// The Event is too old and was removed. Or it is there: its name is nobody
		// else's, so an earlier try came through, but its answer did not.
		s.created, s.due = !created, time.Time{}
		return
	default:
		reason, delay := eventVerdict(err, s.tries)
		if retry && delay > 0 && !draining {
			s.due = time.Now().Add(delay)
			return
		}
		r.dropLocked(reason, sent-s.written, err)
		s.seen -= sent - s.written
		if !created {
			s.name, s.first = "", s.last // a create that failed may have come through
		}
	}
	s.tries = 0
	if s.seen == s.written {
		delete(r.held, s.key)
		r.idle.Add(s.key, s)
	}
}

// eventVerdict returns the reason to drop what failed with err, and after which time
// to try it again instead, 0 for not at all. It failed tries times in a row.
func eventVerdict(err error, tries int) (reason string, delay time.Duration) {
	var status apierrors.APIStatus
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsNotFound(err):
		return "gone", 0
	case apierrors.IsForbidden(err):
		return "forbidden", 0
	case errors.As(err, &status) && status.Status().Code < 500 && !apierrors.IsTooManyRequests(err) && !apierrors.IsConflict(err):
		return "rejected", 0
	}
	delay = min(time.Second<<(tries-1), 30*time.Second)
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		delay = max(delay, min(time.Duration(seconds)*time.Second, time.Minute))
	}
	return "failed", delay
}

// eventLocked is the Event of s as it is to be now.
func (r *EventRecorder) eventLocked(s *series) *eventsv1.Event {
	if s.name == "" {
		s.name = eventName(s.key.regarding.Name)
	}
	event := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: cmp.Or(s.key.regarding.Namespace, metav1.NamespaceDefault), Name: s.name},
		EventTime:  metav1.NewMicroTime(s.first.Truncate(time.Microsecond)),
		Regarding:  s.key.regarding,
		Type:       s.key.eventType, Reason: s.key.reason, Action: s.key.action, Note: s.key.note,
		ReportingController: r.Controller, ReportingInstance: cut(cmp.Or(r.Instance, r.Controller), maxField),
	}
	if related := s.key.related; related != (corev1.ObjectReference{}) {
		event.Related = &related
	}
	if s.seen > 1 {
		event.Series = &eventsv1.EventSeries{
			Count:            int32(min(s.seen, math.MaxInt32)),
			LastObservedTime: metav1.NewMicroTime(s.last.Truncate(time.Microsecond)),
		}
	}
	return event
}

// eventName is a name that no other Event has. It begins with the object's if it can.
func eventName(object string) string {
	suffix := fmt.Sprintf(".%016x", rand.Uint64())
	if len(validation.IsDNS1123Subdomain(object+suffix)) > 0 {
		return "event" + suffix
	}
	return object + suffix
}

// report logs what was dropped since it was called last.
func (r *EventRecorder) report(ctx context.Context) {
	lines := map[string]drops{}
	r.mu.Lock()
	for reason, d := range r.dropped {
		if d.total > d.logged {
			lines[reason] = d
			r.dropped[reason] = drops{total: d.total, logged: d.total}
		}
	}
	r.mu.Unlock()
	for reason, d := range lines {
		klog.FromContext(ctx).Error(d.err, "Dropped events", "recorder", r.Controller, "reason", reason, "dropped", d.total-d.logged, "droppedInAll", d.total)
	}
}

// cut is s as valid text of at most size bytes.
func cut(s string, size int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= size {
		return s
	}
	for !utf8.RuneStart(s[size]) {
		size--
	}
	return strings.Clone(s[:size]) // not to hold on to the rest
}
