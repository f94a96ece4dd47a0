package zoo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/ssa"
)

const (
	referenceFinalizer = "zoo.example.com/account"
	referenceManager   = ssa.FieldManager("zoo")
	parentLabel        = "zoo.example.com/parent"
)

// Reference is the scenario for measurements: a parent with a number of children, an
// account in the cloud that its finalizer guards, and an annotation with the progress.
// It is correct.
func Reference() controllertest.Scenario {
	return controllertest.Scenario{
		Name:  "reference",
		Start: startReference,
		Script: []controllertest.Step{
			{Name: "create with 2", Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
				return createParent(ctx, cfg, env, "2")
			}},
			{Name: "scale to 3", Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
				return scaleParent(ctx, cfg, env, "3")
			}},
			{Name: "scale to 1", Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
				return scaleParent(ctx, cfg, env, "1")
			}},
		},
		Converged: referenceConverged,
		Invariants: []controllertest.Invariant{
			{Name: "no account without a finalizer", Check: func(s *controllertest.State) error {
				parent := s.Get("configmaps", "parent")
				if len(s.Cloud()) > 0 && (parent == nil || !slices.Contains(parent.GetFinalizers(), referenceFinalizer)) {
					return errors.New("there is an account, and nothing that holds the parent")
				}
				return nil
			}},
			{Name: "at most one account", Check: func(s *controllertest.State) error {
				if n := len(s.Cloud()); n > 1 {
					return fmt.Errorf("there are %d", n)
				}
				return nil
			}},
		},
	}
}

func createParent(ctx context.Context, cfg *rest.Config, env *controllertest.Env, replicas string) error {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	_, err = client.CoreV1().ConfigMaps(env.Namespace).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "parent"}, Data: map[string]string{"replicas": replicas},
	}, metav1.CreateOptions{})
	return err
}

func scaleParent(ctx context.Context, cfg *rest.Config, env *controllertest.Env, replicas string) error {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	_, err = client.CoreV1().ConfigMaps(env.Namespace).Patch(ctx, "parent", types.MergePatchType,
		[]byte(`{"data":{"replicas":"`+replicas+`"}}`), metav1.PatchOptions{})
	return err
}

func referenceConverged(s *controllertest.State) error {
	want := 0
	if parent := s.Get("configmaps", "parent"); parent != nil {
		if parent.GetDeletionTimestamp() != nil {
			return errors.New("the parent is being deleted")
		}
		replicas, _, _ := unstructured.NestedString(parent.Object, "data", "replicas")
		if done := parent.GetAnnotations()["done"]; done != replicas {
			return fmt.Errorf("%q replicas are wanted and %q done", replicas, done)
		}
		want, _ = strconv.Atoi(replicas)
		if n := len(s.Cloud()); n != 1 {
			return fmt.Errorf("%d accounts, want one", n)
		}
	} else if n := len(s.Cloud()); n != 0 {
		return fmt.Errorf("%d accounts of no parent", n)
	}
	have := 0
	for _, o := range s.Objects("configmaps") {
		if o.GetLabels()[parentLabel] != "" {
			have++
		}
	}
	if have != want {
		return fmt.Errorf("%d children, want %d", have, want)
	}
	return nil
}

func startReference(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
	l, err := newLoop(cfg, env, loopOptions{})
	if err != nil {
		return err
	}
	informer := l.factory.Core().V1().ConfigMaps()
	if err := l.watch(corev1.Resource("configmaps"), informer.Informer(), func(o metav1.Object) []types.NamespacedName {
		if keys := owner(o); keys != nil {
			return keys
		}
		return self(o)
	}); err != nil {
		return err
	}
	lister := informer.Lister().ConfigMaps(env.Namespace)
	client := l.kube.CoreV1().ConfigMaps(env.Namespace)

	return l.run(ctx, func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
		parent, err := lister.Get(key.Name)
		if apierrors.IsNotFound(err) || err == nil && parent.Labels[parentLabel] != "" {
			return reconcile.Result{}, nil
		}
		children, listErr := lister.List(labels.SelectorFromSet(labels.Set{parentLabel: key.Name}))
		if err := errors.Join(err, listErr); err != nil {
			return reconcile.Result{}, err
		}
		held, live, err := finalizer.Ensure(ctx, client, parent, referenceFinalizer, func(ctx context.Context, held finalizer.Held[*corev1.ConfigMap]) error {
			for _, child := range children {
				if err := deleteChild(ctx, l, child); err != nil {
					return err
				}
			}
			return closeAccounts(ctx, env.Cloud, accountName(held.Object()))
		})
		if err != nil || !live {
			return reconcile.Result{}, err
		}
		parent = held.Object()
		replicas, err := strconv.Atoi(parent.Data["replicas"])
		if err != nil {
			return reconcile.Result{}, fmt.Errorf("data.replicas: %w", err)
		}
		if err := openAccount(ctx, env.Cloud, accountName(parent)); err != nil {
			return reconcile.Result{}, err
		}
		for _, child := range children {
			if n, err := strconv.Atoi(child.Data["index"]); err != nil || n >= replicas {
				if err := deleteChild(ctx, l, child); err != nil {
					return reconcile.Result{}, err
				}
			}
		}
		for n := range replicas {
			name := fmt.Sprintf("%s-%d", key.Name, n)
			if slices.ContainsFunc(children, func(c *corev1.ConfigMap) bool { return c.Name == name && metav1.IsControlledBy(c, parent) }) {
				continue
			}
			child := &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{
					Name: name, Labels: map[string]string{parentLabel: key.Name},
					OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(parent, corev1.SchemeGroupVersion.WithKind("ConfigMap"))},
				},
				Data: map[string]string{"index": strconv.Itoa(n)},
			}
			if _, err := client.Create(ctx, child, metav1.CreateOptions{}); err != nil {
				// Also a child of an earlier parent that is not collected yet: its
				// deletion adds this key again.
				if apierrors.IsAlreadyExists(err) {
					return reconcile.Result{}, fmt.Errorf("%s is there already: %w", name, err)
				}
				return reconcile.Result{}, err
			}
		}
		if parent.Annotations["done"] != parent.Data["replicas"] {
			_, err = ssa.Apply(ctx, referenceManager, client.Apply, applycorev1.ConfigMap(key.Name, env.Namespace).
				WithUID(parent.UID).WithAnnotations(map[string]string{"done": parent.Data["replicas"]}))
		}
		return reconcile.Result{}, err
	})
}

func deleteChild(ctx context.Context, l *loop, child *corev1.ConfigMap) error {
	if child.DeletionTimestamp != nil {
		return nil
	}
	err := l.kube.CoreV1().ConfigMaps(child.Namespace).Delete(ctx, child.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(child.UID))})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err // a conflict too: the object may have been replaced
}

// accountName returns a name that is known before the account exists, so that an account
// of an earlier process is found.
func accountName(parent *corev1.ConfigMap) string { return "account-" + string(parent.UID) }

func openAccount(ctx context.Context, c *cloud.Cloud, name string) error {
	accounts, err := c.List(ctx, name)
	if err != nil || len(accounts) > 0 {
		return err
	}
	_, err = c.Create(ctx, cloud.Resource{Name: name, Token: name})
	return err
}

func closeAccounts(ctx context.Context, c *cloud.Cloud, name string) error {
	accounts, err := c.List(ctx, name)
	if err != nil {
		return err
	}
	for _, a := range accounts {
		if err := c.Delete(ctx, a.ID); err != nil && !errors.Is(err, cloud.ErrNotFound) {
			return err
		}
	}
	return nil
}
