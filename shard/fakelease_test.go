package shard_test

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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

// A store holds Leases the way the API server does: versions, UIDs, conflicts,
// preconditions, and watches from a version on. client-go's fake has none of them.
type store struct {
	calls sync.WaitGroup // requests that run, also those whose client gave up

	mu       sync.Mutex
	leases   map[string]*coordinationv1.Lease
	version  int
	watchers map[*watcher]bool
	events   []event // all
}

// An event is a stored version, or a deletion.
type event struct {
	version int
	watch.Event
}

func newStore() *store {
	return &store{leases: map[string]*coordinationv1.Lease{}, watchers: map[*watcher]bool{}}
}

var leaseResource = coordinationv1.Resource("leases")

func (s *store) putLocked(kind watch.EventType, lease *coordinationv1.Lease) *coordinationv1.Lease {
	s.version++
	lease.ResourceVersion = strconv.Itoa(s.version)
	if kind == watch.Deleted {
		delete(s.leases, lease.Name)
	} else {
		s.leases[lease.Name] = lease
	}
	e := event{s.version, watch.Event{Type: kind, Object: lease}}
	s.events = append(s.events, e)
	for w := range s.watchers {
		w.push(e)
	}
	return lease.DeepCopy()
}

func (s *store) list(opts metav1.ListOptions) (*coordinationv1.LeaseList, error) {
	selector, err := labels.Parse(opts.LabelSelector)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list := &coordinationv1.LeaseList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}}
	for _, name := range slices.Sorted(maps.Keys(s.leases)) {
		if lease := s.leases[name]; selector.Matches(labels.Set(lease.Labels)) {
			list.Items = append(list.Items, *lease.DeepCopy())
		}
	}
	return list, nil
}

func (s *store) create(lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leases[lease.Name] != nil {
		return nil, apierrors.NewAlreadyExists(leaseResource, lease.Name)
	}
	lease = lease.DeepCopy()
	lease.UID = types.UID(fmt.Sprintf("uid-%d", s.version+1))
	return s.putLocked(watch.Added, lease), nil
}

func (s *store) update(lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.leases[lease.Name]; now == nil || now.UID != lease.UID || now.ResourceVersion != lease.ResourceVersion {
		return nil, apierrors.NewConflict(leaseResource, lease.Name, errors.New("the object has been modified"))
	}
	return s.putLocked(watch.Modified, lease.DeepCopy()), nil
}

func (s *store) delete(name string, uid *types.UID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.leases[name]
	switch {
	case now == nil:
		return apierrors.NewNotFound(leaseResource, name)
	case uid != nil && *uid != now.UID:
		return apierrors.NewConflict(leaseResource, name, errors.New("precondition failed: UID"))
	}
	s.putLocked(watch.Deleted, now.DeepCopy())
	return nil
}

// edit changes a Lease as another user does.
func (s *store) edit(t *testing.T, name string, change func(*coordinationv1.Lease)) {
	t.Helper()
	s.mu.Lock()
	lease := s.leases[name]
	s.mu.Unlock()
	if lease == nil {
		t.Fatalf("there is no Lease %s", name)
	}
	lease = lease.DeepCopy()
	change(lease)
	if _, err := s.update(lease); err != nil {
		t.Fatal(err)
	}
}

// get returns a Lease, nil if it is absent.
func (s *store) get(name string) *coordinationv1.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases[name]
}

// of returns the name of the Lease of the replica with the identity.
func (s *store) of(t *testing.T, identity string) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, lease := range s.leases {
		if ptr.Deref(lease.Spec.HolderIdentity, "") == identity {
			return name
		}
	}
	t.Fatalf("%s has no Lease", identity)
	return ""
}

// A fault is the fate of one request.
type fault struct {
	before time.Duration // until the API server has it
	after  time.Duration // until the client has the response
	lost   bool          // it never arrives
	cut    bool          // its response never arrives
	err    error         // it is rejected with this error
}

// A client reaches the store through faults.
type client struct {
	*store

	mu     sync.Mutex
	faults func(verb, name string) fault // nil injects none
	down   bool
	count  map[string]int
}

func (s *store) client() *client { return &client{store: s, count: map[string]int{}} }

// partition cuts the client off, watches included, or connects it again.
func (c *client) partition(down bool) {
	c.mu.Lock()
	c.down = down
	c.mu.Unlock()
}

func (c *client) on(faults func(verb, name string) fault) {
	c.mu.Lock()
	c.faults = faults
	c.mu.Unlock()
}

// requests returns the number of requests by verb, and resets it.
func (c *client) requests() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	count := c.count
	c.count = map[string]int{}
	return count
}

func call[T any](ctx context.Context, c *client, verb, name string, do func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	c.mu.Lock()
	c.count[verb]++
	var f fault
	switch {
	case c.down:
		f = fault{lost: true}
	case c.faults != nil:
		f = c.faults(verb, name)
	}
	c.mu.Unlock()
	response := make(chan result, 1)
	c.calls.Go(func() {
		time.Sleep(f.before)
		if f.lost {
			return
		}
		r := result{err: f.err}
		if f.err == nil {
			r.value, r.err = do()
		}
		time.Sleep(f.after)
		if !f.cut {
			response <- r
		}
	})
	select {
	case r := <-response:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

func (c *client) List(ctx context.Context, opts metav1.ListOptions) (*coordinationv1.LeaseList, error) {
	return call(ctx, c, "list", "", func() (*coordinationv1.LeaseList, error) { return c.list(opts) })
}

func (c *client) Create(ctx context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	lease = lease.DeepCopy()
	return call(ctx, c, "create", lease.Name, func() (*coordinationv1.Lease, error) { return c.create(lease) })
}

func (c *client) Update(ctx context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	lease = lease.DeepCopy()
	return call(ctx, c, "update", lease.Name, func() (*coordinationv1.Lease, error) { return c.update(lease) })
}

func (c *client) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	_, err := call(ctx, c, "delete", name, func() (any, error) { return nil, c.delete(name, opts.Preconditions.UID) })
	return err
}

func (c *client) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return call(ctx, c, "watch", "", func() (watch.Interface, error) {
		selector, err := labels.Parse(opts.LabelSelector)
		if err != nil {
			return nil, err
		}
		from, err := strconv.Atoi(opts.ResourceVersion)
		if err != nil {
			return nil, err
		}
		w := &watcher{client: c, selector: selector, out: make(chan watch.Event), wake: make(chan struct{}, 1), done: make(chan struct{})}
		c.store.mu.Lock()
		defer c.store.mu.Unlock()
		first, _ := slices.BinarySearchFunc(c.events, from+1, func(e event, version int) int { return e.version - version })
		for _, e := range c.events[first:] {
			w.push(e)
		}
		c.watchers[w] = true
		c.calls.Go(w.run)
		context.AfterFunc(ctx, w.Stop) // a client that gave up leaves no watch
		return w, nil
	})
}

// A watcher delivers events in order.
type watcher struct {
	client   *client
	selector labels.Selector
	out      chan watch.Event
	wake     chan struct{}
	done     chan struct{}
	once     sync.Once

	mu    sync.Mutex
	queue []watch.Event
}

func (w *watcher) push(e event) {
	lease := e.Object.(*coordinationv1.Lease)
	if !w.selector.Matches(labels.Set(lease.Labels)) {
		return
	}
	w.mu.Lock()
	w.queue = append(w.queue, watch.Event{Type: e.Type, Object: lease})
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watcher) run() {
	defer close(w.out)
	dead := false // a connection that was cut stays silent, and skips no event
	for {
		w.mu.Lock()
		queue := w.queue
		w.queue = nil
		w.mu.Unlock()
		for _, e := range queue {
			w.client.mu.Lock()
			dead = dead || w.client.down
			w.client.mu.Unlock()
			if dead {
				continue
			}
			select {
			case w.out <- e:
			case <-w.done:
				return
			}
		}
		select {
		case <-w.wake:
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
