package watcher_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit/watcher"
)

// A request that the server rejects as invalid before it has accepted another one is the
// caller's mistake. Later it may be the server's.
func TestInvalidRequests(t *testing.T) {
	version := status(500, "", 0)
	version.ErrStatus.Message = `resourceVersion: Invalid value: "abc"`
	for _, reason := range []*apierrors.StatusError{
		status(400, metav1.StatusReasonBadRequest, 0), status(422, metav1.StatusReasonInvalid, 0), version,
	} {
		for _, verb := range []string{"list", "watch", "second watch"} {
			t.Run(string(reason.ErrStatus.Reason)+"/"+verb, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &source{
						list: func(int, metav1.ListOptions) ([]*corev1.Pod, metav1.ListMeta, error) {
							return nil, metav1.ListMeta{}, reason
						},
						watch: func(_ context.Context, n int, _ metav1.ListOptions) (watch.Interface, error) {
							if verb == "second watch" && n == 1 {
								return closing(), nil
							}
							return nil, reason
						},
					}
					w := &watcher.RetryWatcher[*corev1.Pod]{Source: s}
					if verb != "list" {
						w.ResourceVersion = "abc"
					}
					_, err := collect(t, w, time.Minute)
					ended := errors.Is(err, reason) && strings.HasPrefix(err.Error(), "watcher: ")
					if want := verb != "second watch"; ended != want {
						t.Errorf("last error = %v, want the server's: %v", err, want)
					}
				})
			})
		}
	}
}

// TestStatusWithAnotherType proves W4.
func TestStatusWithAnotherType(t *testing.T) {
	refusal := status(403, metav1.StatusReasonForbidden, 0)
	t.Run("typed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &source{watch: func(context.Context, int, metav1.ListOptions) (watch.Interface, error) {
				return open(watch.Event{Type: watch.Added, Object: &refusal.ErrStatus}), nil
			}}
			events, _ := collect(t, &watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: "9"}, time.Second)
			if len(events) != 1 || events[0].Type != watcher.Retrying || !apierrors.IsForbidden(events[0].Err) {
				t.Errorf("events = %v, want Retrying with the 403", events)
			}
		})
	})
	t.Run("unstructured", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Status", "code": int64(403), "message": "no"}}
			w := &watcher.RetryWatcher[*unstructured.Unstructured]{Source: statusSource{object}, ResourceVersion: "9"}
			for ev, err := range w.Events(t.Context()) {
				if err != nil || ev.Type != watcher.Retrying {
					t.Errorf("event = %v, error %v, want Retrying", ev, err)
				}
				break
			}
		})
	})
}

type statusSource struct{ object *unstructured.Unstructured }

func (statusSource) List(context.Context, metav1.ListOptions) ([]*unstructured.Unstructured, metav1.ListMeta, error) {
	return nil, metav1.ListMeta{}, nil
}

func (s statusSource) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return open(watch.Event{Type: watch.Added, Object: s.object}), nil
}

// The text of a failure comes from the server, and ends in logs.
func TestHostileErrors(t *testing.T) {
	for _, tc := range []struct{ name, message, want string }{
		{"control characters", "no\r\n\x1b[2Jroot", `no\r\n\x1b[2Jroot`},
		{"long", strings.Repeat("a", 8<<20), strings.Repeat("a", 2048) + "..."},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &source{watch: func(context.Context, int, metav1.ListOptions) (watch.Interface, error) {
					return nil, errors.New(tc.message)
				}}
				events, _ := collect(t, &watcher.RetryWatcher[*corev1.Pod]{Source: s, ResourceVersion: "9"}, time.Millisecond)
				if got := events[0].Err.Error(); got != "watcher: watch: "+tc.want {
					t.Errorf("Err = %.100q of %d bytes, want %.100q", got, len(got), tc.want)
				}
			})
		})
	}
}
