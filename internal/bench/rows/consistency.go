package rows

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/internal/bench"
)

func init() {
	bench.Register(bench.Row{
		Name: "consistency/write",
		About: "What package consistency adds to a reconcile with one write: Begin, the recording of the response, Ready and End. The write is an update of a Pod of 4 KiB by a typed client " +
			"without a server, and the cache shows it at once. The rival is the same write without the package. A real API server takes milliseconds for it.",
		Op: "reconcile",
		Pairs: func(context.Context) ([]bench.Pair, func(), error) {
			return []bench.Pair{{
				Ours:   bench.Contender{Name: "controllerkit", Run: recordedWrites(true)},
				Theirs: bench.Contender{Name: clientGo, Module: "k8s.io/client-go", Run: recordedWrites(false)},
			}}, nil, nil
		},
	})
}

// A shownStore is the store of an informer that shows each version at once.
type shownStore struct{ version atomic.Int64 }

func (s *shownStore) LastStoreSyncResourceVersion() string { return fmt.Sprint(s.version.Load()) }

// updates answers an update with the object at the next version.
type updates struct {
	*shownStore
	before, after []byte // the version is between
}

func (u updates) RoundTrip(r *http.Request) (*http.Response, error) {
	_, err := io.Copy(io.Discard, r.Body)
	body := fmt.Appendf(bytes.Clone(u.before), "%d%s", u.version.Add(1), u.after)
	header := http.Header{"Content-Type": {"application/json"}}
	return &http.Response{Status: "200 OK", StatusCode: http.StatusOK, Header: header, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Request: r}, errors.Join(err, r.Body.Close())
}

func recordedWrites(record bool) func(context.Context, *bench.Meter) (int, error) {
	return func(ctx context.Context, m *bench.Meter) (int, error) {
		pod := &corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "d5b3b6a8-7f0f-4a3c-9f8e-0123456789ab", ResourceVersion: "VERSION"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "image", Args: []string{strings.Repeat("x", 4<<10)}}}},
		}
		text, err := json.Marshal(pod)
		if err != nil {
			return 0, err
		}
		before, after, _ := bytes.Cut(text, []byte("VERSION"))
		store, pods := new(shownStore), corev1.Resource("pods")
		config := &rest.Config{Host: "https://server", QPS: -1, Transport: updates{store, before, after}, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
		writes := consistency.New(consistency.Config{})
		if record {
			writes = consistency.New(consistency.Config{Stores: map[schema.GroupResource]interface{ LastStoreSyncResourceVersion() string }{pods: store}})
			config.Wrap(writes.Wrap)
		}
		kube, err := kubernetes.NewForConfig(config)
		if err != nil {
			return 0, err
		}
		client, key := kube.CoreV1().Pods(pod.Namespace), types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		write := func() error {
			ctx := ctx
			if record {
				if !writes.Ready(key, func() {}) {
					return errors.New("the cache shows the write, but the key is not ready")
				}
				ctx = writes.Begin(ctx, key)
				defer writes.End(key)
			}
			_, err := client.Update(ctx, pod, metav1.UpdateOptions{})
			return err
		}
		if err := write(); err != nil {
			return 0, err
		}
		n := m.N(20_000)
		m.Measure(func() {
			for range n {
				if err = write(); err != nil {
					return
				}
			}
		})
		return n, err
	}
}
