package controllertest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"runtime/pprof"
	"time"

	"github.com/go-logr/logr/funcr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/controllertest/internal/kubeconfig"
)

// A world is the Scenario.World of a run. Its fields are guarded by run.mu, unless they do
// not change.
type world struct {
	*fault.Incarnation
	run    *run
	file   *kubeconfig.File
	cancel context.CancelFunc
	ended  chan struct{} // the function has returned

	writes  []string           // the last ones, to name a loop
	wrote   time.Time          // the last one
	created map[types.UID]bool // by the World
	deleted map[types.UID]bool // by the World
	evicted map[objectKey]types.UID
}

// worldLabel is the value of the pprof label of the goroutines of a run's World.
func worldLabel(run string) string { return run + worldSuffix }

const worldSuffix = " world"

// startWorld runs Scenario.World, if there is one.
func (r *run) startWorld() error {
	if r.x.scenario.World == nil {
		return nil
	}
	w := &world{run: r, ended: make(chan struct{}), created: map[types.UID]bool{}, deleted: map[types.UID]bool{}, evicted: map[objectKey]types.UID{}}
	var err error
	if w.Incarnation, err = fault.New(r.own(), w.on, w.done); err != nil {
		return err
	}
	w.file = &kubeconfig.File{Through: w.Incarnation, Namespace: r.env.Namespace}
	r.mu.Lock()
	r.world = w
	r.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	env := r.env
	env.kubeconfig = w.file
	ctx = klog.NewContext(ctx, funcr.New(func(_, line string) { r.note("%s: logs: %s", laneWorld, line) }, funcr.Options{}))
	go pprof.Do(ctx, pprof.Labels(label, worldLabel(r.id)), func(ctx context.Context) {
		defer close(w.ended)
		err := errGoexit
		defer func() {
			if ctx.Err() == nil {
				r.x.abort(fmt.Errorf("Scenario.World ended before its context was done: %w: let it retry after errors, and return when its context is done", err))
			}
		}()
		err = w.act(ctx, &env)
	})
	return nil
}

func (w *world) act(ctx context.Context, env *Env) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	if err := w.run.x.scenario.World(ctx, w.Config(), env); err != nil {
		return err
	}
	return errors.New("without an error")
}

// stop ends the World and waits for it. For the first half of the time, the World can clean up by its
// client.
func (w *world) stop() {
	w.cancel()
	defer w.file.Close()
	defer w.Kill()
	half := w.run.x.options.StopTimeout / 2
	if w.endsIn(half) {
		return
	}
	w.Kill() // ends requests that ignore the context
	if !w.endsIn(half) {
		w.run.x.abort(fmt.Errorf("Scenario.World has not returned %v after its context was done: let all that it started end then; its goroutines are\n%s", w.run.x.options.StopTimeout, stacksOf(worldLabel(w.run.id))))
	}
}

// endsIn reports whether the World returns within a time.
func (w *world) endsIn(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-w.ended:
		return true
	case <-timer.C:
		return false
	}
}

// on prepares a request of the World, which has no fault.
func (w *world) on(op *fault.Op) (f fault.Fault) {
	r := w.run
	if evicts(op) {
		f.Before = func() { w.evicts(op) }
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if op.IsWrite() {
		r.observesLocked(op)
		signature := r.signatureLocked(op)
		r.noteLocked("%s: %s", laneWorld, signature)
		if !unobserved(op.Resource) {
			r.wrotes++
			w.writes = append(w.writes[max(0, len(w.writes)-4):], signature)
			w.wrote = time.Now()
		}
	}
	return f
}

// evicts reports whether a request deletes an object without being named a deletion.
func evicts(op *fault.Op) bool { return op.Verb == "create" && op.Subresource == "eviction" }

// evicts stores the uid of an object that the World is about to evict, because the response
// does not have it.
func (w *world) evicts(op *fault.Op) {
	r := w.run
	apart(func() {
		obj, err := r.x.dyn.Resource(r.x.observer.gvr(op.Resource)).Namespace(op.Namespace).Get(context.Background(), op.Name, metav1.GetOptions{})
		if err != nil {
			return // the eviction fails too
		}
		r.mu.Lock()
		w.evicted[objectKey{op.Resource, op.Namespace, op.Name}] = obj.GetUID()
		r.mu.Unlock()
	})
}

// done stores the response to a request of the World.
func (w *world) done(op *fault.Op, status int, body []byte) {
	if op.Verb == "watch" {
		return // not an event
	}
	w.run.responded(op, status, body)
	if !op.IsWrite() || op.Subresource != "" && !evicts(op) || status < 200 || status > 299 {
		return
	}
	type object struct{ Metadata struct{ UID types.UID } }
	var response struct {
		object
		Details struct{ UID types.UID } // of the Status of a deletion
		Items   []object                // of the deletion of a collection
	}
	_ = json.Unmarshal(body, &response)
	uid := cmp.Or(response.Metadata.UID, response.Details.UID)
	w.run.mu.Lock()
	defer w.run.mu.Unlock()
	switch {
	case evicts(op):
		w.deleted[w.evicted[objectKey{op.Resource, op.Namespace, op.Name}]] = true
	case op.Verb == "delete":
		w.deleted[uid] = true
	case op.Verb == "deletecollection":
		for _, deleted := range response.Items {
			w.deleted[deleted.Metadata.UID] = true
		}
	case status == http.StatusCreated:
		w.created[uid] = true
	}
}

// hasCreatedLocked reports whether the World has created an object. A nil world has not.
func (w *world) hasCreatedLocked(obj *unstructured.Unstructured) bool {
	return w != nil && w.created[obj.GetUID()]
}

// hasMadeLocked reports whether an event is a creation or a deletion by the World.
func (w *world) hasMadeLocked(e event) bool {
	switch {
	case w == nil:
		return false
	case e.kind == watch.Deleted:
		return w.deleted[e.object.GetUID()]
	}
	return e.kind == watch.Added && w.created[e.object.GetUID()]
}

// restlessLocked reports whether only the World wrote in the last half of a time.
func (w *world) restlessLocked(d time.Duration) bool {
	return w != nil && time.Since(w.wrote) < d/2 && time.Since(w.run.lastWrite) > d/2
}
