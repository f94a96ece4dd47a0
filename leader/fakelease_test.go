package leader_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"
)

// A store holds one Lease the way the API server does: versions, UIDs,
// conflicts, create-on-update, watches that begin with the present state.
// client-go's fake has no resource versions, so it cannot show two writers.
type store struct {
	calls sync.WaitGroup // requests under way, also those whose client gave up

	admit func(*coordinationv1.Lease) // changes what is stored; nil changes nothing

	mu       sync.Mutex
	lease    *coordinationv1.Lease
	version  int
	uids     int
	watchers map[*watcher]bool
	history  []record
}

// A record is one stored version of the Lease; holder "<deleted>" if it went.
type record struct {
	at     time.Time
	holder string
	number int32
}

func newStore() *store { return &store{watchers: map[*watcher]bool{}} }

func gone() error {
	return apierrors.NewNotFound(coordinationv1.Resource("leases"), leaseName)
}

func (s *store) get() (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == nil {
		return nil, gone()
	}
	return s.lease.DeepCopy(), nil
}

func (s *store) create(lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease != nil {
		return nil, apierrors.NewAlreadyExists(coordinationv1.Resource("leases"), leaseName)
	}
	s.uids++
	lease = lease.DeepCopy()
	lease.UID = types.UID(fmt.Sprintf("uid-%d", s.uids))
	return s.storeLocked(watch.Added, lease), nil
}

func (s *store) update(lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	if s.lease == nil && lease.UID == "" {
		s.mu.Unlock()
		return s.create(lease) // as the API server does for Leases
	}
	defer s.mu.Unlock()
	if s.lease == nil || s.lease.UID != lease.UID || s.lease.ResourceVersion != lease.ResourceVersion {
		return nil, apierrors.NewConflict(coordinationv1.Resource("leases"), leaseName, errors.New("the object has been modified"))
	}
	return s.storeLocked(watch.Modified, lease.DeepCopy()), nil
}

func (s *store) storeLocked(kind watch.EventType, lease *coordinationv1.Lease) *coordinationv1.Lease {
	if s.admit != nil {
		s.admit(lease)
	}
	s.version++
	lease.ResourceVersion = strconv.Itoa(s.version)
	s.lease = lease
	s.history = append(s.history, record{time.Now(), ptr.Deref(lease.Spec.HolderIdentity, ""), ptr.Deref(lease.Spec.LeaseTransitions, 0)})
	for w := range s.watchers {
		w.push(watch.Event{Type: kind, Object: lease.DeepCopy()})
	}
	return lease.DeepCopy()
}

func (s *store) delete() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == nil {
		return
	}
	s.version++
	s.lease.ResourceVersion = strconv.Itoa(s.version) // as the API server does
	for w := range s.watchers {
		w.push(watch.Event{Type: watch.Deleted, Object: s.lease.DeepCopy()})
	}
	s.history = append(s.history, record{at: time.Now(), holder: "<deleted>"})
	s.lease = nil
}

// edit changes the Lease as a stranger would: by a read and an update.
func (s *store) edit(t *testing.T, change func(*coordinationv1.Lease)) {
	t.Helper()
	lease, err := s.get()
	if err != nil {
		t.Fatal(err)
	}
	change(lease)
	if _, err := s.update(lease); err != nil {
		t.Fatal(err)
	}
}

func (s *store) watches() []*watcher {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.watchers))
}

func (s *store) records() []record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]record(nil), s.history...)
}

// A fault is the fate of one request.
type fault struct {
	before time.Duration // until the API server has it
	after  time.Duration // until the client has the response
	lost   bool          // it never arrives
	cut    bool          // its response never arrives
	err    error         // refused with this error
}

// A client reaches the store through faults. It satisfies all of client-go's
// LeaseInterface, so that client-go's elector can use it too.
type client struct {
	coordinationv1client.LeaseInterface
	*store

	before func(ctx context.Context, verb string) error // refuses a request before it is sent; nil refuses none

	faulting sync.Mutex // held while faults runs, so that it needs no lock of its own

	mu     sync.Mutex
	faults func(verb string) fault
	down   bool
	delay  time.Duration // of watch events
	count  map[string]int
}

func (s *store) client() *client { return &client{store: s, count: map[string]int{}} }

func (c *client) Leases(string) coordinationv1client.LeaseInterface { return c }

// partition cuts the client off, watches included, or connects it again.
func (c *client) partition(down bool) {
	c.mu.Lock()
	c.down = down
	c.mu.Unlock()
}

func (c *client) on(faults func(verb string) fault) {
	c.mu.Lock()
	c.faults = faults
	c.mu.Unlock()
}

func (c *client) calls(verb string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count[verb]
}

func (c *client) fault(verb string) fault {
	c.mu.Lock()
	c.count[verb]++
	faults := c.faults
	if c.down {
		faults = func(string) fault { return fault{lost: true} }
	}
	c.mu.Unlock()
	if faults == nil {
		return fault{}
	}
	c.faulting.Lock()
	defer c.faulting.Unlock()
	return faults(verb)
}

func (c *client) call(ctx context.Context, verb string, do func() (*coordinationv1.Lease, error)) (*coordinationv1.Lease, error) {
	type result struct {
		lease *coordinationv1.Lease
		err   error
	}
	if c.before != nil {
		if err := c.before(ctx, verb); err != nil {
			return nil, err
		}
	}
	f := c.fault(verb)
	response := make(chan result, 1)
	c.store.calls.Go(func() {
		time.Sleep(f.before)
		if f.lost {
			return
		}
		r := result{err: f.err}
		if f.err == nil {
			r.lease, r.err = do()
		}
		time.Sleep(f.after)
		if !f.cut {
			response <- r
		}
	})
	select {
	case r := <-response:
		return r.lease, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *client) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	return c.call(ctx, "get", c.get)
}

func (c *client) Create(ctx context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	lease = lease.DeepCopy()
	return c.call(ctx, "create", func() (*coordinationv1.Lease, error) { return c.create(lease) })
}

func (c *client) Update(ctx context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	lease = lease.DeepCopy()
	return c.call(ctx, "update", func() (*coordinationv1.Lease, error) { return c.update(lease) })
}

func (c *client) Watch(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
	var w *watcher
	_, err := c.call(ctx, "watch", func() (*coordinationv1.Lease, error) {
		w = &watcher{client: c, out: make(chan watch.Event), wake: make(chan struct{}, 1), done: make(chan struct{})}
		c.store.mu.Lock()
		defer c.store.mu.Unlock()
		if c.lease != nil {
			w.push(watch.Event{Type: watch.Added, Object: c.lease.DeepCopy()})
		}
		c.watchers[w] = true
		c.store.calls.Go(w.run)
		// A client that gave up meanwhile must not leave the watch behind.
		context.AfterFunc(ctx, w.Stop)
		return nil, nil
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// A watcher delivers events in order, each after the client's delay.
type watcher struct {
	client *client
	out    chan watch.Event
	wake   chan struct{}
	done   chan struct{}
	once   sync.Once

	mu    sync.Mutex
	queue []watch.Event
	due   []time.Time
}

func (w *watcher) push(event watch.Event) {
	w.client.mu.Lock()
	delay := w.client.delay
	w.client.mu.Unlock()
	w.mu.Lock()
	w.queue = append(w.queue, event)
	w.due = append(w.due, time.Now().Add(delay))
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watcher) run() {
	defer close(w.out)
	for {
		w.mu.Lock()
		var event watch.Event
		var due time.Time
		some := len(w.queue) > 0
		if some {
			event, due = w.queue[0], w.due[0]
			w.queue, w.due = w.queue[1:], w.due[1:]
		}
		w.mu.Unlock()
		if !some {
			select {
			case <-w.wake:
				continue
			case <-w.done:
				return
			}
		}
		// No timer without a delay: see docs/synctest-race.md.
		if delay := time.Until(due); delay > 0 {
			select {
			case <-time.After(delay):
			case <-w.done:
				return
			}
		}
		w.client.mu.Lock()
		down := w.client.down
		w.client.mu.Unlock()
		if down {
			continue // lost; a real connection would stall and break, which is kinder
		}
		select {
		case w.out <- event:
		case <-w.done:
			return
		}
	}
}

func (w *watcher) ResultChan() <-chan watch.Event { return w.out }

func (w *watcher) Stop() {
	w.once.Do(func() {
		w.client.store.mu.Lock()
		delete(w.client.watchers, w)
		w.client.store.mu.Unlock()
		close(w.done)
	})
}
