package watcher_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit/watcher"
)

// endlessStream reports one change after the other, of a thousand objects.
type endlessStream struct {
	events chan watch.Event
	stop   chan struct{}
}

func (e *endlessStream) ResultChan() <-chan watch.Event { return e.events }
func (e *endlessStream) Stop()                          { close(e.stop) }

func (e *endlessStream) run() {
	defer close(e.events)
	for rv := 1; ; rv++ {
		select {
		case e.events <- watch.Event{Type: watch.Modified, Object: pod("n", fmt.Sprint(rv%1000), fmt.Sprint(rv))}:
		case <-e.stop:
			return
		}
	}
}

func BenchmarkEvents(b *testing.B) {
	s := &source{watch: func(context.Context, int, metav1.ListOptions) (watch.Interface, error) {
		e := &endlessStream{events: make(chan watch.Event, 1000), stop: make(chan struct{})}
		go e.run() // ends with Stop; the loop waits for it
		return e, nil
	}}
	w := &watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: "0x"}
	b.ReportAllocs()
	for _, err := range w.Events(b.Context()) {
		if err != nil {
			b.Fatal(err)
		}
		if !b.Loop() {
			break
		}
	}
}

// The difference of a list of ten thousand objects of which one is new.
func BenchmarkRelist(b *testing.B) {
	items := make([]*corev1.Pod, 10_000)
	for i := range items {
		items[i] = pod(fmt.Sprint(i), fmt.Sprint(i), fmt.Sprint(i+1))
	}
	var s *source
	s = &source{
		list: func(n int, _ metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
			s.calls = nil
			items[0] = pod("new", fmt.Sprint("new", n), fmt.Sprint(20_000+n))
			return items, metav1.ListMeta{ResourceVersion: fmt.Sprint(20_000 + n)}, nil
		},
		watch: func(context.Context, int, metav1.ListOptions) (watch.Interface, error) {
			return closing(errorEvent(status(410, metav1.StatusReasonExpired, 0))), nil
		},
	}
	w := &watcher.RetryWatcher[*corev1.Pod]{Source: s, BaseDelay: 1, MaxDelay: 1}
	b.ReportAllocs()
	for ev, err := range w.Events(b.Context()) {
		if err != nil {
			b.Fatal(err)
		}
		if ev.Type == watcher.Synced && !b.Loop() {
			break
		}
	}
}
