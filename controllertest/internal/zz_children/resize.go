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

// resizeFamily keeps a node and its claim, both Secrets, at the size that
// data.size of the parent says. A claim can only grow, a node has to be replaced.
// It begins with whatever version of its objects the API server has, as client-go
// does on servers without watch-lists, so it checks what it destroys.
func resizeFamily() Family {
	return Family{Name: "resize", Scenario: resizeScenario, Mutants: []Mutant{{
		Bug: "half-done", Cause: "condition lost half-way",
		Does:      "Resizes the claim only when it finds the node too small, which it is no more once it was replaced.",
		Reference: "rabbitmq/cluster-operator#782", Historic: true,
	}, {
		Bug: "stale-parent", Cause: "destruction by a stale parent",
		Does:      "Replaces the node by a smaller one, since an old parent asks for it.",
		Reference: "rabbitmq/cluster-operator#653", Historic: true,
	}, {
		Bug: "delete-by-name", Cause: "deletion by name",
		Does:      "Deletes what has the name of the node that an old cache shows: the one that replaced it.",
		Reference: "k8ssandra/cass-operator#118", Historic: true,
	}, {
		Bug: "no-tombstones", Cause: "missed deletion",
		Does:      "Ignores deletions that the informer has not seen itself, and waits for ever for the node to be gone.",
		Reference: "Project-HAMi/HAMi-DRA#38",
	}}}
}

func resizeScenario(bug string) controllertest.Scenario {
	return controllertest.Scenario{
		Name: "resize",
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			o := loopOptions{anyVersion: true}
			if bug == "no-tombstones" {
				o.handler = seenDeletions
			}
			l, err := newLoop(cfg, env, o)
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
			for _, name := range []string{"db-claim", "db-node"} {
				want := text(parent, "data", "size")
				if children[name] == nil {
					return fmt.Errorf("there is no %s", name)
				}
				if got := text(children[name], "metadata", "labels", sizeLabel); got != want {
					return fmt.Errorf("%s has size %s, want %s", name, got, want)
				}
			}
			return nil
		},
	}
}

const sizeLabel = "zoo.example.com/size"

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

	if claim == nil {
		if err := r.create(ctx, parent, "claim", size); err != nil {
			return reconcile.Result{}, err
		}
	}
	if claim != nil && claimSize < size && r.bug != "half-done" {
		if err := r.grow(ctx, claim, size); err != nil {
			return reconcile.Result{}, err
		}
	}
	if node == nil {
		return reconcile.Result{}, r.create(ctx, parent, "node", size)
	}
	if nodeSize != size {
		options := exactly(node)
		if r.bug == "delete-by-name" {
			options = metav1.DeleteOptions{}
		}
		if err := r.client.Delete(ctx, node.Name, options); ignoreNotFound(err) != nil {
			return reconcile.Result{}, err
		}
		if r.bug == "half-done" {
			return reconcile.Result{}, r.grow(ctx, claim, size)
		}
	}
	return reconcile.Result{}, nil // the deletion brings the parent back
}

func (r *resize) grow(ctx context.Context, claim *corev1.Secret, size int) error {
	claim = claim.DeepCopy()
	claim.Labels[sizeLabel] = strconv.Itoa(size)
	_, err := r.client.Update(ctx, claim, metav1.UpdateOptions{})
	return err
}

// child returns a child and its size, nil if there is none. One of a parent that
// had the same name is in the way: its deletion brings the parent back.
func (r *resize) child(parent *corev1.ConfigMap, role string) (*corev1.Secret, int, error) {
	child, err := r.cache.Get(parent.Name + "-" + role)
	if err != nil {
		return nil, 0, ignoreNotFound(err)
	}
	if !metav1.IsControlledBy(child, parent) {
		return nil, 0, apierrors.NewAlreadyExists(corev1.Resource("secrets"), child.Name)
	}
	size, err := strconv.Atoi(child.Labels[sizeLabel])
	return child, size, err
}

// create makes a child, unless the parent is gone: the cache of Secrets can show
// what the garbage collector has removed sooner than that of ConfigMaps shows why.
func (r *resize) create(ctx context.Context, parent *corev1.ConfigMap, role string, size int) error {
	live, err := r.live.Get(ctx, parent.Name, metav1.GetOptions{})
	if err != nil || live.UID != parent.UID {
		return ignoreNotFound(err)
	}
	child := &corev1.Secret{ObjectMeta: childMeta(parent, parent.Name+"-"+role)}
	metav1.SetMetaDataLabel(&child.ObjectMeta, sizeLabel, strconv.Itoa(size))
	_, err = r.client.Create(ctx, child, metav1.CreateOptions{})
	return err
}

// seenDeletions hides deletions that were not seen from a handler.
func seenDeletions(h cache.ResourceEventHandler) cache.ResourceEventHandler {
	return cache.FilteringResourceEventHandler{Handler: h, FilterFunc: func(obj any) bool {
		_, tombstone := obj.(cache.DeletedFinalStateUnknown)
		return !tombstone
	}}
}
