package consistency_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/internal/testcost"
)

// All records of a removed resource go.
func TestRemoveInformer(t *testing.T) {
	for name, record := range map[string]func(s *consistency.Store){
		"write": func(s *consistency.Store) { s.WroteAt(owner, "u", pods, "10") },
		"deletion": func(s *consistency.Store) {
			s.Deleted(owner, "u", pods, types.NamespacedName{Namespace: "ns", Name: "p"}, "1")
		},
		"conflict": func(s *consistency.Store) {
			s.Refused(owner, "u", pods, types.NamespacedName{Namespace: "ns", Name: "p"}, "10")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := consistency.New(consistency.Config{Stores: stores{pods: cacheOf(t, podWith("p", "1", "5"))}, MaxWait: -1})
				woken := 0
				record(s)
				if s.Ready(owner, func() { woken++ }) {
					t.Fatal("Ready = true while the cache is behind")
				}
				if err := s.RemoveInformer(pods); err != nil {
					t.Fatal(err)
				}
				if woken != 1 || !s.Ready(owner, nil) || s.EnsureReady(owner) != nil || consistency.LiveRead(s.Begin(t.Context(), owner)) {
					t.Errorf("woken %d times, EnsureReady = %v; want the key woken once and ready, without a live read", woken, s.EnsureReady(owner))
				}
				time.Sleep(time.Hour)
				if woken != 1 {
					t.Errorf("woken %d times", woken)
				}
			})
		})
	}
}

// A key that also waits for another resource still waits for that.
func TestRemoveInformerKeepsOthers(t *testing.T) {
	configMaps := corev1.Resource("configmaps")
	maps := at("5")
	s := consistency.New(consistency.Config{Stores: stores{pods: at("5"), configMaps: maps}, MaxWait: -1})
	s.WroteAt(owner, "u", pods, "10")
	s.WroteAt(owner, "u", configMaps, "7")
	woken := make(chan struct{})
	if s.Ready(owner, func() { close(woken) }) {
		t.Fatal("Ready = true while both caches are behind")
	}
	if err := s.RemoveInformer(pods); err != nil {
		t.Fatal(err)
	}
	select {
	case <-woken:
		t.Fatal("woken while the other cache is behind")
	default:
	}
	maps.set("7")
	s.Handler().OnAdd(nil, false)
	<-woken
}

// A write in flight is not recorded: no key waits for a store that is gone.
func TestRemoveInformerDuringWrite(t *testing.T) {
	body, err := json.Marshal(podWith("p", "1", "10"))
	if err != nil {
		t.Fatal(err)
	}
	s := consistency.New(consistency.Config{Stores: stores{pods: at("5")}, MaxWait: -1})
	req, err := http.NewRequestWithContext(s.Begin(t.Context(), owner), http.MethodPut, "https://server/api/v1/namespaces/ns/pods/p", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.Wrap(roundTripper(func(req *http.Request) (*http.Response, error) {
		if err := s.RemoveInformer(pods); err != nil {
			t.Error(err)
		}
		return respond(http.StatusOK, jsonType, body)(req)
	})).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if err := s.EnsureReady(owner); err != nil || len(s.Ambiguous(owner)) > 0 {
		t.Errorf("EnsureReady = %v, Ambiguous = %v; want no record", err, s.Ambiguous(owner))
	}
}

// handled is an informer that counts its handlers.
type handled struct {
	cache.SharedIndexInformer
	handlers int
	err      error
	adding   func() // called before a handler is added; nil means none
}

func (h *handled) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	if h.adding != nil {
		h.adding()
	}
	h.handlers++
	return h.SharedIndexInformer.AddEventHandler(handler)
}

func (h *handled) RemoveEventHandler(handle cache.ResourceEventHandlerRegistration) error {
	h.handlers--
	return errors.Join(h.SharedIndexInformer.RemoveEventHandler(handle), h.err)
}

// An informer that is removed while AddInformer adds its handler keeps none.
func TestRemoveInformerDuringAdd(t *testing.T) {
	s := consistency.New(consistency.Config{})
	done := make(chan error, 1)
	informer := &handled{SharedIndexInformer: cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, nil)}
	informer.adding = func() {
		begun := make(chan struct{})
		go func() { close(begun); done <- s.RemoveInformer(pods) }()
		<-begun
		select {
		case err := <-done:
			done <- err
		case <-time.After(100 * time.Millisecond): // it waits for AddInformer
		}
	}
	if err := s.AddInformer(pods, informer); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || informer.handlers != 0 {
		t.Errorf("RemoveInformer = %v, and %d handlers are left", err, informer.handlers)
	}
}

// The handler goes with the store, no reference to the store stays, and the resource can be
// added again.
func TestRemoveInformerForgets(t *testing.T) {
	s := consistency.New(consistency.Config{})
	var old weak.Pointer[handled]
	for range 3 {
		inf := &handled{SharedIndexInformer: cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, nil)}
		if err := s.AddInformer(pods, inf); err != nil {
			t.Fatal(err)
		}
		s.WroteAt(owner, "u", pods, "10")
		if err := s.RemoveInformer(pods); err != nil {
			t.Fatal(err)
		}
		if inf.handlers != 0 {
			t.Errorf("%d handlers are left", inf.handlers)
		}
		old = weak.Make(inf)
	}
	if !testcost.Freed(func() bool { return old.Value() == nil }) {
		t.Error("the Store keeps a reference to a removed informer")
	}
	if err := s.RemoveInformer(pods); err == nil || !strings.HasPrefix(err.Error(), "consistency: remove informer: pods has no store: ") {
		t.Errorf("RemoveInformer = %v for a resource without a store", err)
	}
	broken := &handled{SharedIndexInformer: cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, nil), err: errors.New("not mine")}
	if err := s.AddInformer(pods, broken); err != nil {
		t.Fatal(err)
	}
	if err := s.RemoveInformer(pods); !errors.Is(err, broken.err) {
		t.Errorf("RemoveInformer = %v, want the informer's error", err)
	}
	runtime.KeepAlive(s)
}

// A call that is still running when the informer is removed records no more of the resource: its
// key would wait for a store that is gone.
func TestRemoveInformerDuringCall(t *testing.T) {
	pod := types.NamespacedName{Namespace: "ns", Name: "p"}
	for name, record := range map[string]func(s *consistency.Store){
		"write":     func(s *consistency.Store) { s.WroteAt(owner, "u", pods, "10") },
		"live read": func(s *consistency.Store) { s.Saw(owner, "u", pods, podWith("p", "1", "10")) },
		"deletion":  func(s *consistency.Store) { s.Deleted(owner, "u", pods, pod, "1") },
		"conflict":  func(s *consistency.Store) { s.Refused(owner, "u", pods, pod, "10") },
		"conflict without a version": func(s *consistency.Store) {
			s.Refused(owner, "u", pods, pod, "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := consistency.New(consistency.Config{Stores: stores{pods: cacheOf(t, podWith("p", "1", "5"))}, MaxWait: -1, AmbiguousWait: -1})
			s.Begin(t.Context(), owner)
			if err := s.RemoveInformer(pods); err != nil {
				t.Fatal(err)
			}
			record(s)
			if err := s.EnsureReady(owner); err != nil || !s.Ready(owner, nil) || consistency.LiveRead(s.Begin(t.Context(), owner)) {
				t.Errorf("EnsureReady = %v after RemoveInformer; want the key ready, without a live read", err)
			}
			informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, nil)
			if err := s.AddInformer(pods, informer); err != nil {
				t.Fatal(err)
			}
			if err := s.EnsureReady(owner); err != nil {
				t.Errorf("EnsureReady = %v after the resource was added again", err)
			}
			_ = informer.GetStore().Add(podWith("p", "1", "5"))
			record(s)
			if s.EnsureReady(owner) == nil && !consistency.LiveRead(s.Begin(t.Context(), owner)) {
				t.Error("nothing was recorded after the resource was added again")
			}
		})
	}
	t.Run("unknown outcome", func(t *testing.T) {
		s := consistency.New(consistency.Config{Stores: stores{pods: at("5")}})
		lose(t, s, owner)
		if err := s.RemoveInformer(pods); err != nil {
			t.Fatal(err)
		}
		if got := s.Ambiguous(owner); len(got) != 1 {
			t.Errorf("Ambiguous = %v after RemoveInformer, want pods", got)
		}
		s.WroteAt(owner, "", pods, "10")
		if got := s.Ambiguous(owner); len(got) > 0 || s.EnsureReady(owner) != nil {
			t.Errorf("Ambiguous = %v after a live read, EnsureReady = %v", got, s.EnsureReady(owner))
		}
	})
}
