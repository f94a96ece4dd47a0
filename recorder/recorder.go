package recorder

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
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

	"github.com/controllerkit/controllerkit/internal/kube"
)

// Client is the part of the events.k8s.io/v1 client of one namespace that a [Recorder]
// calls. The typed client has it. Its role needs create and patch on events of the group
// events.k8s.io.
type Client interface {
	Create(ctx context.Context, event *eventsv1.Event, opts metav1.CreateOptions) (*eventsv1.Event, error)
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*eventsv1.Event, error)
}

// Recorder writes Events about objects. Set Client and Controller, start Run with the
// controllers of the process, and stop it after them.
//
// Two Events are equal if they have the same regarding, related, type, reason, action and
// note. A write that may succeed later (429, 5xx, Conflict, timeout, no response) is
// tried up to 10 times within about 3 minutes: after 1s, then after twice the previous
// delay up to 30s, or after Retry-After, up to 1 minute. A request ends after 10s.
//
// The fields must not change after first use, and a Recorder must not be copied. Its
// methods may be called concurrently. A nil *Recorder drops every Event, so that a
// test of a reconcile function needs no Recorder.
type Recorder struct {
	// Client returns the client of a namespace. Required.
	Client func(namespace string) Client

	// Controller is the reportingController of the Events: a qualified name, such as
	// example.com/widgets. Required.
	Controller string

	// Instance is the reportingInstance of the Events, such as the name of the Pod. It is
	// cut at 128 bytes. "" means Controller.
	Instance string

	// Interval is the least time between two writes of one series, except retries. 0
	// means 1 minute.
	Interval time.Duration

	// MaxSeries is the number of series that can wait to be written. If one more comes, an
	// Event of the namespace that has most of them is dropped. The Recorder also remembers that many written series, and the budgets
	// of that many objects, the most recently used. 0 means 1024.
	MaxSeries int

	// QPS is the limit of requests a second, after a burst of ten times QPS. Run sends
	// one request at a time. 0 means 20.
	QPS float64

	// StopTimeout bounds how long Run continues to write held Events after its context is
	// done. 0 means 5s.
	StopTimeout time.Duration

	// Metrics receives the outcome of each call of Event. nil disables it.
	Metrics Metrics

	running atomic.Bool // Run is running

	mu                    sync.Mutex            // guards the fields below and every series
	wake                  chan struct{}         // has an element if the writer must check held; nil before first use
	lost                  chan struct{}         // has an element if the reporter must check dropped
	held                  map[seriesKey]*series // with unwritten calls
	heldIn                map[string]int        // the number of held by the namespace of regarding
	idle                  *lru.Cache            // *series by seriesKey, without unwritten calls
	objects               *lru.Cache            // *rate.Limiter by corev1.ObjectReference
	written, deduplicated uint64
	dropped               map[string]drops // by reason
}

// Metrics receives the counts of a [Recorder]. EventsRecorded is called each time that n calls
// of [Recorder.Event], at least one, have got their outcome: written, deduplicated, or a reason
// of Dropped in [Counts]. A call gets one outcome, when its Event is written or dropped. The
// Recorder holds a lock meanwhile: EventsRecorded must not block or call the Recorder.
type Metrics interface {
	EventsRecorded(outcome string, n int)
}

// Counts has the number of calls of [Recorder.Event] by outcome. Each call is counted
// once, so that the sum is the number of calls.
type Counts struct {
	Written      uint64 // became an Event
	Deduplicated uint64 // were added to the series of a written Event
	Held         uint64 // wait to be written

	// Dropped were lost, by reason. A write that timed out may have succeeded.
	//
	//	full       MaxSeries series waited to be written, of its namespace as many as of any other
	//	limited    the object's budget was used up
	//	invalid    no kind or name of the object, no reason or action, or a type other than Normal and Warning
	//	gone       the namespace does not exist or is being deleted
	//	forbidden  a role is missing
	//	rejected   the API server rejected it for another reason
	//	failed     every retry failed, or the one try while Run stopped
	//	stopped    Run ended before it was written
	Dropped map[string]uint64
}

const (
	defaultInterval    = time.Minute
	defaultMaxSeries   = 1024
	defaultQPS         = 20
	defaultStopTimeout = 5 * time.Second

	requestTimeout = 10 * time.Second
	seriesEnd      = 10 // Intervals without a repetition
	maxTries       = 10
	logInterval    = time.Minute // between two lines about drops of one reason
	logDelay       = time.Second // from a drop to its line, which counts the drops of a burst

	objectBurst  = 25
	objectRefill = 5 * time.Minute

	maxNote  = 1024    // bytes, as in the API server's validation
	maxText  = 4 << 10 // bytes, of a value in the log
	maxField = 128
)

// seriesKey has the fields by which two Events are equal. Its references have no
// resourceVersion.
type seriesKey struct {
	regarding, related              corev1.ObjectReference
	eventType, reason, action, note string
}

// series counts the calls with one key, and how many of them are written.
type series struct {
	key           seriesKey
	name          string // of the Event; "" before the first try to create it
	first, last   time.Time
	seen, written int64 // seen > written: there is something to write
	created       bool
	due           time.Time // of the next try; the series with the earliest comes first
	tries         int       // failed tries in a row
	sending       bool      // a request is under way
}

// drops counts the calls that were dropped for one reason.
type drops struct {
	total, logged uint64
	first         time.Time // drop without a line
	last          time.Time // line
	stop          bool      // Run dropped some without a line while it stopped
	regarding     corev1.ObjectReference
	err           error // of the last drop, as regarding
}

// Reference returns the reference of an Event to obj, an object of the kind; typed objects
// do not carry their kind. If obj is nil or a nil pointer, it returns the zero reference.
func Reference(obj metav1.Object, kind schema.GroupVersionKind) corev1.ObjectReference {
	if kube.IsNil(obj) {
		return corev1.ObjectReference{}
	}
	return corev1.ObjectReference{
		APIVersion: kind.GroupVersion().String(), Kind: kind.Kind,
		Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: obj.GetUID(),
	}
}

// Event records an action on the object regarding. eventType is [corev1.EventTypeNormal]
// or [corev1.EventTypeWarning]; reason and action are words in CamelCase, which the API
// requires; note is a text for people. related is a second object, such as a created one;
// the zero reference means none. See [Reference]. regarding needs a kind and a name: without
// them no reader finds the Event. The Event is written in the namespace of regarding, or in default.
//
// Event never blocks and returns no error: it drops and counts an Event that it cannot
// record. It can be called before Run. A note is cut at 1024 bytes, a reason and an action
// at 128. Invalid UTF-8 is replaced. If each note is different, because it contains a time,
// for example, the Events make no series and use up the object's budget. The resource
// versions of the references are not recorded.
func (r *Recorder) Event(regarding, related corev1.ObjectReference, eventType, reason, action, note string) {
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
			r.dropLocked(refused, key.regarding, 1, nil, false)
			return
		}
		r.holdLocked(s)
		select {
		case r.wake <- struct{}{}:
		default: // the writer is going to check held
		}
	}
	if s.seen == 0 {
		s.first = now
	}
	s.last = now
	s.seen++
}

func (r *Recorder) initLocked() {
	if r.wake == nil {
		r.wake, r.lost = make(chan struct{}, 1), make(chan struct{}, 1)
		r.held, r.heldIn = map[seriesKey]*series{}, map[string]int{}
		r.idle, r.objects = lru.New(r.maxSeries()), lru.New(r.maxSeries())
		r.dropped = map[string]drops{}
	}
}

func (r *Recorder) interval() time.Duration { return cmp.Or(r.Interval, defaultInterval) }

func (r *Recorder) maxSeries() int { return cmp.Or(r.MaxSeries, defaultMaxSeries) }

// seriesLocked returns the series of key to be held, or the reason to drop the call.
func (r *Recorder) seriesLocked(key seriesKey, now time.Time) (s *series, refused string) {
	if key.regarding.Kind == "" || key.regarding.Name == "" || key.reason == "" || key.action == "" ||
		key.eventType != corev1.EventTypeNormal && key.eventType != corev1.EventTypeWarning {
		return nil, "invalid"
	}
	if len(r.held) >= r.maxSeries() && r.victimLocked(key.regarding.Namespace) == nil {
		return nil, "full"
	}
	if value, ok := r.idle.Get(key); ok {
		r.idle.Remove(key)
		if s := value.(*series); now.Sub(s.last) <= seriesEnd*min(r.interval(), math.MaxInt64/seriesEnd) {
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

// holdLocked adds s to held. If held is full, it drops the victim.
func (r *Recorder) holdLocked(s *series) {
	namespace := s.key.regarding.Namespace
	if len(r.held) >= r.maxSeries() {
		victim := r.victimLocked(namespace)
		r.dropLocked("full", victim.key.regarding, victim.seen-victim.written, nil, false)
		r.releaseLocked(victim)
		victim.seen, victim.tries = victim.written, 0
		if victim.created {
			r.idle.Add(victim.key, victim)
		}
	}
	r.held[s.key] = s
	r.heldIn[namespace]++
}

// releaseLocked removes s from held.
func (r *Recorder) releaseLocked(s *series) {
	namespace := s.key.regarding.Namespace
	delete(r.held, s.key)
	if r.heldIn[namespace]--; r.heldIn[namespace] == 0 {
		delete(r.heldIn, namespace)
	}
}

// victimLocked returns the series that gives its place to one of the namespace: the newest of the namespace with the
// most, if that has two more. One that was never sent goes first. No request for it is under way. It is nil if there is none.
func (r *Recorder) victimLocked(namespace string) (victim *series) {
	most := ""
	for other, n := range r.heldIn {
		if n > r.heldIn[most] || n == r.heldIn[most] && other < most {
			most = other
		}
	}
	if r.heldIn[most] < r.heldIn[namespace]+2 {
		return nil
	}
	for _, s := range r.held {
		if s.key.regarding.Namespace != most || s.sending {
			continue
		}
		if tried := s.name != ""; victim == nil || tried == (victim.name != "") && s.first.After(victim.first) || !tried && victim.name != "" {
			victim = s
		}
	}
	return victim
}

// dropLocked counts n dropped calls. stop means that Run dropped them while it stopped.
func (r *Recorder) dropLocked(reason string, regarding corev1.ObjectReference, n int64, err error, stop bool) {
	if err == nil {
		err = cause(reason)
	}
	d := r.dropped[reason]
	if d.total == d.logged {
		d.first = time.Now()
	}
	d.total += uint64(n)
	d.regarding, d.err, d.stop = regarding, err, d.stop || stop
	r.dropped[reason] = d
	r.countLocked(reason, n)
	select {
	case r.lost <- struct{}{}:
	default: // the reporter is going to check dropped
	}
}

func (r *Recorder) countLocked(outcome string, n int64) {
	if n > 0 && !kube.IsNil(r.Metrics) {
		r.Metrics.EventsRecorded(outcome, int(n))
	}
}

// Counts returns the number of calls of Event so far, by outcome.
func (r *Recorder) Counts() Counts {
	if r == nil {
		return Counts{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := Counts{Written: r.written, Deduplicated: r.deduplicated, Dropped: map[string]uint64{}}
	for _, s := range r.held {
		counts.Held += uint64(s.seen - s.written)
	}
	for reason, d := range r.dropped {
		counts.Dropped[reason] = d.total
	}
	return counts
}

// Run writes the recorded Events until ctx is done. Then it tries each held Event once,
// within StopTimeout, drops the rest, and returns nil when all its goroutines have ended.
// If Run cannot start, it returns an error.
//
// Only one Run can be active. After it returned, Run can be called again. It then writes
// the Events that were recorded in between; a series goes on, at most once per Interval.
// Run of a nil Recorder waits for ctx.
func (r *Recorder) Run(ctx context.Context) error {
	if r == nil {
		<-ctx.Done()
		return nil
	}
	if err := r.validate(); err != nil {
		return err
	}
	if !r.running.CompareAndSwap(false, true) {
		return fmt.Errorf("recorder: Recorder %q: Run is already running: wait for it to return, or use another Recorder", r.Controller)
	}
	defer r.running.Store(false)
	r.mu.Lock()
	r.initLocked()
	r.mu.Unlock()
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var stopper sync.WaitGroup
	stopper.Go(func() { // ends a request that hangs when ctx is done
		<-ctx.Done()
		select {
		case <-time.After(cmp.Or(r.StopTimeout, defaultStopTimeout)):
			cancel()
		case <-requests.Done():
		}
	})
	var reporter sync.WaitGroup
	stopped := make(chan struct{})
	reporter.Go(func() { r.reports(ctx, stopped) })
	r.work(ctx, requests)
	cancel()
	stopper.Wait()

	r.mu.Lock()
	for _, s := range r.held {
		r.dropLocked("stopped", s.key.regarding, s.seen-s.written, nil, true)
	}
	clear(r.held)
	clear(r.heldIn)
	r.mu.Unlock()
	close(stopped)
	reporter.Wait()
	return nil
}

// validate returns one error that names each invalid field.
func (r *Recorder) validate() error {
	var errs []error
	check := func(ok bool, field, cure string) {
		if !ok {
			errs = append(errs, fmt.Errorf("recorder: Recorder.%s", field+" "+cure))
		}
	}
	check(r.Client != nil, "Client", "is nil: set it to a function that returns the client of a namespace")
	check(len(validation.IsQualifiedName(r.Controller)) == 0, "Controller", fmt.Sprintf("is %q: set it to a qualified name such as example.com/widgets", r.Controller))
	check(r.Interval >= 0, "Interval", fmt.Sprintf("is %v: set it to a positive duration, or to 0 for %v", r.Interval, defaultInterval))
	check(r.MaxSeries >= 0, "MaxSeries", fmt.Sprintf("is %d: set it to 1 or more, or 0 for %d", r.MaxSeries, defaultMaxSeries))
	check(r.QPS >= 0, "QPS", fmt.Sprintf("is %v: set it to more than 0, or 0 for %d", r.QPS, defaultQPS))
	check(r.StopTimeout >= 0, "StopTimeout", fmt.Sprintf("is %v: set it to more than 0, or 0 for %v", r.StopTimeout, defaultStopTimeout))
	return errors.Join(errs...)
}

// work is the only writer. It drains when ctx is done, and returns when requests is done.
func (r *Recorder) work(ctx, requests context.Context) {
	qps := cmp.Or(r.QPS, defaultQPS)
	limiter := rate.NewLimiter(rate.Limit(qps), int(min(max(1, 10*qps), math.MaxInt32)))
	draining := false
	for requests.Err() == nil {
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

// next returns the series that is due first, and the time until then, or an hour if there
// is none. With hurry, every series is due. It visits all series, but not more often than
// there are requests and new series.
func (r *Recorder) next(hurry bool) (first *series, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wait = time.Hour
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

// write sends one request for s, and updates s by its outcome.
func (r *Recorder) write(requests context.Context, s *series, draining bool) {
	r.mu.Lock()
	if r.held[s.key] != s { // it gave its place to another
		r.mu.Unlock()
		return
	}
	event, sent, created := r.eventLocked(s), s.seen, s.created
	s.sending = true
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(requests, requestTimeout)
	defer cancel()
	client := r.Client(event.Namespace)
	var err error
	if created {
		series, _ := json.Marshal(event.Series) // the whole series, so that the patch is idempotent
		_, err = client.Patch(ctx, event.Name, types.MergePatchType, fmt.Appendf(nil, `{"series":%s}`, series), metav1.PatchOptions{})
	} else {
		_, err = client.Create(ctx, event, metav1.CreateOptions{})
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	s.sending = false
	s.tries++
	s.due = time.Now().Add(r.interval())
	retry := s.tries < maxTries
	switch {
	case err == nil:
		repeated := sent - s.written
		if s.written == 0 {
			r.written++
			repeated--
			r.countLocked("written", 1)
		}
		r.deduplicated += uint64(repeated)
		r.countLocked("deduplicated", repeated)
		s.written, s.created = sent, true
	case requests.Err() != nil:
		return // Run drops it
	case retry && (created && apierrors.IsNotFound(err) || !created && apierrors.IsAlreadyExists(err)):
		// The Event expired. Or it exists: its name is random, so an earlier try
		// succeeded and its response was lost.
		s.created, s.due = !created, time.Time{}
		return
	default:
		reason, delay := verdict(err, s.tries)
		if retry && delay > 0 && !draining {
			s.due = time.Now().Add(delay)
			return
		}
		r.dropLocked(reason, s.key.regarding, sent-s.written, err, draining)
		s.seen -= sent - s.written
		if !created {
			s.name, s.first = "", s.last // a create that failed may have succeeded
		}
	}
	s.tries = 0
	if s.seen == s.written {
		r.releaseLocked(s)
		r.idle.Add(s.key, s)
	}
}

// verdict returns the reason to drop a series whose write failed with err, tries times in
// a row, and the delay after which to retry it instead; 0 means no retry.
func verdict(err error, tries int) (reason string, delay time.Duration) {
	var status apierrors.APIStatus
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsNotFound(err):
		return "gone", 0
	case apierrors.IsForbidden(err) && !kube.IsDenied(err):
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

// eventLocked returns the Event of s as it should be now.
func (r *Recorder) eventLocked(s *series) *eventsv1.Event {
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

// eventName returns a name that no other Event has. It begins with the object's name if
// the result is valid.
func eventName(object string) string {
	suffix := fmt.Sprintf(".%016x", rand.Uint64())
	if len(validation.IsDNS1123Subdomain(object+suffix)) > 0 {
		return "event" + suffix
	}
	return object + suffix
}

// reports logs the drops until stopped is closed.
func (r *Recorder) reports(ctx context.Context, stopped <-chan struct{}) {
	for {
		var due <-chan time.Time
		if wait := r.report(ctx, false); wait > 0 {
			due = time.After(wait)
		}
		select {
		case <-r.lost:
		case <-due:
		case <-stopped:
			r.report(ctx, true)
			return
		}
	}
}

// report logs a line for each reason with drops: logDelay after the first of them, and
// logInterval after the previous line. It returns the time until the next line is due; 0
// means never. At the end, a reason gets a line at once, unless it had one within
// logInterval and Run dropped nothing for it while it stopped.
func (r *Recorder) report(ctx context.Context, end bool) (wait time.Duration) {
	lines := map[string]drops{}
	r.mu.Lock()
	now := time.Now()
	for reason, d := range r.dropped {
		if d.total == d.logged {
			continue
		}
		left := d.last.Add(logInterval).Sub(now)
		if end && d.stop {
			left = 0
		} else if !end {
			left = max(left, d.first.Add(logDelay).Sub(now))
		}
		if left > 0 {
			if wait == 0 || left < wait {
				wait = left
			}
			continue
		}
		lines[reason] = d
		d.logged, d.last, d.stop = d.total, now, false
		r.dropped[reason] = d
	}
	r.mu.Unlock()
	for reason, d := range lines {
		klog.FromContext(ctx).Info("Dropped Events", "recorder", r.Controller, "reason", reason,
			"dropped", d.total-d.logged, "droppedInAll", d.total, "regarding", printable(d.regarding), "err", kube.PrintableError(d.err, maxText))
	}
	return wait
}

// printable returns the kind, namespace and name of a reference for the log.
func printable(o corev1.ObjectReference) string {
	return kube.Printable(fmt.Sprintf("%s %s/%s", o.Kind, o.Namespace, o.Name), maxText)
}

// cause returns the error of a drop without a request.
func cause(reason string) error {
	switch reason {
	case "full":
		return errors.New("recorder: MaxSeries Events wait to be written, of this namespace as many as of any other: set MaxSeries or QPS to more")
	case "limited":
		return errors.New("recorder: the object used up its budget of different Events: leave out of a note what differs each time")
	case "invalid":
		return errors.New("recorder: an Event is not valid: set the kind and name of the object, the type Normal or Warning, a reason and an action")
	}
	return errors.New("recorder: Run ended before they were written: give it a longer StopTimeout, or look for slow requests")
}

// cut returns s as valid UTF-8 of at most size bytes.
func cut(s string, size int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= size {
		return s
	}
	for !utf8.RuneStart(s[size]) {
		size--
	}
	return strings.Clone(s[:size]) // without the memory of the rest
}
