package ondemand_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/informer/ondemand"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestMain(m *testing.M) {
	// The second of apimachinery's error handlers spaces errors by the time of the process,
	// which is not that of a synctest bubble.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	testserver.Main(m)
}

// source is the list and watch of a fake resource. A list has one object, "first". A watch has
// all events, those from before its start too, so that none is lost.
type source struct {
	listErr error

	mu      sync.Mutex // guards the fields below
	lists   int
	version int
	events  []watch.Event
	watches []*watch.RaceFreeFakeWatcher
}

func configMap(name string, version int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: fmt.Sprint(version)}}
}

// informer returns a new informer of the resource.
func (s *source) informer() cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.lists++
			return &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.ConfigMap{*configMap("first", 1)}}, s.listErr
		},
		WatchFuncWithContext: func(_ context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			if opts.SendInitialEvents != nil {
				return nil, errors.New("not supported")
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			w := watch.NewRaceFreeFake()
			for _, e := range s.events {
				w.Action(e.Type, e.Object)
			}
			s.watches = append(s.watches, w)
			return w, nil
		},
	}, &corev1.ConfigMap{}, 0, cache.Indexers{})
}

// send sends an event to every watch.
func (s *source) send(e watch.EventType, obj *corev1.ConfigMap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, watch.Event{Type: e, Object: obj})
	for _, w := range s.watches {
		w.Action(e, obj)
	}
}

// add sends the event of a new object.
func (s *source) add(name string) {
	s.mu.Lock()
	s.version++
	version := 100 + s.version
	s.mu.Unlock()
	s.send(watch.Added, configMap(name, version))
}

// of returns Informers whose informers are of the source. The keys make no difference.
func of(s *source) *ondemand.Informers[string] {
	return &ondemand.Informers[string]{New: func(string) (cache.SharedIndexInformer, error) { return s.informer(), nil }}
}

// seen notes the names of added objects.
type seen struct {
	mu    sync.Mutex
	names []string
}

func (s *seen) OnAdd(obj any, _ bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = append(s.names, obj.(*corev1.ConfigMap).Name)
}
func (s *seen) OnUpdate(any, any) {}
func (s *seen) OnDelete(any)      {}

func (s *seen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprint(s.names)
}

// onAdd is a handler of added objects.
func onAdd(f func(name string)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) { f(obj.(*corev1.ConfigMap).Name) }}
}

// quiet drops the lines of client-go.
func quiet(t *testing.T) context.Context { return logTo(t.Context(), io.Discard) }

func logTo(ctx context.Context, w io.Writer) context.Context {
	return klog.NewContext(ctx, testlog.Text(w, 0))
}

// run runs the informers until the returned function is called, which returns Run's error.
func run[K comparable](ctx context.Context, i *ondemand.Informers[K]) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx) }()
	return sync.OnceValue(func() error { cancel(); return <-done })
}

func open[K comparable](t *testing.T, i *ondemand.Informers[K], key K, handlers ...cache.ResourceEventHandler) *ondemand.Watch {
	t.Helper()
	w, err := i.Open(key)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range handlers {
		if _, err := w.AddEventHandler(h); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// must fails the test if err is not nil.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// shutDown is cache.ShutDownEventHandler, which client-go has since 0.37. With an older client-go,
// a call of the handler can outlast it.
func shutDown(informer cache.SharedInformer, handle cache.ResourceEventHandlerRegistration) error {
	err := informer.RemoveEventHandler(handle)
	if s, ok := handle.(interface{ ShutdownChan() <-chan struct{} }); ok && err == nil {
		<-s.ShutdownChan()
	}
	return err
}
