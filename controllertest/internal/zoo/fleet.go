package zoo

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	clientcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	listerscorev1 "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/reconcile"
)

// fleetFamily keeps the Secrets of a parent: one with its size, one for each revision of
// the size, and data.replicas members. The server chooses the names of revisions and
// members. The correct controller lists the Secrets of each call from the server. Each
// mutant trusts its cache in one place, so it needs a user who edits the parent while the
// cache does not show the last write.
func fleetFamily() Family {
	return Family{Name: "fleet", Scenario: fleetScenario, Mutants: []Mutant{{
		Bug: "too-many", Cause: "own writes not seen",
		Does:      "counts members in its cache, and creates too many if the user scales up before the cache shows the first",
		Reference: "ray-project/kuberay#704", Historic: true,
		Plan:   "next-step(secrets)@create secrets web-member-*#1",
		Oracle: controllertest.Events,
	}, {
		Bug: "revision-twice", Cause: "own writes not seen",
		Does:      "searches its cache for the revision of the size, and creates it twice if the user edits another field meanwhile",
		Reference: "kubernetes-sigs/cluster-api#13649", Historic: true,
		Plan:   "next-step(secrets)@create secrets web-rev-*#1",
		Oracle: controllertest.Liveness,
	}, {
		Bug: "early-ready", Cause: "status of an old state",
		Does:      "reports a version as ready because its cache still shows the value that the user has taken back",
		Reference: "VictoriaMetrics/operator#1579", Historic: true,
		Plan:   "next-step(secrets)@update secrets web-config metadata.annotations#1",
		Oracle: controllertest.Invariance,
	}, {
		Bug: "matches-in-cache", Cause: "own deletion not seen",
		Does:      "finds the Secret that it has just deleted in its cache, creates none, and ignores the event of its own deletion",
		Reference: "open-cluster-management-io/governance-policy-propagator#334", Historic: true,
		Plan:   "next-step(secrets)@delete secrets web-config#1",
		Oracle: controllertest.Invariance,
	}}}
}

const (
	fleetReady    = "fleet.zoo.example.com/ready"    // annotation of the parent: the version that is ready
	fleetRevision = "fleet.zoo.example.com/revision" // label: the size
	fleetMember   = "fleet.zoo.example.com/member"   // label
)

func fleetScenario(bug string) controllertest.Scenario {
	return controllertest.Scenario{
		Name: "fleet",
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			o := loopOptions{staleReads: true}
			if bug == "matches-in-cache" {
				o.handler = withoutDeletions
			}
			l, err := newLoop(cfg, env, o)
			if err != nil {
				return err
			}
			configMaps, secrets := l.factory.Core().V1().ConfigMaps(), l.factory.Core().V1().Secrets()
			if err := l.watch(corev1.Resource("configmaps"), configMaps.Informer(), self); err != nil {
				return err
			}
			if err := l.watch(corev1.Resource("secrets"), secrets.Informer(), owner); err != nil {
				return err
			}
			f := &fleet{
				loop: l, bug: bug, client: l.kube.CoreV1().Secrets(env.Namespace),
				parents: configMaps.Lister().ConfigMaps(env.Namespace), cache: secrets.Lister().Secrets(env.Namespace),
			}
			return l.run(ctx, f.reconcile)
		},
		Script: []controllertest.Step{
			{Name: "create", Do: createsConfigMap("web", map[string]string{"version": "1", "size": "1", "replicas": "1", "config": "yes"})},
			{Name: "replicas 2", Do: editsConfigMap("web", `{"data":{"version":"2","replicas":"2"}}`)},
			{Name: "size 2", Do: editsConfigMap("web", `{"data":{"version":"3","size":"2"}}`)},
			{Name: "size 1", Do: editsConfigMap("web", `{"data":{"version":"4","size":"1"}}`)},
			{Name: "no config", Do: editsConfigMap("web", `{"data":{"version":"5","config":"no"}}`)},
			{Name: "config", Do: editsConfigMap("web", `{"data":{"version":"6","config":"yes"}}`)},
		},
		Converged: func(s *controllertest.State) error {
			parent := s.Get("configmaps", "web")
			children, err := childrenOf(s, "secrets", parent)
			if err != nil || parent == nil {
				return err
			}
			members, revisions := 0, []string{}
			for _, child := range children {
				if revision := child.GetLabels()[fleetRevision]; revision != "" {
					revisions = append(revisions, revision)
				}
				if child.GetLabels()[fleetMember] != "" {
					members++
				}
			}
			if want := text(parent, "data", "size"); !slices.Equal(revisions, []string{want}) {
				return fmt.Errorf("the revisions are %q, want one of %s", revisions, want)
			}
			if got, want := strconv.Itoa(members), text(parent, "data", "replicas"); got != want {
				return fmt.Errorf("%s members, want %s", got, want)
			}
			if ready, want := text(parent, "metadata", "annotations", fleetReady), text(parent, "data", "version"); ready != want {
				return fmt.Errorf("version %q is ready, want %s", ready, want)
			}
			return configured(s)
		},
		Invariants: []controllertest.Invariant{{Name: "a ready version has its config", Check: func(s *controllertest.State) error {
			if parent := s.Get("configmaps", "web"); parent == nil || text(parent, "metadata", "annotations", fleetReady) != text(parent, "data", "version") {
				return nil
			}
			return configured(s)
		}}},
	}
}

// configured requires the Secret with the size, if the parent wants it.
func configured(s *controllertest.State) error {
	parent, config := s.Get("configmaps", "web"), s.Get("secrets", "web-config")
	switch {
	case parent.GetDeletionTimestamp() != nil:
	case (config != nil) != (text(parent, "data", "config") == "yes"):
		return fmt.Errorf("web-config exists: %t", config != nil)
	case config != nil && config.GetAnnotations()["size"] != text(parent, "data", "size"):
		return fmt.Errorf("web-config has the size %q", config.GetAnnotations()["size"])
	}
	return nil
}

// withoutDeletions is a handler that ignores deletions.
func withoutDeletions(next cache.ResourceEventHandler) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerDetailedFuncs{AddFunc: next.OnAdd, UpdateFunc: next.OnUpdate}
}

type fleet struct {
	*loop
	bug     string
	client  clientcorev1.SecretInterface
	parents listerscorev1.ConfigMapNamespaceLister
	cache   listerscorev1.SecretNamespaceLister
}

func (f *fleet) reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	parent, err := f.parents.Get(key.Name)
	if err != nil || parent.Data["version"] == "" || parent.DeletionTimestamp != nil {
		return reconcile.Result{}, ignoreNotFound(err)
	}
	list, err := f.client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return reconcile.Result{}, err
	}
	live := map[string]*corev1.Secret{}
	for n := range list.Items {
		if secret := &list.Items[n]; metav1.IsControlledBy(secret, parent) {
			live[secret.Name] = secret
		}
	}
	cached := map[string]*corev1.Secret{}
	all, err := f.cache.List(labels.Everything())
	if err != nil {
		return reconcile.Result{}, err
	}
	for _, secret := range all {
		if metav1.IsControlledBy(secret, parent) {
			cached[secret.Name] = secret
		}
	}
	seen := func(bugs ...string) map[string]*corev1.Secret {
		if slices.Contains(bugs, f.bug) {
			return cached
		}
		return live
	}
	if err := f.config(ctx, parent, seen("early-ready", "matches-in-cache")); err != nil {
		return reconcile.Result{}, err
	}
	if err := f.revision(ctx, parent, seen("revision-twice")); err != nil {
		return reconcile.Result{}, err
	}
	if err := f.members(ctx, parent, seen("too-many")); err != nil {
		return reconcile.Result{}, err
	}
	if parent.Annotations[fleetReady] == parent.Data["version"] {
		return reconcile.Result{}, nil
	}
	parent = parent.DeepCopy()
	metav1.SetMetaDataAnnotation(&parent.ObjectMeta, fleetReady, parent.Data["version"])
	_, err = f.kube.CoreV1().ConfigMaps(key.Namespace).Update(ctx, parent, metav1.UpdateOptions{})
	return reconcile.Result{}, err
}

// config keeps the Secret with the size.
func (f *fleet) config(ctx context.Context, parent *corev1.ConfigMap, seen map[string]*corev1.Secret) error {
	size, config := parent.Data["size"], seen["web-config"]
	switch {
	case parent.Data["config"] != "yes" && config != nil:
		return ignoreNotFound(f.client.Delete(ctx, config.Name, exactly(config)))
	case parent.Data["config"] != "yes":
		return nil
	case config == nil:
		config = &corev1.Secret{ObjectMeta: childMeta(parent, "web-config")}
		metav1.SetMetaDataAnnotation(&config.ObjectMeta, "size", size)
		_, err := f.client.Create(ctx, config, metav1.CreateOptions{})
		return err
	case config.Annotations["size"] == size:
		return nil
	}
	config = config.DeepCopy()
	metav1.SetMetaDataAnnotation(&config.ObjectMeta, "size", size)
	_, err := f.client.Update(ctx, config, metav1.UpdateOptions{})
	return err
}

// revision keeps one Secret for the size, and deletes the Secrets of other sizes.
func (f *fleet) revision(ctx context.Context, parent *corev1.ConfigMap, seen map[string]*corev1.Secret) error {
	found := false
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		switch revision := seen[name].Labels[fleetRevision]; revision {
		case "":
		case parent.Data["size"]:
			found = true
		default:
			if err := f.client.Delete(ctx, name, exactly(seen[name])); ignoreNotFound(err) != nil {
				return err
			}
		}
	}
	if found {
		return nil
	}
	return f.create(ctx, parent, "web-rev-", map[string]string{fleetRevision: parent.Data["size"]})
}

// members keeps the number of members.
func (f *fleet) members(ctx context.Context, parent *corev1.ConfigMap, seen map[string]*corev1.Secret) error {
	want, err := strconv.Atoi(parent.Data["replicas"])
	if err != nil {
		return err
	}
	var have []string
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		if seen[name].Labels[fleetMember] != "" {
			have = append(have, name)
		}
	}
	for _, name := range have[min(want, len(have)):] {
		if err := f.client.Delete(ctx, name, exactly(seen[name])); ignoreNotFound(err) != nil {
			return err
		}
	}
	for range want - len(have) {
		if err := f.create(ctx, parent, "web-member-", map[string]string{fleetMember: "true"}); err != nil {
			return err
		}
	}
	return nil
}

// create makes a Secret with a generated name. A repeated request makes two, so client-go
// must not repeat it.
func (f *fleet) create(ctx context.Context, parent *corev1.ConfigMap, prefix string, labels map[string]string) error {
	child := &corev1.Secret{ObjectMeta: childMeta(parent, "")}
	child.GenerateName, child.Labels = prefix, labels
	err := f.kube.CoreV1().RESTClient().Post().Namespace(parent.Namespace).Resource("secrets").Body(child).MaxRetries(0).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("the generated name is taken: %w", err)
	}
	return err
}
