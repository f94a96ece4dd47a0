package controllertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/controllertest/internal/kubeconfig"
)

// A run is one execution of the script, under one plan.
type run struct {
	x     *explorer
	id    string // the number of the run; labels its goroutines
	plan  plan
	ref   *reference // nil in the runs without faults
	env   Env        // the user's
	user  *fault.Incarnation
	world *world // nil without Scenario.World

	wg       sync.WaitGroup // restarts, ends of faults, the user of the plan
	external sync.Mutex     // one external call at a time

	mu         sync.Mutex
	began      time.Time
	over       bool
	life       []*incarnation // the present ones, by replica
	past       []*incarnation
	former     bool          // the next processes are of Scenario.From
	alone      bool          // Scenario.From does not run
	worked     chan struct{} // is closed by the next operation; nil without an upgrade
	taken      int           // the events before the last step of an upgrade
	restarts   int
	pending    int           // running faults, steps and users
	underway   int           // running writes and calls of the controller
	lastEvent  time.Time     // the time of the last event
	lastFault  time.Time     // when a step or a fault last began or ended, or the user last wrote
	late       lateness      // of the observer, since then
	slow       slowness      // of the API server, since then
	stalled    time.Duration // stalls until then
	repeated   time.Time     // when client-go has repeated the request of CommitThen503, at the latest
	repeats    string        // the signature of that request
	changed    chan struct{}
	asked      bool // the controller has made a request
	step       int
	acted      int                       // the step of the user's last write
	did        int                       // steps that the user has done
	hurried    int                       // the last step that begins early
	soon       bool                      // the plan does not fit the scenario
	next       int                       // the next fault of the plan
	expired    map[string]uint64         // by resource: older versions cannot be watched from
	old        map[string]string         // operation → resource version right before it, for time travel
	counts     map[string]int            // by signature, since the last fault
	generated  map[string]string         // name → masked name
	ids        map[string]string         // names of resources by the id that the cloud chose
	uids       map[types.UID]objectKey   // of all objects that were seen
	versions   map[string]map[string]any // objects by resource version
	responses  map[string]bool           // the resource versions of the run's own writes
	touched    map[objectKey]bool        // the objects of byCluster that a client of the run writes
	bound      map[objectKey]bool        // the objects of its writes whose response has no version, such as a binding of a Pod
	present    map[objectKey]*unstructured.Unstructured
	history    []event
	gaps       []gap                                    // in the history
	owned      map[objectKey]*unstructured.Unstructured // created and not deleted by the user
	wrote      map[objectKey]*unstructured.Unstructured // as the user would create it again
	edited     map[objectKey]types.UID                  // by the plan's user
	unwanted   map[objectKey]bool                       // deleted by the script
	made       map[objectKey]map[string]any             // created by the controller: the body of the request
	drifted    []string                                 // changes of made objects that are not restored yet
	outages    []*failing                               // that have not ended
	useless    bool                                     // the outcome does not depend on the controller
	why        string                                   // useless
	lost       string                                   // a request of the user in this step that the API server did not serve
	overlooked string                                   // why the API server has broken a promise of its own
	unanswered map[*fault.Op]bool                       // the user's requests; false after the response
	wrotes     int                                      // writes of the controller and the World since the last fault or step
	differs    bool                                     // from the runs without faults, after some step
	writes     []string                                 // the controller's last ones, to name a loop
	lastWrite  time.Time                                // of the controller or the user
	timeline   []moment
	trace      []operation
	findings   []Finding
	accepted   []string // the reasons of Scenario.Accept
	rests      []checkpoint
}

// A moment is a line of the timeline.
type moment struct {
	at   time.Duration
	text string
}

// An event is a change of the state, in the order of revisions.
type event struct {
	revision uint64
	key      objectKey
	kind     watch.EventType
	object   *unstructured.Unstructured
	cloud    []cloud.Resource // its new state; if object is nil
}

// A checkpoint is the state at rest after a step.
type checkpoint struct {
	step  string
	state map[string]any // normalized, flat

	repeats bool // a call waits to repeat its request
	hurried bool // the next step has begun before rest, so there is no state

	made []string // the objects in it that the controller has created
}

// teardown is the last step.
const teardown = "the user deletes the created objects"

// execute runs the whole script.
func (r *run) execute(ctx context.Context) {
	defer r.stop()
	if err := r.startWorld(); err != nil {
		r.x.abort(err)
		return
	}
	r.alone = r.x.warming
	r.former = r.x.scenario.From != nil && !r.alone
	for replica := range max(1, r.x.scenario.Replicas) {
		r.launch(replica)
	}
	for n, step := range r.x.scenario.Script {
		do := func(ctx context.Context) error { return step.Do(ctx, r.user.Config(), &r.env) }
		if r.x.upgrades(n) && !r.alone {
			do = func(context.Context) error { r.upgrade(n); return nil }
		}
		if !r.play(ctx, n, step.Name, do) {
			return
		}
	}
	r.mu.Lock()
	left := slices.SortedFunc(maps.Keys(r.owned), func(a, b objectKey) int { return strings.Compare(b.String(), a.String()) })
	for _, key := range left {
		r.unwanted[key] = true
	}
	r.mu.Unlock()
	// Without an object of the user it rests once more, and the end state has one to compare with.
	if len(left) > 0 || r.ref != nil && len(r.ref.rests) > len(r.x.scenario.Script) {
		r.play(ctx, len(r.x.scenario.Script), teardown, func(ctx context.Context) error {
			for _, key := range left {
				if err := r.deleteAsUser(ctx, key); err != nil && !apierrors.IsNotFound(err) {
					return err
				}
			}
			return nil
		})
	}
}

func (r *run) stepNameLocked() string {
	if r.step < len(r.x.scenario.Script) {
		return r.x.scenario.Script[r.step].Name
	}
	return teardown
}

// play does a step and waits until the cluster rests. It reports whether to go on.
func (r *run) play(ctx context.Context, n int, name string, do func(context.Context) error) bool {
	r.mu.Lock()
	r.step = n
	early := r.hurried >= n && n > 0
	r.mu.Unlock()
	r.note("user: %s", name)
	began := time.Now()
	end := r.begin()
	r.mu.Lock()
	r.lost = ""
	r.mu.Unlock()
	err := r.inTime(ctx, do)
	why, hindered := "", false
	if err != nil {
		why, hindered = r.hindered(err, began)
	}
	r.mu.Lock()
	r.did = n + 1
	r.mu.Unlock()
	end()
	if r.tooSoon(n, early, err) {
		r.note("user: %s: %v", name, err)
		r.mu.Lock()
		r.useless, r.soon = true, true
		r.mu.Unlock()
		return false
	}
	if hindered {
		r.doubt("step %q: %s", name, why)
		return false
	}
	if apierrors.IsNotFound(err) && r.plan.has(UserRecreate) {
		r.doubt("step %q needed an object that the user of the plan was about to create again: %v", name, err)
		return false
	}
	if errors.Is(err, errLate) && (r.plan.has(UserDelete) || r.plan.has(DriftDelete) || r.plan.has(DriftEdit)) {
		r.doubt("step %q may have waited for what the user of the plan took away: %v", name, err)
		return false
	}
	if err != nil && !(r.plan.has(UserDelete) && apierrors.IsNotFound(err)) {
		r.find(Health, "step %q: %v", name, err)
		return false
	}
	state, findings, over := r.settle(ctx)
	if _, doubtful := r.doubtful(); doubtful && state == nil && len(findings) == 0 {
		return false
	}
	for _, f := range findings {
		r.add(f)
	}
	if over || len(findings) > 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if state == nil {
		r.rests = append(r.rests, checkpoint{step: name, hurried: true})
		return true
	}
	for key, uid := range r.edited {
		if obj := state.objects[key]; obj != nil && obj.GetUID() == uid && obj.GetAnnotations()[editAnnotation] == "" {
			r.findings = append(r.findings, Finding{
				Oracle: EndState, Object: r.maskedKeyLocked(key), Field: ".metadata.annotations",
				Text: fmt.Sprintf("the annotation of the plan's user on %s is lost: a write has removed it", key),
			})
		}
	}
	r.rests = append(r.rests, checkpoint{step: name, state: r.normalizeLocked(state), repeats: r.repeatsLocked(), made: r.madeInLocked(state)})
	if r.x.upgrades(n) && !r.alone {
		for _, f := range r.judgeUpgradeLocked() {
			r.addLocked(f)
		}
	}
	if r.x.watched == nil && len(r.plan) == 0 && !r.former {
		r.x.watched = map[string]int{} // the first run, without others in parallel
		for _, i := range r.life {
			for resource, n := range i.Watches() {
				r.x.watched[resource] += n
			}
		}
	}
	return true
}

// errLate is the error of a step that waits for longer than a cluster may take to converge.
var errLate = errors.New("it was not over in time")

// inTime does a step whose context ends at the deadline.
func (r *run) inTime(ctx context.Context, do func(context.Context) error) error {
	bounded, end := context.WithCancelCause(ctx)
	defer end(nil)
	r.goes(func() {
		for left := time.Until(r.deadline()); left > 0; left = time.Until(r.deadline()) {
			if sleep(bounded, nil, left) != nil {
				return
			}
		}
		end(errLate)
	})
	err := do(bounded)
	if err != nil && errors.Is(context.Cause(bounded), errLate) {
		// The end differs from run to run, and a finding is about its first 100 letters.
		return fmt.Errorf("%w, %v after its begin, its last write and the last fault: mend the controller if the step waits for it, or set a longer Options.ConvergeTimeout: %v", errLate, r.x.options.ConvergeTimeout, err) //nolint:errorlint // a canceled context would mean the end of the exploration
	}
	return err
}

// note adds a line to the timeline.
func (r *run) note(format string, args ...any) {
	r.mu.Lock()
	r.noteLocked(format, args...)
	r.mu.Unlock()
}

func (r *run) noteLocked(format string, args ...any) {
	r.timeline = append(r.timeline, moment{time.Since(r.began), fmt.Sprintf(format, args...)})
}

func (r *run) failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.findings) > 0
}

// found returns the findings.
func (r *run) found() []Finding {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.findings)
}

// broke reports whether the run has findings, all of the oracle.
func (r *run) broke(oracle Oracle) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.findings) > 0 && !slices.ContainsFunc(r.findings, func(f Finding) bool { return f.Oracle != oracle })
}

// fired returns the number of faults that have happened.
func (r *run) fired() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.useless {
		return -1
	}
	return r.next
}

// find adds a finding that is about its first line.
func (r *run) find(oracle Oracle, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.add(Finding{Oracle: oracle, Field: headline(text), Text: text})
}

func (r *run) add(f Finding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addLocked(f)
}

func (r *run) addLocked(f Finding) {
	f.Field = cut(r.maskLocked(f.Field), 100)
	r.findings = append(r.findings, f)
	r.noteLocked("FINDING %s: %s", f.Oracle, f.Text)
}

// headline returns the first line of a text.
func headline(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return cut(line, 1000)
}

// cut returns the first runes of a text.
func cut(text string, runes int) string {
	for n := range text {
		if runes--; runes < 0 {
			return text[:n]
		}
	}
	return text
}

// miss stores that the events of a gap are unknown.
func (r *run) miss(g gap) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gaps = append(r.gaps, g)
	r.noteLocked("  the kit's watch of %s was interrupted: its events after version %d are unknown, up to a list at %d", g.resource, g.after, g.end)
	r.late.listed(func(uid types.UID) bool { return r.uids[uid].resource == g.resource }, g.end, time.Now())
	r.touchLocked()
}

// observe stores an event of the observer.
func (r *run) observe(resource string, kind watch.EventType, obj *unstructured.Unstructured) {
	r.observeAt(resource, kind, obj, revision(obj))
}

// observeAt stores an event of the observer that is of a revision.
func (r *run) observeAt(resource string, kind watch.EventType, obj *unstructured.Unstructured, at uint64) {
	key := objectKey{resource, obj.GetNamespace(), obj.GetName()}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.learnLocked(key, obj)
	if kind == watch.Deleted {
		if have := r.present[key]; have != nil && have.GetUID() == obj.GetUID() {
			delete(r.present, key)
		}
	} else {
		r.present[key] = obj
	}
	r.late.observed(obj.GetUID(), revision(obj), kind, time.Now())
	if r.rubbishLocked(key) {
		r.touchLocked() // the state at rest contains it
		return
	}
	r.history = append(r.history, event{revision: at, key: key, kind: kind, object: obj})
	r.noteLocked("  event: %s %s (version %d)", strings.ToLower(string(kind)), key, at)
	if kind == watch.Deleted && len(obj.GetFinalizers()) > 0 && obj.GetDeletionTimestamp() == nil {
		r.overlooked = fmt.Sprintf("the API server deleted %s although it had a finalizer: a DELETE overlooks one that is added while it is in progress (kubernetes#77988, docs/finalizers.md)", key)
	}
	r.touchLocked()
}

// byCluster reports whether a cluster creates the object in every namespace.
func byCluster(key objectKey) bool {
	return key.resource == "configmaps" && key.name == "kube-root-ca.crt" || key.resource == "serviceaccounts" && key.name == "default"
}

// rubbishLocked reports whether a cluster creates the object in every namespace, and no client of
// the run has written it.
func (r *run) rubbishLocked(key objectKey) bool { return byCluster(key) && !r.touched[key] }

// learnLocked stores the names of an object.
func (r *run) learnLocked(key objectKey, obj *unstructured.Unstructured) {
	// A controller may set both, as the controller of StatefulSets does: db-0 is no generated name.
	prefix := obj.GetGenerateName()
	if prefix = prefix[:min(len(prefix), maxGenerateName)]; prefix != "" && strings.HasPrefix(obj.GetName(), prefix) && generatedSuffix.MatchString(obj.GetName()[len(prefix):]) {
		r.generated[obj.GetName()] = prefix + "*"
	}
	if uid := obj.GetUID(); uid != "" {
		r.uids[uid] = key
	}
	if version := obj.GetResourceVersion(); version != "" {
		r.versions[version] = obj.Object
	}
}

// maxGenerateName is the number of bytes of metadata.generateName that the API server uses.
const maxGenerateName = 58

// generatedSuffix matches what the API server adds to metadata.generateName.
var generatedSuffix = regexp.MustCompile(`^[bcdfghjklmnpqrstvwxz2456789]{5}$`)

// responded stores the response to a request of the controller or the user.
func (r *run) responded(op *fault.Op, status int, body []byte) {
	if op.Verb == "watch" {
		r.mu.Lock()
		r.touchLocked()
		r.mu.Unlock()
		return
	}
	if !op.IsWrite() {
		return
	}
	r.x.observer.answered(r, op, status)
	if status < 200 || status > 299 {
		return
	}
	var obj unstructured.Unstructured
	if json.Unmarshal(body, &obj.Object) != nil {
		return
	}
	if obj.GetKind() == "Status" {
		if op.Subresource != "" {
			r.mu.Lock()
			r.bound[objectKey{op.Resource, op.Namespace, op.Name}] = true
			r.mu.Unlock()
		}
		return
	}
	key := objectKey{op.Resource, obj.GetNamespace(), obj.GetName()}
	mine := r.x.observer.isMine(op.Resource, &obj, status == http.StatusCreated)
	r.mu.Lock()
	r.responses[obj.GetResourceVersion()] = true
	if mine {
		r.learnLocked(key, &obj)
	}
	listed := slices.ContainsFunc(r.gaps, func(g gap) bool { return g.resource == op.Resource && revision(&obj) <= g.end })
	if mine && !listed && !unobserved(op.Resource) {
		r.late.responded(obj.GetUID(), revision(&obj), time.Now())
	}
	r.mu.Unlock()
}

// stop kills the processes and waits for their end.
func (r *run) stop() {
	r.mu.Lock()
	r.over = true
	life := append(slices.Clone(r.past), r.life...) // of past, a former version can be alive
	r.mu.Unlock()
	for _, i := range life {
		i.die()
	}
	r.user.Kill()
	r.wg.Wait()
	r.mu.Lock()
	all := append(slices.Clone(r.past), r.life...)
	r.mu.Unlock()
	for _, i := range all {
		i.await()
	}
	if r.world != nil {
		r.world.stop()
	}
	r.env.kubeconfig.Close()
}

// newRun makes a run and its namespace.
func (x *explorer) newRun(ctx context.Context, p plan, ref *reference) (*run, error) {
	n := x.runs.Add(1)
	r := &run{
		x: x, id: fmt.Sprintf("%s-%d", x.prefix, n), plan: slices.Clone(p), ref: ref, changed: make(chan struct{}), began: time.Now(), lastEvent: time.Now(), lastFault: time.Now(), late: newLateness(), slow: newSlowness(), stalled: x.stalls.Sum(),
		unwanted: map[objectKey]bool{}, edited: map[objectKey]types.UID{}, expired: map[string]uint64{}, old: map[string]string{}, counts: map[string]int{}, generated: map[string]string{}, ids: map[string]string{}, uids: map[types.UID]objectKey{},
		versions: map[string]map[string]any{}, responses: map[string]bool{}, bound: map[objectKey]bool{}, touched: map[objectKey]bool{}, unanswered: map[*fault.Op]bool{}, present: map[objectKey]*unstructured.Unstructured{}, made: map[objectKey]map[string]any{}, wrote: map[objectKey]*unstructured.Unstructured{}, owned: map[objectKey]*unstructured.Unstructured{},
	}
	r.env = Env{Namespace: r.id, Cloud: cloud.New(x.scenario.Cloud).Through(func(ctx context.Context, _ string, call func(context.Context) error) error {
		return r.serve(ctx, call)
	})}
	var err error
	r.user, err = fault.New(x.config, func(op *fault.Op) fault.Fault {
		r.mu.Lock()
		defer r.mu.Unlock()
		if op.IsWrite() {
			r.lastWrite = time.Now()
			r.observesLocked(op)
			r.noteLocked("user: %s", r.signatureLocked(op))
			r.asksLocked(op)
		}
		r.touchLocked()
		return fault.Fault{Finally: r.userAsksLocked(op)}
	}, func(op *fault.Op, status int, body []byte) {
		r.userGot(op, status)
		r.asUser(op, status, body)
	})
	if err != nil {
		return nil, err
	}
	r.env.kubeconfig = &kubeconfig.File{Through: r.user, Namespace: r.id}
	x.observer.add(r)
	ns, err := x.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.id}}, metav1.CreateOptions{})
	if err != nil {
		x.observer.remove(r)
		return nil, fmt.Errorf("create a namespace: %w", err)
	}
	r.old["start"] = ns.ResourceVersion
	return r, nil
}

// own returns a configuration whose lists and watches lack the objects of other runs.
func (r *run) own() *rest.Config {
	config := rest.CopyConfig(r.x.config)
	config.Wrap(withoutOthers(r.x.observer.mayBeOthers, r.x.observer.other(r.id)))
	return config
}

// observesLocked starts the watch of a written resource.
func (r *run) observesLocked(op *fault.Op) {
	group, name := "", op.Resource
	if plural, g, ok := strings.Cut(op.Resource, "."); ok {
		name, group = plural, g
	}
	if key := (objectKey{op.Resource, op.Namespace, op.Name}); byCluster(key) {
		r.touched[key] = true
	}
	if err := r.x.observer.claim(r, op); err != nil {
		r.findings = append(r.findings, Finding{Oracle: Health, Field: "objects of no run", Text: err.Error()})
	}
	if !unobserved(op.Resource) {
		r.x.observer.observe(schema.GroupVersionResource{Group: group, Version: op.Version, Resource: name}, op.Namespace != "")
	}
}
