package zoo

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	listerscorev1 "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/reconcile"
)

// readyAnnotation is the number of children of a parent in the cache.
const readyAnnotation = "zoo.example.com/ready"

// replicasFamily keeps data.replicas children of the parent. The server chooses their
// names, like the names of the Pods of a ReplicaSet, so only the count prevents too many
// children.
func replicasFamily() Family {
	return Family{Name: "replicas", Scenario: replicasScenario, Mutants: []Mutant{{
		Bug: "stale-count", Cause: "own writes not seen",
		Does:      "counts children in a cache that does not show its own creations yet, and creates them again",
		Reference: "ray-project/kuberay#715", Historic: true,
		Plan:   "hold(configmaps)@create configmaps web-*#2",
		Oracle: controllertest.Events,
	}, {
		Bug: "resent-create", Cause: "request sent twice",
		Does:      "lets the client repeat a create after a 503, and gets two children with generated names",
		Reference: "openshift/origin#31255",
		Plan:      "commit-503@create configmaps web-*#2",
		Oracle:    controllertest.Events,
	}, {
		Bug: "any-version", Cause: "stale start",
		Does:      "starts with lists of any age, and creates the children of an old spec",
		Reference: "elastic/cloud-on-k8s#4956", Historic: true,
		Plan:   "time-travel(configmaps<create configmaps web-*#4)@update configmaps web metadata.annotations#3",
		Oracle: controllertest.Events,
	}, {
		Bug: "scale-down-edge", Cause: "decision from an event",
		Does:      "deletes as many children as the spec decreased since the last call, instead of the surplus ones",
		Reference: "instaclustr/cassandra-operator#398", Historic: true,
		Plan:   "crash-before@delete configmaps web-*#1",
		Oracle: controllertest.Liveness,
	}, {
		Bug: "blind-update", Cause: "blind write",
		Does:      "replaces the parent without its version to set an annotation, and loses the user's change",
		Reference: "openshift/cluster-network-operator#2325",
		Plan:      "commit-503@update configmaps web#1",
		Oracle:    controllertest.EndState,
	}, {
		Bug: "ignored-conflict", Cause: "ignored conflict",
		Does:      "ignores a conflict because it expects an event, which its predicate drops",
		Reference: "Azure/azure-service-operator#2719",
		Plan:      "409@update configmaps web metadata.annotations#1",
		Oracle:    controllertest.Liveness,
	}, {
		Bug: "no-child-watch", Cause: "no watch on children",
		Does:      "ignores the events of its children, and restores a deleted one only after a restart",
		Reference: "knative/serving#2343", Historic: true,
		Plan:   "drift-delete(configmaps/web-*)@rest#1",
		Oracle: controllertest.Liveness,
	}, {
		Bug: "owner-by-name", Cause: "wrong owner",
		Does:      "stores the uid of the parent by name, and gives the children of a new parent to the deleted one",
		Reference: "red-hat-storage/odf-operator#301",
		Plan:      "user-recreate(configmaps/web)@update configmaps web metadata.annotations#1",
		Oracle:    controllertest.Quiescence,
	}}}
}

func replicasScenario(bug string) controllertest.Scenario {
	return controllertest.Scenario{
		Name: "replicas",
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			options := loopOptions{staleReads: bug == "stale-count", anyVersion: bug == "any-version"}
			if bug == "ignored-conflict" {
				options.handler = onlyData
			}
			l, err := newLoop(cfg, env, options)
			if err != nil {
				return err
			}
			configMaps := l.factory.Core().V1().ConfigMaps()
			keys := parentOrOwner
			if bug == "no-child-watch" {
				keys = self
			}
			if err := l.watch(corev1.Resource("configmaps"), configMaps.Informer(), keys); err != nil {
				return err
			}
			r := &replicas{
				loop: l, bug: bug,
				client: l.kube.CoreV1().ConfigMaps(env.Namespace),
				cache:  configMaps.Lister().ConfigMaps(env.Namespace),
			}
			return l.run(ctx, r.reconcile)
		},
		Script: []controllertest.Step{
			{Name: "create", Do: createsConfigMap("web", map[string]string{"replicas": "2"})},
			{Name: "replicas 1", Do: editsConfigMap("web", `{"data":{"replicas":"1"}}`)},
			{Name: "replicas 3", Do: editsConfigMap("web", `{"data":{"replicas":"3"}}`)},
			{Name: "delete", Do: deletesConfigMap("web")},
		},
		Converged: func(s *controllertest.State) error {
			parent := s.Get("configmaps", "web")
			children, err := childrenOf(s, "configmaps", parent)
			if err != nil || parent == nil {
				return err
			}
			replicas := text(parent, "data", "replicas")
			if got := strconv.Itoa(len(children)); got != replicas {
				return fmt.Errorf("%s children, want %s: %q", got, replicas, slices.Sorted(maps.Keys(children)))
			}
			if ready := text(parent, "metadata", "annotations", readyAnnotation); ready != replicas {
				return fmt.Errorf("ready is %q, want %s", ready, replicas)
			}
			return nil
		},
	}
}

// onlyData drops the events of updates that change no data, as a predicate of generations does.
func onlyData(h cache.ResourceEventHandler) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: h.OnAdd, DeleteFunc: h.OnDelete,
		UpdateFunc: func(before, obj any) {
			if !sameData(before, obj) {
				h.OnUpdate(before, obj)
			}
		},
	}
}

type replicas struct {
	*loop
	bug    string
	client clientcorev1.ConfigMapInterface
	cache  listerscorev1.ConfigMapNamespaceLister

	last, uids sync.Map // of the bugs: the former state of a parent
}

func (r *replicas) reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	all, err := r.look(ctx, key)
	if err != nil {
		return reconcile.Result{}, err
	}
	parent := all[key.Name]
	if parent == nil {
		return reconcile.Result{}, nil
	}
	want, err := strconv.Atoi(parent.Data["replicas"])
	if err != nil {
		return reconcile.Result{}, nil // not a parent
	}
	owner := parent.DeepCopy()
	if r.bug == "owner-by-name" {
		uid, _ := r.uids.LoadOrStore(key, parent.UID)
		owner.UID = uid.(types.UID)
	}
	var children []*corev1.ConfigMap
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if metav1.IsControlledBy(all[name], owner) {
			children = append(children, all[name])
		}
	}

	surplus := children[min(want, len(children)):]
	if r.bug == "scale-down-edge" {
		last, _ := r.last.LoadOrStore(key, want)
		surplus = surplus[:min(max(last.(int)-want, 0), len(surplus))]
	}
	for _, child := range surplus {
		if err := r.client.Delete(ctx, child.Name, exactly(child)); ignoreNotFound(err) != nil {
			return reconcile.Result{}, err
		}
	}
	r.last.Store(key, want)
	if len(children) < want {
		err = r.create(ctx, owner) // one after the other
	}
	if len(children) != want {
		return reconcile.Result{RequeueAfter: 200 * time.Millisecond}, err // to see what became of it
	}

	if ready := strconv.Itoa(want); parent.Annotations[readyAnnotation] != ready {
		parent = parent.DeepCopy()
		metav1.SetMetaDataAnnotation(&parent.ObjectMeta, readyAnnotation, ready)
		if r.bug == "blind-update" {
			parent.ResourceVersion = ""
		}
		_, err = r.client.Update(ctx, parent, metav1.UpdateOptions{})
		if r.bug == "ignored-conflict" && apierrors.IsConflict(err) {
			err = nil
		}
	}
	return reconcile.Result{}, err
}

// create makes a child. A repeated create makes two, so client-go must not repeat it
// after any response.
func (r *replicas) create(ctx context.Context, owner *corev1.ConfigMap) error {
	child := &corev1.ConfigMap{ObjectMeta: childMeta(owner, "")}
	child.GenerateName = owner.Name + "-"
	request := r.kube.CoreV1().RESTClient().Post().Namespace(owner.Namespace).Resource("configmaps").Body(child)
	if r.bug != "resent-create" {
		request.MaxRetries(0)
	}
	return request.Do(ctx).Error()
}

// look returns all ConfigMaps. The cache does not show a child of a request whose
// response was lost.
func (r *replicas) look(ctx context.Context, key types.NamespacedName) (map[string]*corev1.ConfigMap, error) {
	if r.writes == nil || len(r.writes.Ambiguous(key)) == 0 {
		return snapshot(r.cache)
	}
	list, err := r.client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	all := map[string]*corev1.ConfigMap{}
	for _, item := range list.Items {
		all[item.Name] = &item
	}
	return all, nil
}
