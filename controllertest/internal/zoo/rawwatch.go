package zoo

import (
	"context"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
)

// A rawWatch mirrors like worker, but lists and watches by hand instead of with an
// informer: the sources are kept in a map, the mirrors are read when they are needed.
type rawWatch struct {
	*byHand
	bug string

	mu      sync.Mutex
	sources map[string]*corev1.ConfigMap // guarded by mu
}

func startRawWatch(bug string) func(context.Context, *rest.Config, *controllertest.Env) error {
	return func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		h, err := newByHand(cfg, env)
		if err != nil {
			return err
		}
		w := &rawWatch{byHand: h, bug: bug, sources: map[string]*corev1.ConfigMap{}}
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { w.follow(ctx) })
		return w.run(ctx, w.reconcile)
	}
}

// follow keeps the sources up to date until ctx is done.
func (w *rawWatch) follow(ctx context.Context) {
	version := "" // the one to watch from; "" means list first
	first := true
	_ = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if version == "" {
			list, err := w.configMaps.List(ctx, metav1.ListOptions{})
			if err != nil {
				return false, nil
			}
			version = list.ResourceVersion
			if first || w.bug != "list-for-version" { // its objects were not delivered by the watch
				w.replace(list.Items)
			}
			first = false
		}
		var expired bool
		version, expired = w.watch(ctx, version)
		switch {
		case expired && w.bug == "no-relist":
			version = "0" // "some version that it still has": deletions in between are not in it
		case expired && w.bug != "dead-version":
			version = ""
		case !expired && w.bug == "list-for-version":
			version = ""
		}
		return w.bug == "closed-channel", nil // true ends the loop: "the watch is over when its channel is closed"
	})
}

// watch stores events until the stream ends. It returns the version of the last one, and
// whether that version has expired.
func (w *rawWatch) watch(ctx context.Context, version string) (last string, expired bool) {
	stream, err := w.configMaps.Watch(ctx, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
	if err != nil {
		return version, apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
	}
	defer stream.Stop()
	for event := range stream.ResultChan() {
		switch obj := event.Object.(type) {
		case *corev1.ConfigMap:
			version = obj.ResourceVersion
			if event.Type != watch.Bookmark {
				w.put(obj, event.Type == watch.Deleted)
			}
		case *metav1.Status:
			err := apierrors.FromObject(obj)
			return version, apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
		}
	}
	return version, false
}

// put stores one object and wakes its source.
func (w *rawWatch) put(cm *corev1.ConfigMap, deleted bool) {
	name := cm.Labels[workerMirror]
	if cm.Labels[workerSource] != "" {
		name = cm.Name
		w.mu.Lock()
		delete(w.sources, name)
		if !deleted {
			w.sources[name] = cm
		}
		w.mu.Unlock()
	}
	if name != "" {
		w.queue.Add(name)
	}
}

// replace stores a list, which also shows deletions.
func (w *rawWatch) replace(items []corev1.ConfigMap) {
	w.mu.Lock()
	gone := w.sources
	w.sources = map[string]*corev1.ConfigMap{}
	for i := range items {
		if items[i].Labels[workerSource] != "" {
			w.sources[items[i].Name] = &items[i]
		}
	}
	w.mu.Unlock()
	for name := range gone {
		w.queue.Add(name)
	}
	for i := range items {
		w.put(&items[i], false)
	}
}

func (w *rawWatch) reconcile(ctx context.Context, name string) error {
	w.mu.Lock()
	source := w.sources[name]
	w.mu.Unlock()
	mirror, err := w.configMaps.Get(ctx, "mirror-"+name, metav1.GetOptions{})
	if ignoreNotFound(err) != nil {
		return err
	}
	switch {
	case source == nil && err != nil:
		return nil
	case source == nil:
		return ignoreNotFound(w.configMaps.Delete(ctx, mirror.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &mirror.UID}}))
	}
	data := maps.Clone(source.Data)
	data["uid"] = string(source.UID)
	if err != nil {
		_, err = w.configMaps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "mirror-" + name, Labels: map[string]string{workerMirror: name}},
			Data:       data,
		}, metav1.CreateOptions{})
		return err
	}
	if maps.Equal(mirror.Data, data) {
		return nil
	}
	_, err = w.update(ctx, mirror, func(cm *corev1.ConfigMap) { cm.Data = data })
	return err
}

func rawwatch(bug string) controllertest.Scenario {
	return controllertest.Scenario{
		Name:  "rawwatch",
		Start: startRawWatch(bug),
		Script: []controllertest.Step{
			userCreates("a b", workerSource),
			userChangesAndDeletes("2", "b", ""),
		},
		UserObjects: []string{"configmaps/a"},
		Converged:   mirrored,
	}
}

func rawwatchFamily() Family {
	return Family{Name: "rawwatch", Scenario: rawwatch, Mutants: []Mutant{{
		Bug: "no-relist", Cause: "watch resumed after 410 without a list",
		Does:      "watches from any version after its own has expired, and misses the deletions in between",
		Reference: "apache/airflow#21087", Historic: true,
		Plan: "hold-relist(configmaps)@update configmaps mirror-a data.v#1", Oracle: controllertest.Liveness,
	}, {
		Bug: "list-for-version", Cause: "list not compared with the known objects",
		Does:      "lists to get a version for the watch, and ignores the objects of the list",
		Reference: "ManageIQ/kubeclient#599",
		Plan:      "stall(configmaps)@update configmaps mirror-a data.v#1", Oracle: controllertest.Liveness,
	}, {
		Bug: "closed-channel", Cause: "end of a watch ignored",
		Does:      "stops watching when the stream ends, and continues without events",
		Reference: "kubernetes-client/python#124", Historic: true,
		Plan: "410(configmaps)@update configmaps mirror-a data.v#1", Oracle: controllertest.Liveness,
	}, {
		Bug: "dead-version", Cause: "expired version retried forever",
		Does:      "treats 410 like other errors, and requests the same version forever",
		Reference: "kubernetes/kubernetes#138295", Historic: true,
		Plan: "hold-relist(configmaps)@update configmaps mirror-a data.v#1", Oracle: controllertest.Liveness,
	}}}
}
