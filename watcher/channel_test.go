package watcher_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/watcher"
)

// The channel has the events of the objects, whatever fails between them.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{
			list: func(int, metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
				return []*corev1.Pod{pod("a", "1", "5")}, metav1.ListMeta{ResourceVersion: "10"}, nil
			},
			watch: func(_ context.Context, n int, _ metav1.ListOptions) (watch.Interface, error) {
				switch n {
				case 1:
					return closing(watch.Event{Type: watch.Modified, Object: pod("a", "1", "11")}), nil
				case 2:
					return nil, status(500, metav1.StatusReasonInternalError, 0)
				}
				return open(bookmark("15"), watch.Event{Type: watch.Deleted, Object: pod("a", "1", "16")}), nil
			},
		}
		w := &watcher.RetryWatcher[*corev1.Pod]{Source: s}
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		stream := w.Watch(klog.NewContext(t.Context(), logger))
		var got []string
		for range 3 {
			e := <-stream.ResultChan()
			got = append(got, fmt.Sprint(e.Type, " ", e.Object.(*corev1.Pod).ResourceVersion))
		}
		if diff := cmp.Diff([]string{"ADDED 5", "MODIFIED 11", "DELETED 16"}, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		synctest.Wait() // the watcher goes on behind the last event
		if rv := w.LastResourceVersion(); rv != "16" {
			t.Errorf("LastResourceVersion() = %q, want 16", rv)
		}
		if text := logger.GetSink().(ktesting.Underlier).GetBuffer().String(); strings.Count(text, "Retrying to watch") != 1 {
			t.Errorf("log:\n%s\nwant one line about the response 500", text)
		}
		stream.Stop()
		if e, ok := <-stream.ResultChan(); ok {
			t.Errorf("event %v after Stop", e)
		}
		stream.Stop()
	})
}

// An event that nobody has received is not handled, and Stop ends the watch nevertheless.
func TestWatchNotReceived(t *testing.T) {
	for name, end := range map[string]func(watch.Interface, context.CancelFunc){
		"Stop":      func(stream watch.Interface, _ context.CancelFunc) { stream.Stop() },
		"a context": func(_ watch.Interface, cancel context.CancelFunc) { cancel() },
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s := &source{watch: func(context.Context, int, metav1.ListOptions) (watch.Interface, error) {
				return open(watch.Event{Type: watch.Added, Object: pod("a", "1", "11")}), nil
			}}
			w := &watcher.RetryWatcher[*corev1.Pod]{Source: s}
			stream := w.Watch(ctx)
			time.Sleep(time.Minute)
			end(stream, cancel)
			synctest.Wait()
			if e, ok := <-stream.ResultChan(); ok {
				t.Errorf("%s: event %v", name, e)
			}
			if rv := w.LastResourceVersion(); rv != "10" {
				t.Errorf("%s: LastResourceVersion() = %q, want 10", name, rv)
			}
		})
	}
}

// The channel ends with the error that ends the sequence.
func TestWatchError(t *testing.T) {
	for name, tt := range map[string]struct {
		w    *watcher.RetryWatcher[*corev1.Pod]
		want func(error) bool
		text string
	}{
		"rejected": {&watcher.RetryWatcher[*corev1.Pod]{Source: &source{list: func(int, metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
			return nil, metav1.ListMeta{}, status(400, metav1.StatusReasonBadRequest, 0)
		}}}, apierrors.IsBadRequest, "BadRequest"},
		"misused": {&watcher.RetryWatcher[*corev1.Pod]{}, apierrors.IsInternalError, "watcher: RetryWatcher.Source is nil"},
	} {
		synctest.Test(t, func(t *testing.T) {
			stream := tt.w.Watch(t.Context())
			e := <-stream.ResultChan()
			if err := apierrors.FromObject(e.Object); e.Type != watch.Error || !tt.want(err) || !strings.Contains(fmt.Sprint(err, apierrors.ReasonForError(err)), tt.text) {
				t.Errorf("%s: event %v with %v", name, e.Type, err)
			}
			if e, ok := <-stream.ResultChan(); ok {
				t.Errorf("%s: event %v after the error", name, e)
			}
		})
	}
}

// UntilWithoutRetry of client-go sees a change that was made while its connection was cut.
func TestServerWatch(t *testing.T) {
	ns := testserver.Namespace(t)
	var cut cutter
	watching := clientset(t, func(cfg *rest.Config) { cfg.Dial = cut.dial }).CoreV1().ConfigMaps(ns)
	w := &writer{t: t, maps: clientset(t, nil).CoreV1().ConfigMaps(ns)}
	made := w.create("one")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	rw := &watcher.RetryWatcher[*corev1.ConfigMap]{Source: watcher.Client[*corev1.ConfigMap](watching), BaseDelay: time.Millisecond}
	var seen []watch.EventType
	stream := rw.Watch(klog.NewContext(ctx, logr.Discard()))
	last, err := watchtools.UntilWithoutRetry(ctx, stream, func(e watch.Event) (bool, error) {
		seen = append(seen, e.Type)
		switch e.Type {
		case watch.Added:
			cut.cut()
			made = w.update(made, "new")
		case watch.Modified:
			cut.cut()
			w.delete(made)
		}
		return e.Type == watch.Deleted, nil
	})
	if err != nil || last.Type != watch.Deleted || !slices.Equal(seen, []watch.EventType{watch.Added, watch.Modified, watch.Deleted}) {
		t.Errorf("UntilWithoutRetry() = %v, %v after %v", last, err, seen)
	}
	for e := range stream.ResultChan() { // UntilWithoutRetry has called Stop
		t.Errorf("event %v", e.Type)
	}
}
