package controllertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
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
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// A run is one telling of the story, under one plan.
type run struct {
	x    *explorer
	id   string // the number of the run; labels its goroutines
	plan plan
	env  Env // the user's
	user *fault.Incarnation

	wg       sync.WaitGroup // what goes on beside the controller: restarts, releases, users
	external sync.Mutex     // one external call at a time

	mu        sync.Mutex
	began     time.Time
	over      bool
	life      []*incarnation // the present ones, by replica
	past      []*incarnation
	restarts  int
	pending   int       // faults that go on, writes under way, users that wait
	lastEvent time.Time // when something happened last
	lastFault time.Time // when a step or a fault began or ended last
	changed   chan struct{}
	step      int
	next      int                       // the fault of the plan to come
	expired   map[string]uint64         // by resource: older versions cannot be watched from
	old       map[string]string         // operation → resource version right before it, for time travel
	counts    map[string]int            // by signature, since the last fault
	generated map[string]string         // name → masked name
	uids      map[types.UID]objectKey   // of all objects that were seen
	versions  map[string]map[string]any // objects by resource version
	present   map[objectKey]*unstructured.Unstructured
	history   []event
	owned     map[objectKey]*unstructured.Unstructured // what the user created and did not delete
	unwanted  map[objectKey]bool                       // deleted by the script
	useless   bool                                     // says nothing about the controller
	writes    []string                                 // the last few, to name a loop
	timeline  []moment
	trace     []operation
	findings  []Finding
	rests     []checkpoint
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
	cloud    []cloud.Resource // what it holds from now on; if object is nil
}

// A checkpoint is the state that a step came to rest in.
type checkpoint struct {
	step  string
	state map[string]any // normalized, flat
}

// teardown is the step after the last one: users delete what they have made.
const teardown = "users delete what they made"

// tell runs the whole story.
func (r *run) tell(ctx context.Context) {
	defer r.stop(ctx)
	for replica := range max(1, r.x.scenario.Replicas) {
		r.launch(replica)
	}
	for n, step := range r.x.scenario.Script {
		if !r.play(ctx, n, step.Name, func() error { return step.Do(ctx, r.user.Config(), &r.env) }) {
			return
		}
	}
	r.mu.Lock()
	left := slices.SortedFunc(maps.Keys(r.owned), func(a, b objectKey) int { return strings.Compare(b.String(), a.String()) })
	for _, key := range left {
		r.unwanted[key] = true
	}
	r.mu.Unlock()
	if len(left) > 0 {
		r.play(ctx, len(r.x.scenario.Script), teardown, func() error {
			for _, key := range left {
				if err := r.deleteAsUser(ctx, key); err != nil && !apierrors.IsNotFound(err) {
					return err
				}
			}
			return nil
		})
	}
}

// play does a step and waits until the cluster rests. It reports whether to go on.
func (r *run) play(ctx context.Context, n int, name string, do func() error) bool {
	r.mu.Lock()
	r.step = n
	r.mu.Unlock()
	r.note("user: %s", name)
	end := r.begin()
	err := do()
	end()
	if err != nil && apierrors.IsNotFound(err) && r.plan.has(UserRecreate) {
		// The script wanted what the plan's user was about to create again.
		r.mu.Lock()
		r.useless = true
		r.mu.Unlock()
		return false
	}
	if err != nil && !(r.plan.has(UserDelete) && apierrors.IsNotFound(err)) {
		r.find(Health, "step %q: %v", name, err)
		return false
	}
	state, findings := r.rest(ctx)
	if len(findings) > 0 {
		r.mu.Lock()
		r.findings = append(r.findings, findings...)
		r.mu.Unlock()
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rests = append(r.rests, checkpoint{name, r.normalizeLocked(state)})
	if r.x.watched == nil && len(r.plan) == 0 {
		r.x.watched = map[string]int{} // the first run of all, and nothing beside it
		for _, i := range r.life {
			for resource, n := range i.Watches() {
				r.x.watched[resource] += n
			}
		}
	}
	return true
}

// rest waits until nothing happens any more and the cluster has converged. It
// returns the state, or what is wrong.
func (r *run) rest(ctx context.Context) (*State, []Finding) {
	missing := errors.New("it was never at rest")
	for {
		switch quiet, err := r.quiet(ctx); {
		case err != nil:
			return nil, []Finding{{Health, fmt.Sprintf("the exploration was stopped: %v", err)}}
		case !quiet:
			return nil, []Finding{r.restless(missing)}
		}
		r.mu.Lock()
		seen := r.lastEvent
		r.mu.Unlock()
		state, err := r.list(ctx)
		if err == nil {
			err = r.agrees(state)
		}
		if err == nil {
			if err = r.x.scenario.Converged(state); err == nil {
				err = r.queuesEmpty()
			}
			missing = err
		}
		if err == nil {
			return state, nil
		}
		// Not there yet: wait until something happens.
		switch news, ctxErr := r.news(ctx, seen); {
		case ctxErr != nil:
			return nil, []Finding{{Health, fmt.Sprintf("the exploration was stopped: %v", ctxErr)}}
		case !news:
			return nil, []Finding{r.unconverged(err)}
		}
	}
}

// deadline is until when the cluster has to be at rest.
func (r *run) deadline() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending > 0 {
		return time.Now().Add(r.x.options.Settle)
	}
	return r.lastFault.Add(r.x.options.Settle)
}

// restless is the finding of a cluster in which something happens all the time.
func (r *run) restless(missing error) Finding {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := fmt.Sprintf("no rest of %v within %v of the last fault or step; the last writes: %s", r.x.options.Quiet, r.x.options.Settle, strings.Join(r.writes, "; "))
	if missing != nil {
		text += "; " + missing.Error()
	}
	return Finding{Quiescence, text}
}

func (r *run) unconverged(err error) Finding {
	oracle := Liveness
	if errors.Is(err, errQueue) {
		oracle = Quiescence
	}
	return Finding{oracle, fmt.Sprintf("not converged %v after the last fault or step: %v", r.x.options.Settle, err)}
}

var errQueue = errors.New("a queue is not empty at rest")

func (r *run) queuesEmpty() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range r.life {
		for _, q := range i.queues {
			if n := q.Len(); n > 0 {
				return fmt.Errorf("%w: Len() is %d", errQueue, n)
			}
		}
	}
	return nil
}

// quiet waits until nothing has happened for Options.Quiet, the plan's faults are
// over, and the controller's watches are there again. It reports false if that is
// not so after Options.Settle.
func (r *run) quiet(ctx context.Context) (bool, error) {
	for {
		deadline := r.deadline()
		r.mu.Lock()
		now := time.Now()
		wait := r.x.options.Quiet - now.Sub(r.lastEvent)
		if r.pending > 0 || len(r.life) == 0 {
			wait = deadline.Sub(now)
		} else if !r.watchesLocked() {
			// Only for so long: a controller may have a reason to do without.
			wait = max(wait, watchPatience-now.Sub(r.lastEvent))
		}
		changed := r.changed
		r.mu.Unlock()
		if wait <= 0 {
			return true, nil
		}
		if !now.Before(deadline) {
			return false, nil
		}
		if err := sleep(ctx, changed, min(wait, deadline.Sub(now))); err != nil {
			return false, err
		}
	}
}

// sleep waits until the channel is closed, for that time, or for ctx.
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

// watchPatience is how long a watch may be missing that the controller had in the
// runs without faults. client-go takes up to two seconds to establish the next.
const watchPatience = 5 * time.Second

// watchesLocked reports whether as many watches are established as at rest without
// faults.
func (r *run) watchesLocked() bool {
	for resource, n := range r.x.watched {
		have := 0
		for _, i := range r.life {
			have += i.Streams(resource)
		}
		if have < n {
			return false
		}
	}
	return true
}

// news waits until something has happened since the given time. It reports false
// if nothing has until the deadline.
func (r *run) news(ctx context.Context, since time.Time) (bool, error) {
	for {
		deadline := r.deadline()
		r.mu.Lock()
		changed, news := r.changed, r.lastEvent.After(since)
		r.mu.Unlock()
		if now := time.Now(); news || !now.Before(deadline) {
			return news && now.Before(deadline), nil
		}
		if err := sleep(ctx, changed, time.Until(deadline)); err != nil {
			return false, err
		}
	}
}

// touchLocked tells those who wait that something has happened.
func (r *run) touchLocked() {
	r.lastEvent = time.Now()
	close(r.changed)
	r.changed = make(chan struct{})
}

// faultLocked is touchLocked for faults and steps: from now on counts how long the
// cluster takes to come to rest.
func (r *run) faultLocked() {
	r.touchLocked()
	r.lastFault = r.lastEvent
}

// begin marks something that must end before the cluster can be at rest.
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

// fired is how many faults of the plan have happened.
func (r *run) fired() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.useless {
		return -1
	}
	return r.next
}

func (r *run) find(oracle Oracle, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.mu.Lock()
	r.findings = append(r.findings, Finding{oracle, text})
	r.noteLocked("FINDING %s: %s", oracle, text)
	r.mu.Unlock()
}

// list reads the run's part of the cluster from the API server.
func (r *run) list(ctx context.Context) (*State, error) {
	resources, err := r.x.observer.resources(ctx)
	if err != nil {
		return nil, err
	}
	s := &State{namespace: r.env.Namespace, objects: map[objectKey]*unstructured.Unstructured{}, cloud: r.env.Cloud.Resources()}
	r.mu.Lock()
	var single []objectKey // cluster-scoped
	namespaces := map[string]bool{r.env.Namespace: true}
	for key := range r.present {
		if key.namespace == "" {
			single = append(single, key)
		} else {
			namespaces[key.namespace] = true
		}
	}
	r.mu.Unlock()
	for _, key := range single {
		obj, err := r.x.dyn.Resource(resources[key.resource].gvr).Get(ctx, key.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
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

// agrees returns nil if the observer has seen all that led to the state.
func (r *run) agrees(s *State) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, obj := range s.objects {
		if have := r.present[key]; have == nil || have.GetResourceVersion() != obj.GetResourceVersion() {
			return fmt.Errorf("the observer has not seen %s yet", key)
		}
	}
	for key := range r.present {
		if s.objects[key] == nil {
			return fmt.Errorf("the observer has not seen yet that %s is gone", key)
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

// observe takes in an event of the observer.
func (r *run) observe(resource string, kind watch.EventType, obj *unstructured.Unstructured) {
	key := objectKey{resource, obj.GetNamespace(), obj.GetName()}
	if rubbish(key) {
		return
	}
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
	r.history = append(r.history, event{revision: revision(obj), key: key, kind: kind, object: obj})
	r.noteLocked("  event: %s %s (version %s)", strings.ToLower(string(kind)), key, obj.GetResourceVersion())
	r.touchLocked()
}

// rubbish is what a cluster puts into every namespace.
func rubbish(key objectKey) bool {
	return key.resource == "configmaps" && key.name == "kube-root-ca.crt" || key.resource == "serviceaccounts" && key.name == "default"
}

// learnLocked remembers an object's names.
func (r *run) learnLocked(key objectKey, obj *unstructured.Unstructured) {
	if prefix := obj.GetGenerateName(); prefix != "" && strings.HasPrefix(obj.GetName(), prefix) && obj.GetName() != prefix {
		r.generated[obj.GetName()] = prefix + "*"
	}
	if uid := obj.GetUID(); uid != "" {
		r.uids[uid] = key
	}
	if version := obj.GetResourceVersion(); version != "" {
		r.versions[version] = obj.Object
	}
}

// answered takes in the answer to a request of the controller or the user.
func (r *run) answered(op *fault.Op, status int, body []byte) {
	if op.Verb == "watch" {
		r.mu.Lock()
		r.touchLocked()
		r.mu.Unlock()
		return
	}
	if !op.IsWrite() || status < 200 || status > 299 {
		return
	}
	var obj unstructured.Unstructured
	if json.Unmarshal(body, &obj.Object) != nil || obj.GetKind() == "Status" {
		return
	}
	r.mu.Lock()
	r.learnLocked(objectKey{op.Resource, obj.GetNamespace(), obj.GetName()}, &obj)
	r.mu.Unlock()
}

// creatingLocked makes an object the user's before it is created: the controller
// may see it before the user has the answer.
func (r *run) creatingLocked(op *fault.Op) {
	key := objectKey{op.Resource, op.Namespace, op.Name}
	var obj unstructured.Unstructured
	if op.Verb == "create" && op.Subresource == "" && !op.Generated && op.Name != "" && !unobserved(op.Resource) &&
		r.owned[key] == nil && json.Unmarshal(op.Body, &obj.Object) == nil {
		r.owned[key] = &obj
		delete(r.unwanted, key)
	}
}

// asUser takes in the answer to a request of the user: what the user creates is
// what the user may delete.
func (r *run) asUser(op *fault.Op, status int, body []byte) {
	r.answered(op, status, body)
	if op.Verb == "delete" && status == http.StatusNotFound {
		status = http.StatusOK // it is what the user wanted
	}
	if op.Verb == "create" && status > 299 && status != http.StatusConflict {
		r.mu.Lock()
		delete(r.owned, objectKey{op.Resource, op.Namespace, op.Name})
		r.mu.Unlock()
	}
	if !op.IsWrite() || op.Subresource != "" || status < 200 || status > 299 || unobserved(op.Resource) {
		return
	}
	var obj unstructured.Unstructured
	_ = json.Unmarshal(body, &obj.Object) // a Status has no name
	r.mu.Lock()
	defer r.mu.Unlock()
	key := objectKey{op.Resource, op.Namespace, op.Name}
	switch {
	case op.Verb == "delete":
		delete(r.owned, key)
		r.unwanted[key] = true
	case obj.GetName() != "" && obj.GetKind() != "Status":
		key.name = obj.GetName()
		delete(r.unwanted, key)
		if r.owned[key] != nil || op.Verb == "create" || status == http.StatusCreated {
			r.owned[key] = &obj
		}
	}
	r.touchLocked()
}

// usersLocked names what the user has made and not deleted, as plans do.
func (r *run) usersLocked() []string {
	var names []string
	for key := range r.owned {
		if name := key.resource + "/" + r.maskLocked(key.name); len(r.x.scenario.User) == 0 || slices.Contains(r.x.scenario.User, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (r *run) deleteAsUser(ctx context.Context, key objectKey) error {
	r.mu.Lock()
	delete(r.owned, key)
	r.mu.Unlock()
	return r.x.dyn.Resource(r.x.observer.gvr(key.resource)).Namespace(key.namespace).Delete(ctx, key.name, metav1.DeleteOptions{})
}

// stop kills what runs and waits for it.
func (r *run) stop(ctx context.Context) {
	r.mu.Lock()
	r.over = true
	life := r.life
	r.mu.Unlock()
	for _, i := range life {
		i.die()
	}
	r.user.Kill()
	r.wg.Wait()
	r.mu.Lock()
	all := append(slices.Clone(r.past), life...)
	r.mu.Unlock()
	for _, i := range all {
		i.await(ctx)
	}
}

// newRun makes a run and its namespace.
func (x *explorer) newRun(ctx context.Context, p plan) (*run, error) {
	n := x.runs.Add(1)
	r := &run{
		x: x, id: fmt.Sprintf("%s-%d", x.prefix, n), plan: slices.Clone(p), changed: make(chan struct{}), began: time.Now(), lastEvent: time.Now(), lastFault: time.Now(),
		unwanted: map[objectKey]bool{}, expired: map[string]uint64{}, old: map[string]string{}, counts: map[string]int{}, generated: map[string]string{}, uids: map[types.UID]objectKey{},
		versions: map[string]map[string]any{}, present: map[objectKey]*unstructured.Unstructured{}, owned: map[objectKey]*unstructured.Unstructured{},
	}
	r.env = Env{Namespace: r.id, Cloud: cloud.New(x.scenario.Cloud)}
	var err error
	r.user, err = fault.New(x.config, func(op *fault.Op) fault.Fault {
		r.mu.Lock()
		defer r.mu.Unlock()
		if op.IsWrite() {
			x.learn(op)
			r.noteLocked("user: %s", r.signatureLocked(op))
			r.creatingLocked(op)
		}
		r.touchLocked()
		return fault.Fault{}
	}, r.asUser)
	if err != nil {
		return nil, err
	}
	x.observer.add(r)
	ns, err := x.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.id}}, metav1.CreateOptions{})
	if err != nil {
		x.observer.remove(r)
		return nil, fmt.Errorf("create a namespace: %w", err)
	}
	r.old["start"] = ns.ResourceVersion
	return r, nil
}

// learn sees to it that what is written is observed.
func (x *explorer) learn(op *fault.Op) {
	group, name := "", op.Resource
	if plural, g, ok := strings.Cut(op.Resource, "."); ok {
		name, group = plural, g
	}
	if !unobserved(op.Resource) {
		x.observer.observe(schema.GroupVersionResource{Group: group, Version: op.Version, Resource: name}, op.Namespace != "")
	}
}
