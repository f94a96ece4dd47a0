package recorder_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/recorder"
)

var (
	eventsResource  = schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
	errNoConnection = errors.New("connection refused")
)

// eventStore stands in for the API server: it keeps Events as a server would and
// fails as fail says, which is called with the number of the request, from 1.
type eventStore struct {
	mu     sync.Mutex
	events map[string]*eventsv1.Event // by namespace and name
	order  []string
	times  []time.Time                                      // of all requests
	verbs  []string                                         // of all requests
	fail   func(n int, verb string) (applied bool, _ error) // nil for never
	hang   bool                                             // every request, until its context is done
}

func (e *eventStore) client(namespace string) recorder.Client {
	return eventClient{store: e, namespace: namespace}
}

type eventClient struct {
	store     *eventStore
	namespace string
}

func (c eventClient) Create(ctx context.Context, event *eventsv1.Event, _ metav1.CreateOptions) (*eventsv1.Event, error) {
	return c.store.request(ctx, "create", func(e *eventStore) error {
		key := c.namespace + "/" + event.Name
		if event.Namespace != c.namespace {
			return fmt.Errorf("namespace %q given to the client of %q", event.Namespace, c.namespace)
		}
		if e.events[key] != nil {
			return apierrors.NewAlreadyExists(eventsResource, event.Name)
		}
		e.events[key] = event
		e.order = append(e.order, key)
		return nil
	})
}

func (c eventClient) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*eventsv1.Event, error) {
	return c.store.request(ctx, "patch", func(e *eventStore) error {
		event := e.events[c.namespace+"/"+name]
		if event == nil {
			return apierrors.NewNotFound(eventsResource, name)
		}
		if pt != types.MergePatchType {
			return fmt.Errorf("patch type %s", pt)
		}
		var patch struct{ Series *eventsv1.EventSeries }
		if err := json.Unmarshal(data, &patch); err != nil {
			return err
		}
		event.Series = patch.Series
		return nil
	})
}

func (e *eventStore) request(ctx context.Context, verb string, do func(*eventStore) error) (*eventsv1.Event, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.times = append(e.times, time.Now())
	e.verbs = append(e.verbs, verb)
	if e.events == nil {
		e.events = map[string]*eventsv1.Event{}
	}
	if e.hang {
		e.mu.Unlock()
		<-ctx.Done()
		e.mu.Lock()
		return nil, ctx.Err()
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if e.fail != nil {
		if applied, err := e.fail(len(e.verbs), verb); err != nil {
			if applied {
				_ = do(e)
			}
			return nil, err
		}
	}
	return &eventsv1.Event{}, do(e)
}

// list returns the Events in the order of their creation.
func (e *eventStore) list() []*eventsv1.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []*eventsv1.Event
	for _, key := range e.order {
		if event := e.events[key]; event != nil {
			all = append(all, event)
		}
	}
	return all
}

func (e *eventStore) requests() (verbs []string, times []time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.verbs...), append([]time.Time(nil), e.times...)
}

// observed is how many occurrences the Events speak of.
func (e *eventStore) observed() (n uint64) {
	for _, event := range e.list() {
		if event.Series == nil {
			n++
			continue
		}
		n += uint64(event.Series.Count)
	}
	return n
}

func configMapRef(name string) corev1.ObjectReference {
	return recorder.Reference(&metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "7"}, configMapKind)
}

// say records an event that differs from others by its object and note only.
func say(r *recorder.Recorder, object, note string) {
	r.Event(configMapRef(object), corev1.ObjectReference{}, corev1.EventTypeNormal, "Copied", "Copy", note)
}

// runEvents runs r. stop ends it and returns how long that took.
func runEvents(t *testing.T, ctx context.Context, r *recorder.Recorder) (stop func() time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return func() time.Duration {
		t.Helper()
		start := time.Now()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		return time.Since(start)
	}
}

func newRecorder(e *eventStore) *recorder.Recorder {
	return &recorder.Recorder{Controller: "example.com/copier", Client: e.client}
}

func total(c recorder.Counts) uint64 {
	n := c.Written + c.Deduplicated + c.Held
	for _, d := range c.Dropped {
		n += d
	}
	return n
}

func wantCounts(t *testing.T, r *recorder.Recorder, want recorder.Counts) {
	t.Helper()
	if want.Dropped == nil {
		want.Dropped = map[string]uint64{}
	}
	if diff := cmp.Diff(want, r.Counts()); diff != "" {
		t.Errorf("Counts (-want +got):\n%s", diff)
	}
}

var configMapKind = corev1.SchemeGroupVersion.WithKind("ConfigMap")

func TestMain(m *testing.M) {
	testlog.Install(testlog.Silent()) // tests that check the log bring their own
	testserver.Main(m)
}
