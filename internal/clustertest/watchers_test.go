package clustertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/watcher"
)

// hopping is a Source of which each request goes to any of the servers.
type hopping struct {
	tr  *trial
	mu  sync.Mutex
	rng *rand.Rand
}

func (h *hopping) source() watcher.Source[*corev1.ConfigMap] {
	h.mu.Lock()
	defer h.mu.Unlock()
	return watcher.Client[*corev1.ConfigMap](h.tr.any(h.rng).CoreV1().ConfigMaps("default"))
}

func (h *hopping) List(ctx context.Context, o metav1.ListOptions) ([]*corev1.ConfigMap, metav1.ListMeta, error) {
	return h.source().List(ctx, o)
}

// Watch ends its streams itself, so that the next one comes from another server.
func (h *hopping) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w, err := h.source().Watch(ctx, o)
	if err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		time.AfterFunc(time.Duration(h.rng.Int64N(int64(400*time.Millisecond))), w.Stop)
	}
	return w, err
}

// watchersUnderFaults runs a watcher of which each request goes to another server, while
// writers create, change and delete objects. No version comes twice or goes back, each
// confirmed version is delivered or covered by a later list, no restored storage is
// reported, and in the end the consumer knows what there is.
//
// Proves W1.
func watchersUnderFaults(t *testing.T, cluster *testserver.Cluster) {
	trials(t, cluster, func(tr *trial) {
		var mu sync.Mutex
		confirmed := map[types.UID][]string{}
		confirm := func(m *corev1.ConfigMap) {
			mu.Lock()
			defer mu.Unlock()
			confirmed[m.UID] = append(confirmed[m.UID], m.ResourceVersion)
		}
		objects := tr.steady.CoreV1().ConfigMaps("default")
		synced := make(chan struct{})
		var acting sync.WaitGroup
		for n := range uint64(2) {
			acting.Go(func() {
				<-synced
				rng := tr.random(n)
				for i := range 20 {
					tr.write(rng, fmt.Sprintf("%s-%d-%d", tr.name, n, rng.IntN(3)), i, confirm)
					nap(tr.ctx, time.Duration(rng.Int64N(int64(200*time.Millisecond))))
				}
				tr.until("create the last object", func(ctx context.Context) error {
					_, err := objects.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-last-%d", tr.name, n), Labels: map[string]string{"trial": tr.name}}}, metav1.CreateOptions{})
					if apierrors.IsAlreadyExists(err) {
						return nil
					}
					return err
				})
			})
		}
		ctx, cancel := context.WithTimeout(tr.ctx, 90*time.Second)
		defer cancel()
		w := &watcher.RetryWatcher[*corev1.ConfigMap]{
			Source: &hopping{tr: tr, rng: tr.random(9)}, LabelSelector: "trial=" + tr.name,
			BaseDelay: 20 * time.Millisecond, MaxDelay: time.Second, SilenceTimeout: 4 * time.Second,
		}
		known, seen := map[types.UID]*corev1.ConfigMap{}, map[types.UID]map[string]bool{}
		deleted := map[types.UID]bool{}
		var lists []string
		last, lasts := "0", 0
		for event, err := range w.Events(ctx) {
			if err != nil {
				tr.found("the watcher ended: %v", err)
				if len(lists) == 0 {
					close(synced)
				}
				break
			}
			switch event.Type {
			case watcher.Synced:
				if len(lists) == 0 {
					close(synced)
				} else {
					tr.count("listed again")
				}
				lists, last = append(lists, event.ResourceVersion), event.ResourceVersion
			case watcher.Retrying:
				tr.count("retried")
				if errors.Is(event.Err, watcher.ErrRestored) {
					tr.found("no storage was restored: %v", event.Err)
				}
			case watch.Added, watch.Modified, watch.Deleted:
				m := event.Object
				if deleted[m.UID] {
					tr.found("%s of %s after its deletion", event.Type, m.Name)
				}
				if !event.Synthetic {
					tr.count("watched")
					if !newer(m.ResourceVersion, last) {
						tr.found("%s of %s has version %s after %s", event.Type, m.Name, m.ResourceVersion, last)
					}
					last = m.ResourceVersion
				}
				if old := known[m.UID]; (old == nil) != (event.Type == watch.Added) || old != nil && event.Type == watch.Modified && !newer(m.ResourceVersion, old.ResourceVersion) {
					tr.found("%s of %s with version %s after %v", event.Type, m.Name, m.ResourceVersion, old)
				}
				if seen[m.UID] == nil {
					seen[m.UID] = map[string]bool{}
				}
				seen[m.UID][m.ResourceVersion] = true
				known[m.UID] = m
				if event.Type == watch.Deleted {
					deleted[m.UID] = true
					delete(known, m.UID)
				}
				if _, is := m.Labels["trial"]; is && len(m.Data) == 0 && event.Type == watch.Added {
					lasts++
				}
			}
			if lasts == 2 && (!event.Synthetic || event.Type == watcher.Synced) {
				break // not within a list
			}
		}
		acting.Wait()
		for uid, versions := range confirmed {
			for _, v := range versions {
				covered := seen[uid][v]
				for _, list := range lists[min(1, len(lists)):] {
					covered = covered || !newer(v, list)
				}
				if !covered {
					tr.found("version %s of %s was not delivered", v, uid)
				}
			}
		}
		tr.until("compare", func(ctx context.Context) error {
			list, err := objects.List(ctx, metav1.ListOptions{LabelSelector: "trial=" + tr.name})
			if err != nil {
				return err
			}
			have := map[types.UID]string{}
			for _, m := range list.Items {
				have[m.UID] = m.ResourceVersion
			}
			knows := map[types.UID]string{}
			for uid, m := range known {
				knows[uid] = m.ResourceVersion
			}
			if lasts == 2 && !maps.Equal(have, knows) {
				tr.found("the consumer knows %v, there is %v", knows, have)
			}
			return nil
		})
	}, "watched")
}

// newer reports whether version a is after b.
func newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}

// write creates, changes or deletes an object, and confirms the versions that the server
// has returned. All changes of one object come from one writer.
func (tr *trial) write(rng *rand.Rand, name string, i int, confirm func(*corev1.ConfigMap)) {
	objects := tr.steady.CoreV1().ConfigMaps("default")
	tr.until("write "+name, func(ctx context.Context) error {
		live, err := objects.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			live, err = objects.Create(ctx, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"trial": tr.name}}, Data: map[string]string{"i": strconv.Itoa(i)},
			}, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil // of an earlier try
			}
		case err == nil && rng.IntN(4) == 0:
			err = objects.Delete(ctx, name, metav1.DeleteOptions{})
			if apierrors.IsNotFound(err) {
				err = nil
			}
			return err
		case err == nil:
			live.Data["i"] = strconv.Itoa(i)
			live, err = objects.Update(ctx, live, metav1.UpdateOptions{})
		}
		if err == nil {
			confirm(live)
		}
		return err
	})
}
