package controllertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

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
		case !news && errors.Is(err, errUnseen):
			return nil, []Finding{r.restless(err)} // something is written all the time
		case !news:
			return nil, []Finding{r.unconverged(err)}
		}
	}
}

// deadline is until when the cluster has to be at rest. Time in which the observer
// was late does not count, up to maxLate times Settle: somebody who writes for ever
// makes it late for ever.
func (r *run) deadline() time.Time {
	settle := r.x.options.Settle
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending > 0 {
		return now.Add(settle)
	}
	return r.lastFault.Add(settle + min(r.late.sum(now), maxLate*settle))
}

const maxLate = 5

// restless is the finding of a cluster in which something happens all the time.
func (r *run) restless(missing error) Finding {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := fmt.Sprintf("no rest of %v within %v of the last fault or step; the last writes: %s", r.x.options.Quiet, r.x.options.Settle, strings.Join(r.writes, "; "))
	if late := r.late.sum(time.Now()); late > r.x.options.Settle/10 {
		text += fmt.Sprintf("; the observer was late for %v of it, which does not count up to %d times that time", late.Round(time.Millisecond), maxLate)
	}
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

var (
	errQueue  = errors.New("a queue is not empty at rest")
	errUnseen = errors.New("the observer has not seen yet")
)

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
		busy := r.pending > 0 || r.underway > 0 || len(r.life) == 0
		if busy {
			wait = deadline.Sub(now)
		} else if !r.watchesLocked() {
			// Only for so long: a controller may have a reason to do without.
			wait = max(wait, watchPatience-now.Sub(r.lastEvent))
		}
		changed := r.changed
		r.mu.Unlock()
		if wait <= 0 && !busy {
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
	r.late.reset(r.lastFault)
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
	// Not only what the observer has seen: also what was written, which it may see late.
	known := maps.Clone(r.owned)
	maps.Copy(known, r.present)
	for _, key := range r.uids {
		known[key] = nil
	}
	r.mu.Unlock()
	for key := range known {
		switch {
		case key.namespace != "":
			namespaces[key.namespace] = true
		case resources[key.resource] != nil:
			single = append(single, key)
		}
	}
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
			return fmt.Errorf("%w: %s", errUnseen, key)
		}
	}
	for key := range r.present {
		if s.objects[key] == nil {
			return fmt.Errorf("%w: that %s is gone", errUnseen, key)
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
