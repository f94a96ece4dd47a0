package zoo

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/controllertest"
)

const (
	workerSource = "worker.zoo.example.com/source" // label of the ConfigMaps to mirror
	workerMirror = "worker.zoo.example.com/mirror" // label of the mirrors: the name of the source
	workerFailed = "worker.zoo.example.com/failed" // annotation of a source, set by one of the mutants
)

// A workerLoop keeps a mirror of each source: a ConfigMap with the same data and the
// source's UID. It is the loop that many write by hand.
type workerLoop struct {
	*byHand
	bug      string
	informer cache.SharedIndexInformer
	made     sync.Map // of mirror name to source name; only one mutant looks at it
}

func startWorker(bug string) func(context.Context, *rest.Config, *controllertest.Env) error {
	return func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		h, err := newByHand(cfg, env)
		if err != nil {
			return err
		}
		h.forgetFailed = bug == "swallow-error"
		if bug == "five-tries" {
			h.maxTries = 5
		}
		w := &workerLoop{byHand: h, bug: bug}
		if w.informer, err = w.handle(cache.ResourceEventHandlerDetailedFuncs{
			AddFunc: w.added,
			UpdateFunc: func(before, obj any) {
				if bug == "conflict-is-done" && sameData(before, obj) {
					return // "nothing to do": but another writer may have made an update conflict
				}
				if before.(*corev1.ConfigMap).ResourceVersion != obj.(*corev1.ConfigMap).ResourceVersion {
					w.enqueue(obj)
				}
			},
			DeleteFunc: w.deleted,
		}); err != nil {
			return err
		}
		return w.run(ctx, w.reconcile)
	}
}

// sameData reports whether an update of a ConfigMap changes neither its data nor its deletion.
func sameData(before, obj any) bool {
	b, o := before.(*corev1.ConfigMap), obj.(*corev1.ConfigMap)
	return maps.Equal(b.Data, o.Data) && (b.DeletionTimestamp == nil) == (o.DeletionTimestamp == nil)
}

func (w *workerLoop) added(obj any, isInInitialList bool) {
	if w.bug == "missed-deletion" && isInInitialList && obj.(*corev1.ConfigMap).Labels[workerSource] == "" {
		return // "an existing mirror needs no work": but its source may be deleted
	}
	w.enqueue(obj)
}

func (w *workerLoop) deleted(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok && w.bug != "tombstone" {
		obj = tombstone.Obj
	}
	w.enqueue(obj)
}

// enqueue adds the name of the source that the object is or mirrors.
func (w *workerLoop) enqueue(obj any) {
	cm, ok := obj.(*corev1.ConfigMap)
	if !ok {
		return
	}
	source := cm.Labels[workerMirror]
	if w.bug == "made-in-memory" {
		made, _ := w.made.LoadOrStore(cm.Name, "") // the mirrors of this process
		source = made.(string)
	}
	switch {
	case source != "":
		w.queue.Add(source)
	case cm.Labels[workerSource] != "":
		w.queue.Add(cm.Name)
	}
}

func (w *workerLoop) cached(name string) *corev1.ConfigMap {
	obj, exists, _ := w.informer.GetStore().GetByKey(w.env.Namespace + "/" + name)
	if !exists {
		return nil
	}
	return obj.(*corev1.ConfigMap)
}

func (w *workerLoop) reconcile(ctx context.Context, name string) error {
	source, mirror := w.cached(name), w.cached("mirror-"+name)
	if source == nil {
		if mirror == nil {
			return nil
		}
		return ignoreNotFound(w.configMaps.Delete(ctx, mirror.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: ptr.To(mirror.UID)},
		}))
	}
	if source.Annotations[workerFailed] != "" {
		return nil
	}
	err := w.mirror(ctx, source, mirror)
	switch {
	case w.bug == "conflict-is-done" && apierrors.IsConflict(err):
		return nil // "whoever was faster has woken us": not if his write changed no data
	case w.bug == "failed-for-ever" && apierrors.IsInternalError(err):
		_, err = w.update(ctx, source, func(cm *corev1.ConfigMap) {
			metav1.SetMetaDataAnnotation(&cm.ObjectMeta, workerFailed, "true") // a terminal state, for a passing error
		})
	}
	return err
}

func (w *workerLoop) mirror(ctx context.Context, source, mirror *corev1.ConfigMap) error {
	data := maps.Clone(source.Data)
	data["uid"] = string(source.UID)
	if mirror == nil {
		w.made.Store("mirror-"+source.Name, source.Name)
		// AlreadyExists is a late cache: the next attempt sees more.
		_, err := w.configMaps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "mirror-" + source.Name, Labels: map[string]string{workerMirror: source.Name}},
			Data:       data,
		}, metav1.CreateOptions{})
		return err
	}
	if maps.Equal(mirror.Data, data) {
		return nil
	}
	if w.bug != "cache-mutated" {
		mirror = mirror.DeepCopy()
	}
	mirror.Data = data
	updated, err := w.configMaps.Update(ctx, mirror, metav1.UpdateOptions{})
	if w.bug == "same-version-again" && apierrors.IsConflict(err) {
		return wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			_, err := w.configMaps.Update(ctx, mirror, metav1.UpdateOptions{}) // the version that was refused
			return err == nil, nil
		})
	}
	if err == nil && w.bug == "write-back" {
		return w.informer.GetStore().Update(updated) // which may be older than the cached object
	}
	return err
}

func worker(bug string) controllertest.Scenario {
	return controllertest.Scenario{
		Name:  "worker",
		Start: startWorker(bug),
		Script: []controllertest.Step{
			userCreates("a b", workerSource),
			userChangesAndDeletes("2", "b", ""),
			userChangesAndDeletes("3", "mirror-a", "c"),
			userDeletes("c"),
		},
		UserObjects: []string{"configmaps/a"},
		Converged:   mirrored,
	}
}

// mirrored requires a mirror for each source, and no others.
func mirrored(s *controllertest.State) error {
	for _, cm := range s.Objects("configmaps") {
		if name := cm.GetLabels()[workerMirror]; name != "" && s.Get("configmaps", name) == nil {
			return fmt.Errorf("%s mirrors nothing", cm.GetName())
		}
		if cm.GetLabels()[workerSource] == "" {
			continue
		}
		mirror := s.Get("configmaps", "mirror-"+cm.GetName())
		want := configMapData(cm)
		want["uid"] = string(cm.GetUID())
		if mirror == nil || !maps.Equal(configMapData(mirror), want) {
			return fmt.Errorf("%s has no mirror, or one that differs", cm.GetName())
		}
	}
	return nil
}

func workerFamily() Family {
	return Family{Name: "worker", Scenario: worker, Mutants: []Mutant{{
		Bug: "swallow-error", Cause: "error swallowed",
		Does:      "logs an error and forgets the key, so the work is never retried",
		Reference: "kubernetes/sample-controller#31", Historic: true,
		Plan: "drop-request@create configmaps mirror-a#1", Oracle: controllertest.Liveness,
	}, {
		Bug: "five-tries", Cause: "bounded retries",
		Does:      "forgets the key after five failures within 200 ms, and so the work of an outage that is longer",
		Reference: "kubernetes/kubernetes#140639", Historic: true,
		Plan: "outage(create configmaps 500 3s)@create configmaps mirror-a#1", Oracle: controllertest.Liveness,
	}, {
		Bug: "conflict-is-done", Cause: "conflict taken for success",
		Does:      "ignores a conflict because it expects an event of the other writer, and drops events that change no data",
		Reference: "quay/quay-operator#544",
		Plan:      "409@update configmaps mirror-a data.v#1", Oracle: controllertest.Liveness,
	}, {
		Bug: "same-version-again", Cause: "conflict retried without reading again",
		Does:      "repeats an update forever with the version that was refused",
		Reference: "ksonnet/ksonnet#787",
		Plan:      "commit-503@update configmaps mirror-a data.v#1", Oracle: controllertest.Quiescence,
	}, {
		Bug: "failed-for-ever", Cause: "passing error made a terminal state",
		Does:      "marks the object as failed after an error of the API server, and never retries it",
		Reference: "nuclio/nuclio#4120",
		Plan:      "500@create configmaps mirror-a#1", Oracle: controllertest.Liveness,
	}, {
		Bug: "cache-mutated", Cause: "cached object modified",
		Does:      "changes the informer's object before the update, and finds no difference after the update has failed",
		Reference: "sky-uk/cassandra-operator#127",
		Plan:      "drop-request@update configmaps mirror-a data.v#1", Oracle: controllertest.Liveness,
	}, {
		Bug: "write-back", Cause: "cache overwritten with an older version",
		Does:      "stores the response to an update in the informer's cache, over a newer object",
		Reference: "argoproj/argo-rollouts#4073", Historic: true,
		Plan: "slow@update configmaps mirror-a data.v#2", Oracle: controllertest.Liveness,
	}, {
		Bug: "tombstone", Cause: "DeletedFinalStateUnknown ignored",
		Does:      "ignores deletions that the informer learns of by a list",
		Reference: "projectcalico/calico#12741", Historic: true,
		Plan: "hold-relist(configmaps)@update configmaps mirror-a data.v#1", Oracle: controllertest.Liveness,
	}, {
		Bug: "missed-deletion", Cause: "deletion while the controller is down",
		Does:      "does not search for mirrors without a source when it starts",
		Reference: "kubernetes-sigs/controller-runtime#243", Historic: true,
		Plan: "crash-before@delete configmaps mirror-b#1", Oracle: controllertest.Liveness,
	}, {
		Bug: "made-in-memory", Cause: "state only in memory",
		Does:      "knows its mirrors only from memory, and does not repair them after a restart",
		Reference: "sky-uk/cassandra-operator#7",
		Plan:      "crash-after@update configmaps mirror-a data.v#1", Oracle: controllertest.Liveness,
	}}}
}
