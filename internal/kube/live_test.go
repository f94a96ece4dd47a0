package kube_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// getter returns its fields.
type getter struct {
	live *corev1.Pod
	err  error
}

func (g getter) Get(context.Context, string, metav1.GetOptions) (*corev1.Pod, error) {
	return g.live, g.err
}

func TestLive(t *testing.T) {
	pod := func(uid string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: types.UID(uid), ResourceVersion: "2"}}
	}
	cached := pod("1")
	cached.ResourceVersion = "1"
	for _, tt := range []struct {
		name  string
		got   getter
		want  error // nil for none
		live  bool
		stale bool
	}{
		{"newer", getter{live: pod("1")}, nil, true, false},
		{"replaced", getter{live: pod("2")}, kube.ErrReplaced, true, true},
		{"gone", getter{err: apierrors.NewNotFound(corev1.Resource("pods"), "a")}, kube.ErrGone, false, true},
		{"another 404", getter{live: pod("1"), err: apierrors.NewNotFound(corev1.Resource("pods"), "b")}, apierrors.NewNotFound(corev1.Resource("pods"), "b"), false, false},
		{"another error", getter{live: pod("1"), err: io.EOF}, io.EOF, false, false},
	} {
		live, err := kube.Live(t.Context(), tt.got, cached)
		var s controllerkit.StaleError
		isStale := errors.As(err, &s) && s.Stale()
		if (live != nil) != tt.live || isStale != tt.stale || (tt.want == nil) != (err == nil) || err != nil && !errors.Is(err, tt.want) && err.Error() != tt.want.Error() {
			t.Errorf("%s: got %v, %v (stale %t), want %v", tt.name, live, err, isStale, tt.want)
		}
	}
	if _, err := kube.Live(t.Context(), getter{}, cached); err == nil {
		t.Error("a client that returns nothing: got no error")
	}
}

func TestCheckRead(t *testing.T) {
	whole := metav1.ObjectMeta{Name: "a", UID: "u", ResourceVersion: "1"}
	if err := kube.CheckRead(&whole); err != nil {
		t.Errorf("an object that was read: %v", err)
	}
	for name, change := range map[string]func(*metav1.ObjectMeta){
		"name":            func(m *metav1.ObjectMeta) { m.Name = "" },
		"uid":             func(m *metav1.ObjectMeta) { m.UID = "" },
		"resourceVersion": func(m *metav1.ObjectMeta) { m.ResourceVersion = "" },
	} {
		meta := whole
		change(&meta)
		var terminal controllerkit.TerminalError
		if err := kube.CheckRead(&meta); !errors.As(err, &terminal) || !terminal.Terminal() || !strings.Contains(err.Error(), "has no metadata."+name+":") {
			t.Errorf("no %s: got %v, want a terminal error that names it", name, err)
		}
	}
	if err := kube.CheckRead((*corev1.Pod)(nil)); err == nil {
		t.Error("a nil object: got no error")
	}
}

func TestTerminal(t *testing.T) {
	err := kube.Terminal(io.EOF)
	if !errors.Is(err, io.EOF) || err.Error() != io.EOF.Error() {
		t.Errorf("got %v, want the text and the identity of the wrapped error", err)
	}
}
