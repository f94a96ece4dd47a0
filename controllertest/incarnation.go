package controllertest

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr/funcr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/controllertest/internal/kubeconfig"
	"github.com/controllerkit/controllerkit/controllertest/internal/outage"
	"github.com/controllerkit/controllerkit/internal/calls"
)

// label is the pprof label of the goroutines of a run. Its value is the id of the run.
const label = "controllertest"

// maxRestarts bounds how often a controller may end by itself in a run with faults. The
// explorer restarts it, as a cluster does.
const maxRestarts = 20

// An incarnation is one process of the controller.
type incarnation struct {
	*fault.Incarnation
	run     *run
	replica int
	number  int
	former  bool // of Scenario.From
	ctx     context.Context
	cancel  context.CancelFunc
	ended   chan struct{} // Start has returned
	wrote   chan struct{} // is closed before the first write
	writes  func()        // closes wrote
	die     func()
	file    *kubeconfig.File

	cmd     *exec.Cmd  // guarded by run.mu; nil unless it is a real process
	queues  []*watched // guarded by run.mu
	effects effects    // guarded by run.mu
}

// A watched queue must be empty at rest.
type watched struct {
	lengther
	gated func() int // the number of keys that wait for the gate of the queue's loop; nil means none
}

// isShutDown reports whether no key is handed out any more: the keys of a process that has lost
// its leadership are left, and the next term has a queue of its own.
func (w *watched) isShutDown() bool {
	q, ok := w.lengther.(interface{ ShuttingDown() bool })
	return ok && q.ShuttingDown()
}

// A lengther is a queue for Env.Queue.
type lengther = interface{ Len() int }

// noQueue is the queue of a loop that registers only its gate.
type noQueue struct{}

func (noQueue) Len() int { return 0 }

// effects are faults that apply to a later request.
type effects struct {
	noBookmark  string        // the next watch-list of this resource does not end
	travelTo    string        // a resource version
	travels     string        // the resource whose lists show it
	travelled   bool          // a list has shown it
	slowRenewal time.Duration // of the next write of a Lease
}

// launch starts an incarnation.
func (r *run) launch(replica int) { r.launchWith(replica, effects{}) }

func (r *run) launchWith(replica int, e effects) {
	i := &incarnation{run: r, replica: replica, ended: make(chan struct{}), wrote: make(chan struct{}), effects: e}
	i.writes = sync.OnceFunc(func() { close(i.wrote) })
	var err error
	if i.Incarnation, err = fault.New(r.own(), i.on, i.responded); err != nil {
		r.find(Health, "%v", err)
		return
	}
	i.file = &kubeconfig.File{Through: i.Incarnation, Namespace: r.env.Namespace}
	i.ctx, i.cancel = context.WithCancel(context.Background())
	i.die = sync.OnceFunc(func() {
		i.Kill()
		i.cancel()
	})
	r.mu.Lock()
	if r.over {
		r.mu.Unlock()
		i.die()
		return
	}
	i.number, i.former = len(r.past)+len(r.life)+1, r.former
	if replica < len(r.life) {
		r.past = append(r.past, r.life[replica])
		r.life[replica] = i
	} else {
		r.life = append(r.life, i)
	}
	r.noteLocked("process %d starts", i.number)
	r.touchLocked()
	r.mu.Unlock()

	env := r.env
	env.incarnation, env.kubeconfig = i, i.file
	env.Cloud = r.env.Cloud.Through(i.external)
	ctx := klog.NewContext(i.ctx, funcr.New(func(_, line string) { r.note("process %d logs: %s", i.number, line) }, funcr.Options{}))
	ctx = context.WithValue(ctx, calls.Explored{}, func(_ lengther, gated func() int) (end func()) { return i.watch(noQueue{}, gated) })
	ctx = context.WithValue(ctx, calls.Finding{}, func(text string) { r.find(Health, "%s", text) })
	go pprof.Do(ctx, pprof.Labels(label, r.id), func(ctx context.Context) {
		defer close(i.ended)
		err := errGoexit
		defer func() {
			if ctx.Err() == nil {
				i.endedByItself(err)
			}
		}()
		err = i.start(ctx, &env)
	})
}

func (i *incarnation) start(ctx context.Context, env *Env) (err error) {
	defer func() {
		if v := recover(); v != nil {
			i.run.find(Health, "panic: %v\n%s", v, debug.Stack())
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	start, command := i.run.x.scenario.Start, i.run.x.scenario.Command
	if i.former {
		start, command = i.run.x.scenario.From.Start, i.run.x.scenario.From.Command
	}
	if command != nil {
		return i.process(ctx, env, command)
	}
	return start(ctx, i.Config(), env)
}

// endedByItself restarts a process that ended before it was killed.
func (i *incarnation) endedByItself(err error) {
	r := i.run
	i.die()
	r.mu.Lock()
	r.restarts++
	restarts, over := r.restarts, r.over
	r.noteLocked("process %d ended by itself: %v", i.number, err)
	r.mu.Unlock()
	switch {
	case over:
	case len(r.plan) == 0:
		r.find(Health, "Start returned while its context was not done: %v", err)
	case restarts == maxRestarts:
		r.find(Health, "the process ended %d times by itself, the last time with: %v", restarts, err)
	case restarts < maxRestarts:
		end := r.begin()
		r.goes(func() {
			defer end()
			time.Sleep(time.Duration(restarts) * 20 * time.Millisecond)
			r.launch(i.replica)
		})
	}
}

// crash kills the process and starts the next one.
func (i *incarnation) crash(e effects) {
	r := i.run
	i.die()
	r.note("process %d was killed", i.number)
	end := r.begin()
	r.goes(func() {
		defer end()
		r.launchWith(i.replica, e)
	})
}

// await waits for the goroutine that runs Start.
func (i *incarnation) await() {
	defer i.file.Close()
	timer := time.NewTimer(i.run.x.options.StopTimeout)
	defer timer.Stop()
	select {
	case <-i.ended:
	case <-timer.C:
		i.run.find(Health, "Start has not returned %v after its context was done; its goroutines are\n%s", i.run.x.options.StopTimeout, stacksOf(i.run.id))
	}
}

// watch registers a queue until end is called.
func (i *incarnation) watch(q lengther, gated func() int) (end func()) {
	w := &watched{q, gated}
	i.run.mu.Lock()
	i.queues = append(i.queues, w)
	i.run.mu.Unlock()
	return func() {
		i.run.mu.Lock()
		i.queues = slices.DeleteFunc(i.queues, func(other *watched) bool { return other == w })
		i.run.mu.Unlock()
	}
}

// on returns the fault of a request, and measures how long the API server takes for it.
func (i *incarnation) on(op *fault.Op) fault.Fault {
	r, f := i.run, i.faultOf(op)
	before, after, finally := f.Before, f.After, f.Finally
	f.Before = func() {
		if before != nil {
			before()
		}
		r.mu.Lock()
		r.slow.begin(op, time.Now().Add(f.Delay))
		r.mu.Unlock()
	}
	answered := func() {
		r.mu.Lock()
		r.slow.end(op, time.Now())
		r.mu.Unlock()
	}
	f.After = func() {
		answered() // Fault.Hold follows
		if after != nil {
			after()
		}
	}
	f.Finally = func() {
		answered()
		if finally != nil {
			finally()
		}
	}
	return f
}

func (i *incarnation) faultOf(op *fault.Op) fault.Fault {
	r := i.run
	if i.former {
		i.formerRequest(op)
		return fault.Fault{}
	}
	if op.Verb == "update" && !unobserved(op.Resource) {
		r.awaitBase(i.ctx, op)
	}
	r.mu.Lock()
	r.asked = true
	f, fails := r.failsLocked(op.Verb, op.Resource, op.Subresource)
	switch {
	case fails:
		r.noteLocked("process %d: %s fails", i.number, r.signatureLocked(op))
		r.mu.Unlock()
		return f
	case op.IsReflector():
		defer r.mu.Unlock()
		return i.reflectorLocked(op)
	case op.Resource == leases:
		defer r.mu.Unlock()
		var f fault.Fault
		if op.IsWrite() {
			r.x.leases.Store(true)
			if d := i.effects.slowRenewal; d > 0 {
				i.effects.slowRenewal = 0
				f.Hold, f.Before = d, r.silence(d)
			}
		}
		return f
	case unobserved(op.Resource) || !op.IsWrite() && op.Verb != "get" && op.Verb != "list":
		r.mu.Unlock()
		return fault.Fault{}
	}
	if op.IsWrite() {
		r.observesLocked(op)
	}
	o := operation{write: op.IsWrite(), resource: op.Resource, object: objectKey{op.Resource, op.Namespace, op.Name}, made: r.madeByLocked(op)}
	o.conditional = o.write && conditional(op)
	return i.operateLocked(o, r.signatureLocked(op))
}

// operateLocked counts an operation and returns its fault. It unlocks r.mu.
func (i *incarnation) operateLocked(o operation, signature string) fault.Fault {
	r := i.run
	o.id, o.step, o.users = r.countLocked(signature), r.step, r.usersLocked()
	if signature == r.repeats {
		r.repeated = time.Time{}
	}
	o.watched = slices.Sorted(maps.Keys(i.Watches()))
	r.trace = append(r.trace, o)
	if r.worked != nil {
		close(r.worked)
		r.worked = nil
	}
	r.noteLocked("process %d: %s", i.number, o.id)
	if o.write {
		i.writes()
		r.lastWrite = time.Now()
		r.wrotes++
		r.writes = append(r.writes[max(0, len(r.writes)-4):], o.id)
		r.touchLocked()
	}
	var f fault.Fault
	var travel bool
	if r.next < len(r.plan) {
		if r.plan[r.next].after > 0 {
			r.chooseLocked(o)
		}
		j := r.plan[r.next]
		travel = j.kind == TimeTravel && j.from == o.id
		if j.at == o.id {
			var possible bool
			if f, possible = i.injectLocked(j, o); possible {
				if j.kind == CommitThen503 {
					r.repeated, r.repeats = time.Now().Add(commitRetry+holdTime), signature
				}
				r.noteLocked("FAULT %s", j)
				r.next++
				clear(r.counts)
				r.faultLocked()
			}
		}
	}
	if o.write {
		// There is no rest before it has ended.
		r.underway++
		finally := f.Finally
		f.Finally = func() {
			if finally != nil {
				finally()
			}
			r.mu.Lock()
			r.underway--
			r.touchLocked()
			r.mu.Unlock()
		}
	}
	r.mu.Unlock()
	if travel {
		before := f.Before
		f.Before = func() {
			if version := r.revisionNow(i.ctx); version != "" {
				r.mu.Lock()
				r.old[o.id] = version
				r.mu.Unlock()
			}
			if before != nil {
				before()
			}
		}
	}
	return f
}

// external makes an external call and applies its fault.
func (i *incarnation) external(ctx context.Context, name string, call func(context.Context) error) error {
	r := i.run
	if i.ctx.Err() != nil {
		return fault.ErrKilled
	}
	r.mu.Lock()
	verb, _, _ := strings.Cut(name, " ")
	f, fails := r.failsLocked(verb, outage.External, "")
	if i.former {
		r.noteLocked("process %d of the former version: external %s", i.number, r.maskLocked(name))
		r.mu.Unlock()
	} else if fails {
		r.noteLocked("process %d: external %s fails", i.number, r.maskLocked(name))
		r.mu.Unlock()
	} else {
		o := operation{write: verb != "get" && verb != "list", external: true}
		f = i.operateLocked(o, tidy("external "+r.maskLocked(name)))
	}
	return f.Call(ctx, i.Incarnation, func(ctx context.Context) error {
		return r.serve(ctx, func(ctx context.Context) error {
			if i.ctx.Err() != nil {
				return fault.ErrKilled
			}
			return call(ctx)
		})
	})
}

// serve makes a call to the cloud, of a process or of the user, and keeps what it changed. A call inside another
// is part of it.
func (r *run) serve(ctx context.Context, call func(context.Context) error) error {
	if ctx.Value(r) != nil {
		return call(ctx)
	}
	r.external.Lock()
	defer r.external.Unlock()
	before := r.env.Cloud.Resources()
	err := call(context.WithValue(ctx, r, true))
	after := r.env.Cloud.Resources()
	if !slices.EqualFunc(before, after, sameResource) {
		// The write that caused this call was stored before it. A write that this call
		// causes is stored after it.
		version := r.revisionNow(context.WithoutCancel(ctx))
		r.mu.Lock()
		r.history = append(r.history, event{revision: parseRevision(version), cloud: after})
		r.learnIDsLocked(after)
		r.noteLocked("  cloud: %s", describe(after))
		r.touchLocked()
		r.mu.Unlock()
	}
	return err
}

// revisionNow asks the API server for its present revision.
func (r *run) revisionNow(ctx context.Context) (version string) {
	apart(func() {
		if list, err := r.x.kube.CoreV1().ConfigMaps(r.env.Namespace).List(ctx, metav1.ListOptions{Limit: 1}); err == nil {
			version = list.ResourceVersion
		}
	})
	return version
}

// apart calls f in a goroutine without the label of the run, because the connections that
// f makes are the explorer's. It waits for f.
func apart(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		pprof.SetGoroutineLabels(context.Background())
		f()
	}()
	<-done
}

// goes is wg.Go without the label of the run. After the run is over it has no effect,
// because stop already waits.
func (r *run) goes(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return
	}
	r.wg.Go(func() {
		pprof.SetGoroutineLabels(context.Background())
		f()
	})
}
