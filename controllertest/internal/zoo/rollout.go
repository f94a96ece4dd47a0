package zoo

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	listerscorev1 "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/reconcile"
)

// Annotations of the family rollout.
const (
	rolledAnnotation = "zoo.example.com/rolled"   // of a parent: the hash of the config that all nodes have
	countAnnotation  = "zoo.example.com/rollouts" // of a parent: how many there were
	hashAnnotation   = "zoo.example.com/hash"     // of a node: the hash of its config
	joinedAnnotation = "zoo.example.com/joined"   // of a node: it was made known to the others
)

// rolloutFamily brings data.config of the parent to two nodes, one after the
// other: a ConfigMap named by the config's hash, the nodes, away with the old
// ConfigMap, and a note on the parent that it is done. All are ConfigMaps.
func rolloutFamily() Family {
	return Family{Name: "rollout", Scenario: rolloutScenario, Mutants: []Mutant{{
		Bug: "config-first", Cause: "change noticed only once",
		Does:      "updates the nodes only in the call that creates the new config",
		Reference: "konpyutaika/nifikop#49", Historic: true,
		Plan:   "crash-after@create configmaps kafka-config-4bd02db4#1",
		Oracle: controllertest.Liveness,
	}, {
		Bug: "join-once", Cause: "step only at creation",
		Does:      "announces a node only right after its creation, and never if that fails",
		Reference: "konpyutaika/nifikop#79", Historic: true,
		Plan:   "crash-after@create configmaps kafka-a#1",
		Oracle: controllertest.Liveness,
	}, {
		Bug: "gone-is-an-error", Cause: "step that cannot be repeated",
		Does:      "fails forever on the old config if it was deleted before the progress was stored",
		Reference: "Orange-OpenSource/casskop#370", Historic: true,
		Plan:   "crash-after@delete configmaps kafka-config-a2c4f48c#1",
		Oracle: controllertest.Liveness,
	}, {
		Bug: "done-first", Cause: "marker before the work",
		Does:      "stores the end of the rollout before it deletes the old config, and then does not find the old config",
		Reference: "elastic/cloud-on-k8s#1730",
		Plan:      "crash-before@delete configmaps kafka-config-a2c4f48c#1",
		Oracle:    controllertest.Liveness,
	}, {
		Bug: "count-apart", Cause: "count that is not idempotent",
		Does:      "counts a rollout when it begins, and counts a restarted one twice",
		Reference: "kubernetes/kubernetes#114768",
		Plan:      "crash-before@create configmaps kafka-a#1",
		Oracle:    controllertest.EndState,
	}, {
		Bug: "swallowed-error", Cause: "swallowed error",
		Does:      "continues although the creation of the config failed, and points the nodes to an absent config",
		Reference: "openstack-k8s-operators/keystone-operator#187",
		Plan:      "500@create configmaps kafka-config-a2c4f48c#1",
		Oracle:    controllertest.Invariance,
	}}}
}

func rolloutScenario(bug string) controllertest.Scenario {
	return controllertest.Scenario{
		Name: "rollout",
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			l, err := newLoop(cfg, env, loopOptions{})
			if err != nil {
				return err
			}
			configMaps := l.factory.Core().V1().ConfigMaps()
			if err := l.watch(corev1.Resource("configmaps"), configMaps.Informer(), parentOrOwner); err != nil {
				return err
			}
			r := &rollout{bug: bug, client: l.kube.CoreV1().ConfigMaps(env.Namespace), cache: configMaps.Lister().ConfigMaps(env.Namespace)}
			return l.run(ctx, r.reconcile)
		},
		Script: []controllertest.Step{
			{Name: "create", Do: createsConfigMap("kafka", map[string]string{"config": "small"})},
			{Name: "config large", Do: editsConfigMap("kafka", `{"data":{"config":"large"}}`)},
			{Name: "delete", Do: deletesConfigMap("kafka")},
		},
		Converged: func(s *controllertest.State) error {
			parent := s.Get("configmaps", "kafka")
			children, err := childrenOf(s, "configmaps", parent)
			if err != nil || parent == nil {
				return err
			}
			hash := hashOf(text(parent, "data", "config"))
			if children[configName("kafka", hash)] == nil || len(children) != 3 {
				return fmt.Errorf("%d children, want the config %s and two nodes", len(children), hash)
			}
			for _, name := range []string{"kafka-a", "kafka-b"} {
				if got := text(children[name], "metadata", "annotations", hashAnnotation); got != hash {
					return fmt.Errorf("%s has config %s, want %s", name, got, hash)
				}
				if text(children[name], "metadata", "annotations", joinedAnnotation) == "" {
					return fmt.Errorf("%s has not joined", name)
				}
			}
			if got := text(parent, "metadata", "annotations", rolledAnnotation); got != hash {
				return fmt.Errorf("rolled is %q, want %s", got, hash)
			}
			return nil
		},
		Invariants: []controllertest.Invariant{{
			Name: "a node's config exists",
			Check: func(s *controllertest.State) error {
				parent := s.Get("configmaps", "kafka")
				if parent == nil {
					return nil
				}
				for _, name := range []string{"kafka-a", "kafka-b"} {
					node := s.Get("configmaps", name)
					if node == nil || !metav1.IsControlledBy(node, parent) {
						continue
					}
					if config := configName("kafka", text(node, "metadata", "annotations", hashAnnotation)); s.Get("configmaps", config) == nil {
						return fmt.Errorf("%s needs %s", name, config)
					}
				}
				return nil
			},
		}},
	}
}

type rollout struct {
	bug    string
	client clientcorev1.ConfigMapInterface
	cache  listerscorev1.ConfigMapNamespaceLister
}

func (r *rollout) reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	all, err := snapshot(r.cache)
	if err != nil {
		return reconcile.Result{}, err
	}
	parent := all[key.Name]
	if parent == nil {
		return reconcile.Result{}, nil
	}
	if parent.Data["config"] == "" {
		return reconcile.Result{}, nil // not a parent
	}
	hash, rolled := hashOf(parent.Data["config"]), parent.Annotations[rolledAnnotation]
	count, _ := strconv.Atoi(parent.Annotations[countAnnotation])
	if rolled != hash {
		count++
	}
	if r.bug == "count-apart" && rolled != hash {
		if parent, err = r.note(ctx, parent, rolled, count); err != nil {
			return reconcile.Result{}, err
		}
	}

	made, err := r.config(ctx, all, parent, hash)
	if err != nil && r.bug != "swallowed-error" {
		return reconcile.Result{}, err
	}
	if r.bug != "config-first" || made {
		for _, role := range []string{"a", "b"} {
			if err := r.node(ctx, all, parent, role, hash); err != nil {
				return reconcile.Result{}, err
			}
		}
	}

	if r.bug == "done-first" {
		if rolled == hash {
			return reconcile.Result{}, nil
		}
		if parent, err = r.note(ctx, parent, hash, count); err != nil {
			return reconcile.Result{}, err
		}
	}
	if rolled != "" && all[configName(parent.Name, rolled)] == nil && r.bug == "gone-is-an-error" {
		return reconcile.Result{}, fmt.Errorf("there is no config %s", rolled)
	}
	// Also the config of a rollout that the user has stopped.
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if old := all[name]; strings.HasPrefix(name, configName(parent.Name, "")) && name != configName(parent.Name, hash) && metav1.IsControlledBy(old, parent) {
			if err := r.client.Delete(ctx, name, exactly(old)); ignoreNotFound(err) != nil {
				return reconcile.Result{}, err
			}
		}
	}
	if rolled == hash {
		return reconcile.Result{}, nil
	}
	_, err = r.note(ctx, parent, hash, count)
	return reconcile.Result{}, err
}

// config creates the ConfigMap with the config, and reports whether it was absent.
func (r *rollout) config(ctx context.Context, all map[string]*corev1.ConfigMap, parent *corev1.ConfigMap, hash string) (made bool, err error) {
	name := configName(parent.Name, hash)
	if child, err := child(all, parent, name); child != nil || err != nil {
		return false, err
	}
	_, err = r.client.Create(ctx, &corev1.ConfigMap{ObjectMeta: childMeta(parent, name), Data: parent.Data}, metav1.CreateOptions{})
	return err == nil, err
}

// node makes a node have the config, and known.
func (r *rollout) node(ctx context.Context, all map[string]*corev1.ConfigMap, parent *corev1.ConfigMap, role, hash string) error {
	node, err := child(all, parent, parent.Name+"-"+role)
	if err != nil {
		return err
	}
	created := node == nil
	if created {
		node = &corev1.ConfigMap{ObjectMeta: childMeta(parent, parent.Name+"-"+role)}
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, hashAnnotation, hash)
		if node, err = r.client.Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if node, err = r.annotate(ctx, node, hashAnnotation, hash); err != nil {
		return err
	}
	if r.bug != "join-once" || created {
		_, err = r.annotate(ctx, node, joinedAnnotation, "true")
	}
	return err
}

// note stores the progress in the parent.
func (r *rollout) note(ctx context.Context, parent *corev1.ConfigMap, rolled string, count int) (*corev1.ConfigMap, error) {
	return r.annotate(ctx, parent, rolledAnnotation, rolled, countAnnotation, strconv.Itoa(count))
}

// annotate sets annotations, given as names and values, if they are not set.
func (r *rollout) annotate(ctx context.Context, obj *corev1.ConfigMap, pairs ...string) (*corev1.ConfigMap, error) {
	changed := obj.DeepCopy()
	for pair := range slices.Chunk(pairs, 2) {
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, pair[0], pair[1])
	}
	if maps.Equal(changed.Annotations, obj.Annotations) {
		return obj, nil
	}
	return r.client.Update(ctx, changed, metav1.UpdateOptions{})
}

// child returns a child, or nil if it is absent. A child of an earlier parent with the
// same name is in the way.
func child(all map[string]*corev1.ConfigMap, parent *corev1.ConfigMap, name string) (*corev1.ConfigMap, error) {
	if all[name] != nil && !metav1.IsControlledBy(all[name], parent) {
		return nil, apierrors.NewAlreadyExists(corev1.Resource("configmaps"), name)
	}
	return all[name], nil
}

func configName(parent, hash string) string { return parent + "-config-" + hash }

func hashOf(config string) string {
	h := fnv.New32a()
	h.Write([]byte(config))
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}
