// Package leasetest is an API server for Leases, and clients that reach it through faults. The
// tests of the packages leader and shard use it in synctest bubbles.
package leasetest

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
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"
)

// A Store holds the Leases of a namespace as the API server does: versions, UIDs, conflicts,
// preconditions, create on update, and watches from a version or from the present state.
// client-go's fake has none of them, so it cannot show two writers.
type Store struct {
	// Admit changes what is stored. Nil changes nothing.
	Admit func(*coordinationv1.Lease)

	calls sync.WaitGroup // requests that run, also those whose client gave up

	mu       sync.Mutex // guards the fields below
	leases   map[string]*coordinationv1.Lease
	version  int
	uids     int
	watchers map[*Watcher]bool
	events   []Event
}

// An Event is a stored version of a Lease, or its deletion.
type Event struct {
	watch.Event
	At      time.Time
	version int
}

// Lease returns the Lease of the event.
func (e Event) Lease() *coordinationv1.Lease { return e.Object.(*coordinationv1.Lease) }

var resource = coordinationv1.Resource("leases")

// New returns an empty Store.
func New() *Store {
	return &Store{leases: map[string]*coordinationv1.Lease{}, watchers: map[*Watcher]bool{}}
}

// Wait waits for the requests and watches that run.
func (s *Store) Wait() { s.calls.Wait() }

func (s *Store) putLocked(kind watch.EventType, lease *coordinationv1.Lease) *coordinationv1.Lease {
	if s.Admit != nil && kind != watch.Deleted {
		s.Admit(lease)
	}
	s.version++
	lease.ResourceVersion = strconv.Itoa(s.version)
	if kind == watch.Deleted {
		delete(s.leases, lease.Name)
	} else {
		s.leases[lease.Name] = lease
	}
	e := Event{watch.Event{Type: kind, Object: lease}, time.Now(), s.version}
	s.events = append(s.events, e)
	for w := range s.watchers {
		w.pushLease(e)
	}
	return lease.DeepCopy()
}

// Get returns a Lease.
func (s *Store) Get(name string) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lease := s.leases[name]; lease != nil {
		return lease.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(resource, name)
}

// List returns the Leases with the labels of opts.
func (s *Store) List(opts metav1.ListOptions) (*coordinationv1.LeaseList, error) {
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

// Len returns the number of Leases.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.leases)
}

// Create stores a Lease with a new UID.
func (s *Store) Create(lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.createLocked(lease)
}

func (s *Store) createLocked(lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	if s.leases[lease.Name] != nil {
		return nil, apierrors.NewAlreadyExists(resource, lease.Name)
	}
	s.uids++
	lease = lease.DeepCopy()
	lease.UID = types.UID(fmt.Sprintf("uid-%d", s.uids))
	return s.putLocked(watch.Added, lease), nil
}

// Update stores a Lease if it has the present UID and version. A Lease without a UID is created
// if there is none of its name.
func (s *Store) Update(lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch now := s.leases[lease.Name]; {
	case now == nil && lease.UID == "":
		return s.createLocked(lease)
	case now == nil || now.UID != lease.UID || now.ResourceVersion != lease.ResourceVersion:
		return nil, apierrors.NewConflict(resource, lease.Name, errors.New("the object has been modified"))
	}
	return s.putLocked(watch.Modified, lease.DeepCopy()), nil
}

// Edit changes a Lease as another user does: by a read and an update.
func (s *Store) Edit(t *testing.T, name string, change func(*coordinationv1.Lease)) {
	t.Helper()
	lease, err := s.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	change(lease)
	if _, err := s.Update(lease); err != nil {
		t.Fatal(err)
	}
}

// Delete deletes a Lease, if uid is not nil only the one with that UID.
func (s *Store) Delete(name string, uid *types.UID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch now := s.leases[name]; {
	case now == nil:
		return apierrors.NewNotFound(resource, name)
	case uid != nil && *uid != now.UID:
		return apierrors.NewConflict(resource, name, errors.New("precondition failed: UID"))
	default:
		s.putLocked(watch.Deleted, now.DeepCopy())
		return nil
	}
}

// Backup returns a function that restores the present Leases and ends all watches. The version of
// the Store is then bump higher than the present one, as after etcdutl snapshot restore
// --bump-revision; the Leases keep theirs. UIDs are not used twice.
func (s *Store) Backup() (restore func(bump int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	version, leases := s.version, maps.Clone(s.leases)
	return func(bump int) {
		s.mu.Lock()
		s.version, s.leases, s.events = version+bump, maps.Clone(leases), nil
		s.mu.Unlock()
		for _, w := range s.Watches() {
			w.Stop()
		}
	}
}

// Events returns the events of all Leases in their order.
func (s *Store) Events() []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

// Watches returns the watches that have not ended.
func (s *Store) Watches() []*Watcher {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.watchers))
}

// A Fault is the fate of one request.
type Fault struct {
	Before time.Duration // until the API server has it
	After  time.Duration // until the client has the response
	Lost   bool          // it never arrives
	Cut    bool          // its response never arrives
	Err    error         // it is rejected with this error
}

// A Client reaches the Store through faults. It is a whole LeaseInterface, so that client-go's
// elector can use it, but the embedded methods panic.
type Client struct {
	coordinationv1client.LeaseInterface

	// BeforeSend rejects a request before it is sent. Nil rejects none.
	BeforeSend func(ctx context.Context, verb string) error

	store    *Store
	faulting sync.Mutex // held while faults runs, so that it needs no lock of its own

	mu     sync.Mutex // guards the fields below
	faults func(verb, name string) Fault
	down   bool
	delay  time.Duration // of the events of watches
	count  map[string]int
}

// Client returns a new client.
func (s *Store) Client() *Client { return &Client{store: s, count: map[string]int{}} }

// Leases returns the client itself.
func (c *Client) Leases(string) coordinationv1client.LeaseInterface { return c }

// Partition cuts the client off, or connects it again. A watch that had an event meanwhile
// stays silent.
func (c *Client) Partition(down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = down
}

func (c *Client) isDown() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.down
}

// DelayWatches delays the events of watches from now on.
func (c *Client) DelayWatches(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delay = d
}

// On injects the faults of the requests from now on. The name is "" for a list or a watch. Nil
// injects none.
func (c *Client) On(faults func(verb, name string) Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = faults
}

// Calls returns the number of requests with the verb since the last Requests.
func (c *Client) Calls(verb string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count[verb]
}

// Requests returns the number of requests by verb, and resets it.
func (c *Client) Requests() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	count := c.count
	c.count = map[string]int{}
	return count
}

func (c *Client) fault(verb, name string) Fault {
	c.mu.Lock()
	c.count[verb]++
	faults, down := c.faults, c.down
	c.mu.Unlock()
	switch {
	case down:
		return Fault{Lost: true}
	case faults == nil:
		return Fault{}
	}
	c.faulting.Lock()
	defer c.faulting.Unlock()
	return faults(verb, name)
}

func call[T any](ctx context.Context, c *Client, verb, name string, do func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	if c.BeforeSend != nil {
		if err := c.BeforeSend(ctx, verb); err != nil {
			return none, err
		}
	}
	f := c.fault(verb, name)
	response := make(chan result, 1)
	c.store.calls.Go(func() {
		time.Sleep(f.Before)
		if f.Lost {
			return
		}
		r := result{err: f.Err}
		if f.Err == nil {
			r.value, r.err = do()
		}
		time.Sleep(f.After)
		if !f.Cut {
			response <- r
		}
	})
	select {
	case r := <-response:
		return r.value, r.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// Get returns a Lease.
func (c *Client) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	return call(ctx, c, "get", name, func() (*coordinationv1.Lease, error) { return c.store.Get(name) })
}

// List returns the Leases with the labels of opts.
func (c *Client) List(ctx context.Context, opts metav1.ListOptions) (*coordinationv1.LeaseList, error) {
	return call(ctx, c, "list", "", func() (*coordinationv1.LeaseList, error) { return c.store.List(opts) })
}

// Create creates a Lease.
func (c *Client) Create(ctx context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	lease = lease.DeepCopy()
	return call(ctx, c, "create", lease.Name, func() (*coordinationv1.Lease, error) { return c.store.Create(lease) })
}

// Update updates a Lease.
func (c *Client) Update(ctx context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	lease = lease.DeepCopy()
	return call(ctx, c, "update", lease.Name, func() (*coordinationv1.Lease, error) { return c.store.Update(lease) })
}

// Delete deletes a Lease, if opts have a precondition only the one with that UID.
func (c *Client) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	_, err := call(ctx, c, "delete", name, func() (any, error) {
		return nil, c.store.Delete(name, ptr.Deref(opts.Preconditions, metav1.Preconditions{}).UID)
	})
	return err
}

// Watch watches the Leases with the labels and the name of opts, from their version or, without
// one, from the present state.
func (c *Client) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return call(ctx, c, "watch", "", func() (watch.Interface, error) {
		byLabels, err := labels.Parse(opts.LabelSelector)
		if err != nil {
			return nil, err
		}
		byName, err := fields.ParseSelector(opts.FieldSelector)
		if err != nil {
			return nil, err
		}
		w := &Watcher{Client: c, labels: byLabels, fields: byName, out: make(chan watch.Event), wake: make(chan struct{}, 1), done: make(chan struct{})}
		s := c.store
		s.mu.Lock()
		defer s.mu.Unlock()
		if opts.ResourceVersion == "" {
			for _, name := range slices.Sorted(maps.Keys(s.leases)) {
				w.pushLease(Event{Event: watch.Event{Type: watch.Added, Object: s.leases[name]}})
			}
		} else {
			from, err := strconv.Atoi(opts.ResourceVersion)
			if err != nil {
				return nil, err
			}
			first, _ := slices.BinarySearchFunc(s.events, from+1, func(e Event, version int) int { return e.version - version })
			for _, e := range s.events[first:] {
				w.pushLease(e)
			}
		}
		s.watchers[w] = true
		s.calls.Go(w.run)
		context.AfterFunc(ctx, w.Stop) // a client that gave up leaves no watch
		return w, nil
	})
}

// A Watcher delivers the events of a watch in order, each after the delay of the client.
type Watcher struct {
	Client *Client

	labels labels.Selector
	fields fields.Selector
	out    chan watch.Event
	wake   chan struct{}
	done   chan struct{}
	once   sync.Once

	mu    sync.Mutex // guards queue
	queue []dueEvent
}

type dueEvent struct {
	watch.Event
	due time.Time
}

func (w *Watcher) pushLease(e Event) {
	lease := e.Lease()
	if w.labels.Matches(labels.Set(lease.Labels)) && w.fields.Matches(fields.Set{metav1.ObjectNameField: lease.Name}) {
		w.Push(watch.Event{Type: e.Type, Object: lease.DeepCopy()})
	}
}

// Push sends an event of any content.
func (w *Watcher) Push(e watch.Event) {
	w.Client.mu.Lock()
	delay := w.Client.delay
	w.Client.mu.Unlock()
	w.mu.Lock()
	w.queue = append(w.queue, dueEvent{e, time.Now().Add(delay)})
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *Watcher) run() {
	defer close(w.out)
	dead := false // a connection that was cut stays silent, and skips no event
	for {
		w.mu.Lock()
		queue := w.queue
		w.queue = nil
		w.mu.Unlock()
		for _, e := range queue {
			// No timer without a delay: see docs/synctest-race.md.
			if delay := time.Until(e.due); delay > 0 {
				select {
				case <-time.After(delay):
				case <-w.done:
					return
				}
			}
			if dead = dead || w.Client.isDown(); dead {
				continue
			}
			select {
			case w.out <- e.Event:
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

// ResultChan returns the events.
func (w *Watcher) ResultChan() <-chan watch.Event { return w.out }

// Stop ends the watch.
func (w *Watcher) Stop() {
	w.once.Do(func() {
		w.Client.store.mu.Lock()
		delete(w.Client.store.watchers, w)
		w.Client.store.mu.Unlock()
		close(w.done)
	})
}
