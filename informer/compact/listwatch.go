package compact

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/controllerkit/controllerkit/informer/compact/internal/encoded"
	"github.com/controllerkit/controllerkit/informer/compact/internal/responses"
)

// source lists and watches a resource without decoding objects.
type source struct {
	client    rest.Interface
	resource  string
	namespace string
	protobuf  bool // T has an encoding in protobuf
	reader    *responses.Reader
}

func (s source) listWatch(tweak func(*metav1.ListOptions)) cache.ListerWatcher {
	if tweak == nil {
		tweak = func(*metav1.ListOptions) {}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			tweak(&options)
			return s.list(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			tweak(&options)
			return s.watch(ctx, options)
		},
	}
}

func (s source) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	body, err := s.request(options).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	list, err := s.reader.List(body)
	if err != nil {
		return nil, err // not a nil list in an interface
	}
	return list, nil
}

func (s source) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	body, err := s.request(options).Throttle(flowcontrol.NewFakeAlwaysRateLimiter()).Stream(ctx) // as in client-go, a watch has no rate limit
	switch {
	case err != nil && (utilnet.IsProbableEOF(err) || utilnet.IsTimeout(err)):
		return watch.NewEmptyWatch(), nil // as client-go does: the reflector tries again
	case err != nil:
		return nil, err
	}
	return s.events(body), nil
}

func (s source) events(body io.ReadCloser) watch.Interface {
	return watch.NewStreamWatcher(s.reader.Events(body), apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "ClientWatchDecoding"))
}

// Media types that are asked for. An API server without protobuf for the resource sends JSON.
const (
	onlyJSON      = runtime.ContentTypeJSON
	protobufFirst = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
)

func (s source) request(options metav1.ListOptions) *rest.Request {
	r := s.client.Get().Resource(s.resource).
		SpecificallyVersionedParams(&options, metav1.ParameterCodec, schema.GroupVersion{Version: "v1"})
	if s.namespace != "" {
		r.Namespace(s.namespace)
	}
	if options.TimeoutSeconds != nil {
		r.Timeout(time.Duration(*options.TimeoutSeconds) * time.Second)
	}
	if s.protobuf {
		return r.SetHeader("Accept", protobufFirst)
	}
	return r.SetHeader("Accept", onlyJSON)
}

// encoder encodes the object of an event.
type encoder func(event watch.EventType, obj runtime.Object) (*encoded.Object, error)

// over encodes what a ListerWatcher lists and watches.
func over(lw cache.ListerWatcher, encode encoder) cache.ListerWatcher {
	from := cache.ToListerWatcherWithContext(lw)
	encoding := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := from.ListWithContext(ctx, options)
			if err != nil {
				return nil, err
			}
			return encodeList(list, encode)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			w, err := from.WatchWithContext(ctx, options)
			if err != nil {
				return nil, err
			}
			return newEncodingWatch(w, encode), nil
		},
	}
	return cache.ToListWatcherWithWatchListSemantics(encoding, lw)
}

// encodingWatch encodes the objects of a watch. watch.Filter would leave a goroutine if it is stopped
// while an event waits.
type encodingWatch struct {
	from   watch.Interface
	result chan watch.Event
	done   chan struct{}
	stop   func()
}

func newEncodingWatch(from watch.Interface, encode encoder) *encodingWatch {
	w := &encodingWatch{from: from, result: make(chan watch.Event), done: make(chan struct{})}
	w.stop = sync.OnceFunc(func() { close(w.done) })
	go w.run(encode)
	return w
}

// Stop implements watch.Interface.
func (w *encodingWatch) Stop() { w.stop() }

// ResultChan implements watch.Interface.
func (w *encodingWatch) ResultChan() <-chan watch.Event { return w.result }

func (w *encodingWatch) run(encode encoder) {
	defer close(w.result)
	defer w.from.Stop()
	for {
		select {
		case e, ok := <-w.from.ResultChan():
			if !ok {
				return
			}
			if e.Type != watch.Error {
				if o, err := encode(e.Type, e.Object); err != nil {
					e = watch.Event{Type: watch.Error, Object: statusOf(err)}
				} else {
					e.Object = o
				}
			}
			select {
			case w.result <- e:
			case <-w.done:
				return
			}
		case <-w.done:
			return
		}
	}
}

func encodeList(from runtime.Object, encode encoder) (runtime.Object, error) {
	list := &responses.List{}
	if m, err := meta.ListAccessor(from); err == nil {
		list.ListMeta = metav1.ListMeta{ResourceVersion: m.GetResourceVersion(), Continue: m.GetContinue(), RemainingItemCount: m.GetRemainingItemCount()}
	}
	err := meta.EachListItem(from, func(obj runtime.Object) error {
		o, err := encode(watch.Added, obj)
		if err == nil {
			list.Items = append(list.Items, o)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// statusOf returns an error as the object of an event.
func statusOf(err error) *metav1.Status {
	return &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Code: http.StatusInternalServerError, Message: err.Error()}
}
