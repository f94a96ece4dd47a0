package watcher_test

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/controllerkit/controllerkit/watcher"
)

func ExampleRetryWatcher_Events() {
	client := fake.NewClientset(
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-0"}},
	)
	w := &watcher.RetryWatcher[*corev1.Pod]{
		Source: watcher.Client[*corev1.Pod](client.CoreV1().Pods("default")),
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for event, err := range w.Events(ctx) {
		if err != nil {
			fmt.Println(err) // ctx is done
			return
		}
		switch event.Type {
		case watch.Added:
			fmt.Println("there is", event.Object.Name)
		case watcher.Synced:
			fmt.Println("that is all there is now")
			return // leaving the loop ends the watch
		case watcher.Retrying:
			fmt.Println("retrying in", event.RetryAfter, "after", event.Err)
		}
	}
	// Output:
	// there is web-0
	// that is all there is now
}

// A channel fits code that was written for client-go's watches.
func ExampleRetryWatcher_Watch() {
	client := fake.NewClientset(
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-0"}},
	)
	w := &watcher.RetryWatcher[*corev1.Pod]{
		Source: watcher.Client[*corev1.Pod](client.CoreV1().Pods("default")),
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	event, err := watchtools.UntilWithoutRetry(ctx, w.Watch(ctx), func(event watch.Event) (bool, error) {
		pod, ok := event.Object.(*corev1.Pod)
		return ok && pod.Name == "web-0", nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(event.Type)
	// Output: ADDED
}

// Failures are events. A consumer for which one is final leaves the loop.
func ExampleRetryWatcher_retrying() {
	w := &watcher.RetryWatcher[*corev1.Pod]{Source: forbidden{}, Jitter: -1}
	for event, err := range w.Events(context.Background()) {
		if err != nil {
			fmt.Println(err)
			return
		}
		if event.Type == watcher.Retrying {
			fmt.Println(apierrors.IsForbidden(event.Err), event.RetryAfter)
			break
		}
	}
	// Output: true 30s
}

type forbidden struct{ watcher.Source[*corev1.Pod] }

func (forbidden) List(context.Context, metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
	return nil, metav1.ListMeta{}, apierrors.NewForbidden(corev1.Resource("pods"), "", nil)
}

func ExampleClient() {
	pods := fake.NewClientset().CoreV1().Pods("default")
	source := watcher.Client[*corev1.Pod](pods) // no cast, no adapter
	_, list, err := source.List(context.Background(), metav1.ListOptions{})
	fmt.Printf("%q %v\n", list.Continue, err)
	// Output: "" <nil>
}

// A consumer that goes on where it was the last time.
func ExampleRetryWatcher_LastResourceVersion() {
	source := &source{watch: func(_ context.Context, _ int, opts metav1.ListOptions) (watch.Interface, error) {
		fmt.Println("watching from", opts.ResourceVersion)
		return open(watch.Event{Type: watch.Added, Object: pod("web-1", "uid", "43")}), nil
	}}
	w := &watcher.RetryWatcher[*corev1.Pod]{Source: source, ResourceVersion: "42"}
	for event, err := range w.Events(context.Background()) {
		if err != nil {
			return
		}
		fmt.Println(event.Type, event.Object.Name)
		break // as if the process had ended here
	}
	fmt.Println("next time from", w.LastResourceVersion())
	// Output:
	// watching from 42
	// ADDED web-1
	// next time from 42
}
