package informer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	corev1informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/malformed"
)

// streams is an API server of ConfigMaps, one of which may not fit the Go type.
type streams struct {
	initial bool // whether it streams lists

	mu      sync.Mutex
	bad     bool
	changed chan struct{} // closed by the next change
}

func newStreams(initial bool) *streams {
	return &streams{initial: initial, changed: make(chan struct{})}
}

const badMap = `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"namespace":"shop","name":"bad","resourceVersion":"7"},"data":["x"]}`

func (s *streams) set(bad bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bad = bad
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *streams) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []string{`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"namespace":"a","name":"good","resourceVersion":"6"}}`}
	if s.bad {
		items = append(items, badMap)
	}
	code, body := http.StatusOK, io.NopCloser(strings.NewReader(`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"8"},"items":[`+strings.Join(items, ",")+`]}`))
	query := req.URL.Query()
	switch {
	case query.Has("sendInitialEvents") && !s.initial:
		code, body = http.StatusUnprocessableEntity, io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`))
	case query.Has("watch"):
		var first strings.Builder
		if query.Has("sendInitialEvents") {
			for _, item := range items {
				fmt.Fprintf(&first, `{"type":"ADDED","object":%s}`+"\n", item)
			}
			first.WriteString(`{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"8","annotations":{"k8s.io/initial-events-end":"true"}}}}` + "\n")
		}
		body = &mapStream{Reader: strings.NewReader(first.String()), ctx: req.Context(), changed: s.changed}
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Request: req}, nil
}

// mapStream is the body of a watch: first, then a malformed object when the server changes.
type mapStream struct {
	*strings.Reader
	ctx     context.Context
	changed chan struct{}
}

func (s *mapStream) Read(p []byte) (int, error) {
	if s.Len() == 0 {
		select {
		case <-s.changed:
			s.Reader = strings.NewReader(`{"type":"ADDED","object":` + badMap + "}\n")
			s.changed = nil
		case <-s.ctx.Done():
			return 0, s.ctx.Err()
		}
	}
	return s.Reader.Read(p)
}

func (s *mapStream) Close() error { return nil }

// misfits is a Metrics that has the functions of InformerMalformed.
type misfits struct {
	*noted
	of map[string]func() int
}

func (m misfits) InformerMalformed(name string, malformed func() int) { m.of[name] = malformed }

// TestUndecodable: while an object that does not fit the Go type hides all events, Ready, Check, the
// metric and one line of log show it from the third list, and LastEvents stays. All end with the
// object.
func TestUndecodable(t *testing.T) {
	for _, initial := range []bool{true, false} {
		t.Run(fmt.Sprintf("streamed list %v", initial), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newStreams(initial)
				config := &rest.Config{Host: "http://server", Transport: server, QPS: -1}
				config.Wrap(informer.EndSilentWatches(-1))
				inf := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0).Core().V1().ConfigMaps().Informer()
				metrics := misfits{&noted{calls: map[string]int{}}, map[string]func() int{}}
				set := informer.Set{Metrics: metrics, WatchErrorHandler: func(context.Context, *cache.Reflector, error) {}}
				set.Add("configmaps", inf)
				lines := 0
				ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), funcr.New(func(_, line string) {
					if strings.Contains(line, "An informer gets no events") {
						lines++
					}
				}, funcr.Options{})))
				done := make(chan error, 1)
				go func() { done <- set.Run(ctx) }()
				<-set.HasSyncedChecker().Done()
				synctest.Wait()
				check := func(when string, blind bool) {
					t.Helper()
					object := "configmaps"
					if blind && initial {
						object = " because of shop/bad: "
					}
					for name, err := range map[string]error{"Ready": set.Ready(), "Check": set.Check()} {
						if (err != nil) != blind || blind && (!strings.Contains(err.Error(), object) || !strings.HasPrefix(err.Error(), "informer: ") || strings.Count(err.Error(), "informer: ") != 1) {
							t.Errorf("%s: %s = %v", when, name, err)
						}
					}
					if blind != errors.Is(set.Ready(), informer.ErrNotSynced) || blind != (metrics.of["configmaps"]() == 1) {
						t.Errorf("%s: Ready %v, %d malformed objects", when, set.Ready(), metrics.of["configmaps"]())
					}
				}
				check("at first", false)
				if last := set.LastEvents()["configmaps"]; last.IsZero() {
					t.Error("no data at first")
				}

				time.Sleep(time.Hour)
				server.set(true)
				began := time.Now()
				time.Sleep(time.Hour)
				check("after an hour", true)
				if last := set.LastEvents()["configmaps"]; last.After(began) || lines != 1 {
					t.Errorf("the last event is from %v after the object, with %d lines of log", last.Sub(began), lines)
				}
				server.set(false)
				time.Sleep(5 * time.Minute)
				check("after its end", false)
				if last := set.LastEvents()["configmaps"]; !last.After(began) {
					t.Errorf("the last event is %v before", began.Sub(last))
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestUndecodableAtFirst: the error of a Set that does not sync names the object.
func TestUndecodableAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newStreams(true)
		server.set(true)
		set := setOf(server, time.Minute)
		err := set.Run(quiet(t))
		if !errors.Is(err, informer.ErrNotSynced) || !strings.Contains(err.Error(), `"configmaps" gets no events: its last `) || !strings.Contains(err.Error(), " because of shop/bad: ") {
			t.Errorf("Run() = %v", err)
		}
	})
}

// mapInformer has an informer with malformed objects in the form of Index.
type mapInformer struct {
	corev1informers.ConfigMapInformer
	inf cache.SharedIndexInformer
}

func (m mapInformer) Informer() cache.SharedIndexInformer { return m.inf }

// TestMalformedInCache: an Audit takes a malformed object of a cache for present, and a lookup
// returns an error beside the other objects.
func TestMalformedInCache(t *testing.T) {
	inner := cache.NewSharedIndexInformer(&cache.ListWatch{}, nil, 0, cache.Indexers{malformed.Index: malformed.Values})
	inf := malformed.New(inner, "*v1.ConfigMap")
	lookup, err := informer.Index(mapInformer{inf: inf}, "name", func(o *corev1.ConfigMap) []string { return []string{o.Name} })
	if err != nil {
		t.Fatal(err)
	}
	if err := inf.GetStore().Add(configMap("a")); err != nil {
		t.Fatal(err)
	}
	if got, err := lookup("a"); len(got) != 1 || err != nil {
		t.Errorf("found %v, %v", got, err)
	}
	reason := errors.New("crd: Website default/bad")
	bad := &malformed.Object{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "bad", UID: "u", ResourceVersion: "7"}, Err: reason}
	if err := inf.GetStore().Add(bad); err != nil {
		t.Fatal(err)
	}
	if got, err := lookup("a"); len(got) != 1 || !errors.Is(err, reason) || !strings.HasPrefix(err.Error(), `informer: index "name": `) {
		t.Errorf("found %v, %v", got, err)
	}

	synctest.Test(t, func(t *testing.T) {
		c := newCache()
		c.store = malformed.New(cache.NewSharedIndexInformer(&cache.ListWatch{}, nil, 0, cache.Indexers{}), "").GetStore()
		if err := c.store.Add(&malformed.Object{ObjectMeta: parse("bad@7").ObjectMeta, Err: reason}); err != nil {
			t.Fatal(err)
		}
		c.has(t, "9", "a@7")
		if found := audit(t, c, &serverOf{version: "9", objects: []string{"a@7", "bad@7"}}); len(found) != 0 {
			t.Errorf("the audit found %q", found)
		}
	})
}
