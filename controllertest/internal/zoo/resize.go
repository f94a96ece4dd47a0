package zoo

import (
	"context"
	"fmt"
	"strconv"

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

// resizeFamily keeps a node and its claim, both Secrets, at the size data.size of the
// parent. A claim can only grow; a node must be replaced. The first lists may have any
// version, as with client-go on servers without watch-lists, so the controller checks an
// object before it deletes it.
func resizeFamily() Family {
	return Family{Name: "resize", Scenario: resizeScenario, Mutants: []Mutant{{
		Bug: "half-done", Cause: "condition lost half-way",
		Does:      "resizes the claim only if the node is too small, which is no longer so after the node was replaced",
		Reference: "rabbitmq/cluster-operator#782", Historic: true,
		Plan:   "crash-after@delete secrets db-node#1",
		Oracle: controllertest.Liveness,
	}, {
		Bug: "stale-parent", Cause: "destruction by a stale parent",
		Does:      "replaces the node by a smaller one because of an old version of the parent",
		Reference: "rabbitmq/cluster-operator#653", Historic: true,
		Plan:   "time-travel(configmaps<create secrets db-claim#1)@update configmaps db metadata.annotations#2",
		Oracle: controllertest.Events,
	}, {
		Bug: "delete-by-name", Cause: "deletion by name",
		Does:      "deletes the node by name from an old cache, and hits its replacement",
		Reference: "k8ssandra/cass-operator#118", Historic: true,
		Plan:   "time-travel(secrets<delete secrets db-node#1)@update configmaps db metadata.annotations#2",
		Oracle: controllertest.Events,
	}, {
		Bug: "no-tombstones", Cause: "missed deletion",
		Does:      "ignores deletions that the informer learned by a list, and waits forever for the deletion of the node",
		Reference: "Project-HAMi/HAMi-DRA#38",
		Plan:      "hold-relist(secrets)@delete secrets db-node#1",
		Oracle:    controllertest.Liveness,
	}}}
}

func resizeScenario(bug string) controllertest.Scenario {
	return controllertest.Scenario{
		Name: "resize",
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			l, err := newLoop(cfg, env, loopOptions{anyVersion: true, handler: func(h cache.ResourceEventHandler) cache.ResourceEventHandler {
				return news(h, bug)
			}})
			if err != nil {
				return err
			}
			configMaps, secrets := l.factory.Core().V1().ConfigMaps(), l.factory.Core().V1().Secrets()
			if err := l.watch(corev1.Resource("configmaps"), configMaps.Informer(), parentOrOwner); err != nil {
				return err
			}
			if err := l.watch(corev1.Resource("secrets"), secrets.Informer(), owner); err != nil {
				return err
			}
			r := &resize{
				bug:     bug,
				live:    l.kube.CoreV1().ConfigMaps(env.Namespace),
				client:  l.kube.CoreV1().Secrets(env.Namespace),
				parents: configMaps.Lister().ConfigMaps(env.Namespace),
				cache:   secrets.Lister().Secrets(env.Namespace),
			}
			return l.run(ctx, r.reconcile)
		},
		Script: []controllertest.Step{
			{Name: "create", Do: createsConfigMap("db", map[string]string{"size": "10"})},
			{Name: "size 15", Do: editsConfigMap("db", `{"data":{"size":"15"}}`)},
			{Name: "delete", Do: deletesConfigMap("db")},
		},
		Converged: func(s *controllertest.State) error {
			parent := s.Get("configmaps", "db")
			children, err := childrenOf(s, "secrets", parent)
			if err != nil || parent == nil {
				return err
			}
			want := text(parent, "data", "size")
			if got := text(parent, "metadata", "annotations", sizeKey); got != want {
				return fmt.Errorf("the size is said to be %q, want %s", got, want)
			}
			for _, name := range []string{"db-claim", "db-node"} {
				if children[name] == nil {
					return fmt.Errorf("there is no %s", name)
				}
				if got := text(children[name], "metadata", "labels", sizeKey); got != want {
					return fmt.Errorf("%s has size %s, want %s", name, got, want)
				}
			}
			return nil
		},
	}
}

// sizeKey is the label with the size of a child, and the annotation of the parent with
// its present size.
const sizeKey = "zoo.example.com/size"

type resize struct {
	bug     string
	live    clientcorev1.ConfigMapInterface
	client  clientcorev1.SecretInterface
	parents listerscorev1.ConfigMapNamespaceLister
	cache   listerscorev1.SecretNamespaceLister
}

func (r *resize) reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	parent, err := r.parents.Get(key.Name)
	if err != nil {
		return reconcile.Result{}, ignoreNotFound(err)
	}
	size, err := strconv.Atoi(parent.Data["size"])
	if err != nil {
		return reconcile.Result{}, nil // not a parent
	}
	claim, claimSize, err := r.child(parent, "claim")
	if err != nil {
		return reconcile.Result{}, err
	}
	node, nodeSize, err := r.child(parent, "node")
	if err != nil {
		return reconcile.Result{}, err
	}
	if r.bug != "stale-parent" {
		size = max(size, claimSize, nodeSize) // a smaller one is of the past
	}

	// One write at a time: its event brings the parent back.
	switch {
	case claim == nil:
		return reconcile.Result{}, r.create(ctx, parent, "claim", size)
	case claimSize < size && r.bug != "half-done":
		return reconcile.Result{}, r.grow(ctx, claim, size)
	case node == nil:
		return reconcile.Result{}, r.create(ctx, parent, "node", size)
	case nodeSize != size:
		options := exactly(node)
		if r.bug == "delete-by-name" {
			options = metav1.DeleteOptions{}
		}
		err := r.client.Delete(ctx, node.Name, options)
		if err == nil && r.bug == "half-done" {
			err = r.grow(ctx, claim, size)
		}
		return reconcile.Result{}, ignoreNotFound(err)
	case parent.Annotations[sizeKey] != strconv.Itoa(size):
		parent = parent.DeepCopy()
		metav1.SetMetaDataAnnotation(&parent.ObjectMeta, sizeKey, strconv.Itoa(size))
		_, err := r.live.Update(ctx, parent, metav1.UpdateOptions{})
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, nil
}

func (r *resize) grow(ctx context.Context, claim *corev1.Secret, size int) error {
	claim = claim.DeepCopy()
	claim.Labels[sizeKey] = strconv.Itoa(size)
	_, err := r.client.Update(ctx, claim, metav1.UpdateOptions{})
	return err
}

// child returns a child and its size, or nil if it is absent. A child of an earlier
// parent with the same name is in the way: its deletion adds the parent again.
func (r *resize) child(parent *corev1.ConfigMap, role string) (*corev1.Secret, int, error) {
	child, err := r.cache.Get(parent.Name + "-" + role)
	if err != nil {
		return nil, 0, ignoreNotFound(err)
	}
	if !metav1.IsControlledBy(child, parent) {
		return nil, 0, apierrors.NewAlreadyExists(corev1.Resource("secrets"), child.Name)
	}
	size, err := strconv.Atoi(child.Labels[sizeKey])
	return child, size, err
}

// create makes a child, unless the parent is deleted: the cache of Secrets can show a
// garbage collection before the cache of ConfigMaps shows the deletion of the parent.
func (r *resize) create(ctx context.Context, parent *corev1.ConfigMap, role string, size int) error {
	live, err := r.live.Get(ctx, parent.Name, metav1.GetOptions{})
	if err != nil || live.UID != parent.UID {
		return ignoreNotFound(err)
	}
	child := &corev1.Secret{ObjectMeta: childMeta(parent, parent.Name+"-"+role)}
	metav1.SetMetaDataLabel(&child.ObjectMeta, sizeKey, strconv.Itoa(size))
	_, err = r.client.Create(ctx, child, metav1.CreateOptions{})
	return err
}

// news passes on changes, but not objects that were only listed again.
func news(h cache.ResourceEventHandler, bug string) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: h.OnAdd,
		UpdateFunc: func(before, after any) {
			if before.(metav1.Object).GetResourceVersion() != after.(metav1.Object).GetResourceVersion() {
				h.OnUpdate(before, after)
			}
		},
		DeleteFunc: func(obj any) {
			if _, missed := obj.(cache.DeletedFinalStateUnknown); missed && bug == "no-tombstones" {
				return
			}
			h.OnDelete(obj)
		},
	}
}
