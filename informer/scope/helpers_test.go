package scope_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/informer/scope"
	"github.com/controllerkit/controllerkit/internal/alive"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestMain(m *testing.M) {
	// The second of apimachinery's error handlers spaces errors by the time of the process,
	// which is not that of a synctest bubble.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	testserver.Main(m)
}

// server lists and watches ConfigMaps in memory, with resource versions, selectors and
// delays.
type server struct {
	mu        sync.Mutex           // guards the fields below
	delay     func() time.Duration // of a list and of an event; nil means none
	version   int
	objects   map[string]*corev1.ConfigMap // by namespace/name
	history   []change
	watches   map[*stream]struct{}
	lists     map[scope.Part]int
	forbidden map[string]bool // namespaces
	broken    map[string]bool // namespaces whose lists fail otherwise
	stale     bool            // lists are of an old cache: they lack the last change
}

// change is a write: old or new may be nil.
type change struct {
	version  int
	old, new *corev1.ConfigMap
}

func newServer() *server {
	return &server{version: 10, objects: map[string]*corev1.ConfigMap{}, watches: map[*stream]struct{}{}, lists: map[scope.Part]int{}, forbidden: map[string]bool{}}
}

// stream is a watch. Its events wait in a queue.
type stream struct {
	part   scope.Part
	result chan watch.Event
	stop   chan struct{}
	end    func()
	wake   chan struct{}
	queue  []watch.Event // guarded by the server
}

func (s *stream) Stop()                          { s.end() }
func (s *stream) ResultChan() <-chan watch.Event { return s.result }

func matches(p scope.Part, o *corev1.ConfigMap) bool {
	if o == nil || p.Namespace != "" && p.Namespace != o.Namespace {
		return false
	}
	l, err := labels.Parse(p.LabelSelector)
	return err == nil && l.Matches(labels.Set(o.Labels))
}

// see queues the event of a change for a watch. The lock is held.
func (s *stream) see(c change) {
	was, is := matches(s.part, c.old), matches(s.part, c.new)
	var e watch.Event
	switch {
	case was && is:
		e = watch.Event{Type: watch.Modified, Object: c.new.DeepCopy()}
	case is:
		e = watch.Event{Type: watch.Added, Object: c.new.DeepCopy()}
	case was:
		gone := c.old.DeepCopy()
		gone.ResourceVersion = fmt.Sprint(c.version)
		e = watch.Event{Type: watch.Deleted, Object: gone}
	default:
		return
	}
	s.queue = append(s.queue, e)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// bookmark sends the server's version to all watches.
func (s *server) bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		w.queue = append(w.queue, watch.Event{Type: watch.Bookmark, Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: fmt.Sprint(s.version)}}})
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// put writes an object, or deletes it if label is "".
func (s *server) put(namespace, name, label string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := namespace + "/" + name
	c := change{old: s.objects[key]}
	if label == "" {
		if c.old == nil {
			return
		}
		delete(s.objects, key)
	} else {
		uid := types.UID(fmt.Sprint("uid-", s.version+1))
		if c.old != nil {
			uid = c.old.UID
		}
		c.new = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid, ResourceVersion: fmt.Sprint(s.version + 1), Labels: map[string]string{"app": label}}}
		s.objects[key] = c.new
	}
	s.version++
	c.version = s.version
	s.history = append(s.history, c)
	for w := range s.watches {
		w.see(c)
	}
}

// expire ends the watches of a namespace with 410, so that their informers list again.
func (s *server) expire(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		if w.part.Namespace == namespace {
			status := apierrors.NewResourceExpired("expired").ErrStatus
			w.queue = append(w.queue, watch.Event{Type: watch.Error, Object: &status})
			select {
			case w.wake <- struct{}{}:
			default:
			}
		}
	}
}

func (s *server) setDelay(delay func() time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay = delay
}

// forbid makes lists of a namespace fail, or allows them again.
func (s *server) forbid(namespace string, forbidden bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forbidden[namespace] = forbidden
}

func (s *server) pause() {
	s.mu.Lock()
	delay := s.delay
	s.mu.Unlock()
	if delay != nil {
		time.Sleep(delay())
	}
}

func (s *server) list(p scope.Part) (runtime.Object, error) {
	s.pause()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists[p]++
	if s.forbidden[p.Namespace] {
		return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "", errors.New("no Role"))
	}
	if s.broken[p.Namespace] {
		return nil, errors.New("broken")
	}
	version, objects := s.version, maps.Clone(s.objects)
	if n := len(s.history); s.stale && n > 0 {
		c := s.history[n-1]
		version--
		if c.old != nil {
			objects[c.old.Namespace+"/"+c.old.Name] = c.old
		} else {
			delete(objects, c.new.Namespace+"/"+c.new.Name)
		}
	}
	l := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(version)}}
	for _, o := range objects {
		if matches(p, o) {
			l.Items = append(l.Items, *o.DeepCopy())
		}
	}
	return l, nil
}

func (s *server) watch(p scope.Part, from string) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &stream{part: p, result: make(chan watch.Event), stop: make(chan struct{}), wake: make(chan struct{}, 1)}
	w.end = sync.OnceFunc(func() {
		close(w.stop)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watches, w)
	})
	s.watches[w] = struct{}{}
	since, _ := slices.BinarySearchFunc(s.history, number(from)+1, func(c change, version int) int { return c.version - version })
	for _, c := range s.history[since:] {
		w.see(c)
	}
	go func() {
		defer close(w.result)
		for {
			select {
			case <-w.stop:
				return
			case <-w.wake:
			}
			s.pause()
			s.mu.Lock()
			events := w.queue
			w.queue = nil
			s.mu.Unlock()
			for _, e := range events {
				select {
				case <-w.stop:
					return
				case w.result <- e:
				}
			}
		}
	}()
	return w, nil
}

// informer returns an informer of a part of the server.
func (s *server) informer(p scope.Part) (cache.SharedIndexInformer, error) {
	return s.informerOf(p, 0)
}

// informerOf is informer with lists that take longer.
func (s *server) informerOf(p scope.Part, longer time.Duration) (cache.SharedIndexInformer, error) {
	return cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			time.Sleep(longer)
			list, err := s.list(p)
			observe(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			if opts.SendInitialEvents != nil {
				return nil, errors.New("not supported")
			}
			observe(ctx, nil)
			return s.watch(p, opts.ResourceVersion)
		},
	}, &corev1.ConfigMap{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}), nil
}

// observe notes a request and the data of its response, as the transport of
// informer.EndSilentWatches does.
func observe(ctx context.Context, err error) {
	i := alive.From(ctx)
	if i == nil {
		return
	}
	end := i.Begin(alive.Watch)
	if err != nil {
		end()
		return
	}
	body := i.Body(io.NopCloser(strings.NewReader("data")), alive.Watch, end)
	_, _ = io.Copy(io.Discard, body)
	_ = body.Close()
}

// selected returns the versions of the server's objects that a selection has, by key.
func (s *server) selected(sel scope.Selection) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := map[string]string{}
	for _, n := range sel.Namespaces {
		for key, o := range s.objects {
			if matches(scope.Part{Namespace: n, LabelSelector: sel.LabelSelector}, o) {
				want[key] = o.ResourceVersion
			}
		}
	}
	return want
}

// listed returns the versions of the objects of a store, by key.
func listed(store cache.Store) map[string]string {
	got := map[string]string{}
	for _, o := range store.List() {
		c := o.(*corev1.ConfigMap)
		got[c.Namespace+"/"+c.Name] = c.ResourceVersion
	}
	return got
}

// journal is a handler that checks that each event follows from those before.
type journal struct {
	mu      sync.Mutex
	known   map[string]string // version by key
	wrong   []string
	events  []string
	changed chan struct{} // closed by the next event; nil if nobody waits
}

func newJournal() *journal { return &journal{known: map[string]string{}} }

// next returns what the handler knows, and a channel that the next event closes.
func (j *journal) next() (known map[string]string, changed <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.changed == nil {
		j.changed = make(chan struct{})
	}
	return maps.Clone(j.known), j.changed
}

func number(version string) (n int) { _, _ = fmt.Sscan(version, &n); return n }

func (j *journal) note(kind string, old, obj *corev1.ConfigMap, fault func(known string, is bool) bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.changed != nil {
		close(j.changed)
		j.changed = nil
	}
	o := obj
	if o == nil {
		o = old
	}
	key := o.Namespace + "/" + o.Name
	known, is := j.known[key]
	line := kind + " " + key + " " + o.ResourceVersion
	j.events = append(j.events, line)
	if fault(known, is) {
		j.wrong = append(j.wrong, fmt.Sprintf("%s, but the handler knew version %q", line, known))
	}
	if obj == nil {
		delete(j.known, key)
	} else {
		j.known[key] = o.ResourceVersion
	}
}

func (j *journal) OnAdd(obj any, _ bool) {
	o := obj.(*corev1.ConfigMap)
	j.note("add", nil, o, func(_ string, is bool) bool { return is })
}

func (j *journal) OnUpdate(old, obj any) {
	a, b := old.(*corev1.ConfigMap), obj.(*corev1.ConfigMap)
	j.note("update", a, b, func(known string, is bool) bool {
		return !is || a.ResourceVersion != known || number(b.ResourceVersion) <= number(known)
	})
}

func (j *journal) OnDelete(obj any) {
	if t, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = t.Obj
	}
	o := obj.(*corev1.ConfigMap)
	j.note("delete", o, nil, func(known string, is bool) bool { return !is || number(o.ResourceVersion) < number(known) })
}

// take returns the events since the last call, sorted, and the faults.
func (j *journal) take() (events, wrong []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	events, wrong = j.events, j.wrong
	j.events, j.wrong = nil, nil
	slices.Sort(events)
	return events, wrong
}

func (j *journal) state() map[string]string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return maps.Clone(j.known)
}

// quiet drops the lines of client-go.
func quiet(t *testing.T) context.Context { return logTo(t.Context(), io.Discard) }

func logTo(ctx context.Context, w io.Writer) context.Context {
	return klog.NewContext(ctx, testlog.Text(w, 0))
}

// run runs scopes until the returned function is called, which returns when they have stopped.
func run(t *testing.T, ctx context.Context, scopes ...*scope.Informer) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	for _, s := range scopes {
		wait.Go(func() { s.RunWithContext(ctx) })
	}
	stop = sync.OnceFunc(func() { cancel(); wait.Wait() })
	t.Cleanup(stop)
	return stop
}

func handle(t *testing.T, s *scope.Informer, h cache.ResourceEventHandler) cache.ResourceEventHandlerRegistration {
	t.Helper()
	r, err := s.AddEventHandler(h)
	must(t, err)
	return r
}

// must fails the test if err is not nil.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// setup runs a scope of a server.
func setup(t *testing.T) (*server, *scope.Informer, func()) {
	t.Helper()
	s := newServer()
	objects := scope.New(s.informer)
	return s, objects, run(t, quiet(t), objects)
}

func in(namespaces ...string) scope.Selection { return scope.Selection{Namespaces: namespaces} }

// wantEvents compares what a journal got since the last time.
func wantEvents(t *testing.T, j *journal, want ...string) {
	t.Helper()
	synctest.Wait()
	got, wrong := j.take()
	slices.Sort(want)
	if !slices.Equal(got, want) || len(wrong) > 0 {
		t.Errorf("events %q, want %q; wrong: %q", got, want, wrong)
	}
}

// shutDown is cache.ShutDownEventHandler, which client-go has since 0.37.
func shutDown(informer cache.SharedInformer, handle cache.ResourceEventHandlerRegistration) error {
	err := informer.RemoveEventHandler(handle)
	if s, ok := handle.(interface{ ShutdownChan() <-chan struct{} }); ok && err == nil {
		<-s.ShutdownChan()
	}
	return err
}
