package zoo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/reconcile"
)

const (
	accountFinalizer = "zoo.example.com/account"
	accountID        = "zoo.example.com/account-id"
	accountPlan      = "zoo.example.com/account-plan"    // the plan of the account
	accountPending   = "zoo.example.com/account-pending" // it may have been made

	annotatedUID = "zoo.example.com/uid" // the object that the annotations are about
)

// accounts owns an account for each parent, in a service that chooses the ids and has no
// idempotency tokens.
//
// The correct one adds the finalizer first. It searches for an account with the UID of
// the parent before it creates one, because an earlier attempt may have failed halfway.
// It deletes the accounts that the service lists, until the service lists no more.
type accounts struct {
	bug     string
	parents listers.ConfigMapNamespaceLister
	client  typedcorev1.ConfigMapInterface
	cloud   *cloud.Cloud
	made    sync.Map // ids by UID of the parent
}

func (c *accounts) reconcile(ctx context.Context, key types.NamespacedName) (none reconcile.Result, _ error) {
	parent, err := c.parents.Get(key.Name)
	if c.bug == "no-finalizer" && apierrors.IsNotFound(err) {
		return none, c.remove(ctx, key.Name, "")
	}
	switch {
	case apierrors.IsNotFound(err):
		return none, nil
	case err != nil:
		return none, err
	case parent.Data["plan"] == "":
		return none, nil
	case parent.DeletionTimestamp != nil:
		return none, c.finalize(ctx, parent)
	case c.bug == "no-finalizer":
		return none, c.provide(ctx, parent)
	case c.bug == "late-finalizer":
		if err := c.provide(ctx, parent); err != nil {
			return none, err
		}
	}
	held, err := finalizer.Add(ctx, c.client, parent, accountFinalizer)
	if c.bug == "unchecked-finalizer" && err != nil {
		return none, c.provide(ctx, parent)
	}
	if err != nil {
		return none, err
	}
	return none, c.provide(ctx, held.Object())
}

func (c *accounts) provide(ctx context.Context, parent *corev1.ConfigMap) error {
	plan := parent.Data["plan"]
	id := annotation(parent, accountID)
	if id != "" && annotation(parent, accountPlan) == plan {
		return nil
	}
	if id == "" && c.bug == "create-pending" {
		if annotation(parent, accountPending) != "" {
			return nil // whether the account was made, a human has to find out
		}
		var err error
		if parent, err = annotate(ctx, c.client, parent, map[string]string{accountPending: "true"}); err != nil {
			return err
		}
	}
	tags := map[string]string{"owner": string(parent.UID), "plan": plan}
	if id == "" && c.bug != "no-lookup" {
		found, err := c.find(ctx, parent.Name, parent.UID)
		if err != nil {
			return err
		}
		if len(found) > 0 {
			id = found[0].ID
		}
	}
	if id == "" {
		made, err := c.cloud.Create(ctx, cloud.Resource{Name: parent.Name, Tags: tags})
		if err != nil {
			return err
		}
		id = made.ID
		c.made.Store(parent.UID, id)
	} else if err := c.cloud.Update(ctx, id, tags); err != nil {
		return err
	}
	_, err := annotate(ctx, c.client, parent, map[string]string{accountID: id, accountPlan: plan})
	return err
}

func (c *accounts) finalize(ctx context.Context, parent *corev1.ConfigMap) error {
	if !finalizer.Has(parent, accountFinalizer) {
		return nil
	}
	if c.bug == "early-unfinalize" {
		if _, err := finalizer.Remove(ctx, c.client, parent, accountFinalizer); err != nil {
			return err
		}
		return c.remove(ctx, parent.Name, parent.UID)
	}
	if err := c.remove(ctx, parent.Name, parent.UID); err != nil && c.bug != "swallowed-error" {
		return err
	}
	_, err := finalizer.Remove(ctx, c.client, parent, accountFinalizer)
	return err
}

// remove deletes the resources of the parent from the service.
func (c *accounts) remove(ctx context.Context, name string, uid types.UID) error {
	if c.bug == "memory-cleanup" {
		if id, ok := c.made.Load(uid); ok {
			return notFoundIsGone(c.cloud.Delete(ctx, id.(string)))
		}
		return nil
	}
	found, err := c.find(ctx, name, uid)
	if err != nil {
		return err
	}
	for _, account := range found {
		if err := notFoundIsGone(c.cloud.Delete(ctx, account.ID)); err != nil {
			return err
		}
	}
	return nil
}

// find lists the accounts of the parent or, if uid is empty, of all parents with the
// name.
func (c *accounts) find(ctx context.Context, name string, uid types.UID) ([]cloud.Resource, error) {
	named, err := c.cloud.List(ctx, name)
	if err != nil {
		return nil, err
	}
	var found []cloud.Resource
	for _, account := range named {
		if uid == "" || account.Tags["owner"] == string(uid) {
			found = append(found, account)
		}
	}
	return found, nil
}

func account(bug string) controllertest.Scenario {
	return controllertest.Scenario{
		Name: "account",
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			l, err := newLoop(cfg, env, loopOptions{})
			if err != nil {
				return err
			}
			parents := l.factory.Core().V1().ConfigMaps()
			if err := l.watch(corev1.Resource("configmaps"), parents.Informer(), self); err != nil {
				return err
			}
			c := &accounts{
				bug: bug, parents: parents.Lister().ConfigMaps(env.Namespace),
				client: l.kube.CoreV1().ConfigMaps(env.Namespace), cloud: env.Cloud,
			}
			return l.run(ctx, c.reconcile)
		},
		Script: []controllertest.Step{
			{Name: "create", Do: createsConfigMap("p", map[string]string{"plan": "small"})},
			{Name: "change the plan", Do: editsConfigMap("p", `{"data":{"plan":"large"}}`)},
			{Name: "delete", Do: deletesConfigMap("p")},
		},
		Converged: accountsConverged,
		Invariants: []controllertest.Invariant{
			{Name: "one account for each parent", Check: oneForEach},
		},
		Mask: annotationsMask(accountID),
	}
}

// accountsConverged requires one account with the right plan for each parent, and no
// others.
func accountsConverged(s *controllertest.State) error {
	held := map[string]cloud.Resource{}
	for _, r := range s.Cloud() {
		held[r.Tags["owner"]] = r
	}
	for _, parent := range s.Objects("configmaps") {
		plan, ours := configMapData(parent)["plan"]
		if !ours {
			continue
		}
		account, exists := held[string(parent.GetUID())]
		delete(held, string(parent.GetUID()))
		switch {
		case parent.GetDeletionTimestamp() != nil:
			return fmt.Errorf("%s is still being deleted", parent.GetName())
		case !exists:
			return fmt.Errorf("%s has no account", parent.GetName())
		case account.Tags["plan"] != plan:
			return fmt.Errorf("the account of %s has the plan %q, want %q", parent.GetName(), account.Tags["plan"], plan)
		case annotation(parent, accountID) != account.ID, annotation(parent, accountPlan) != plan:
			return fmt.Errorf("%s does not say what account it has", parent.GetName())
		}
	}
	for _, account := range held {
		return fmt.Errorf("account %s belongs to nobody", account.Name)
	}
	return nil
}

// oneForEach is an invariant of services whose resources all have an owner.
func oneForEach(s *controllertest.State) error {
	held := map[string]bool{}
	for _, r := range s.Cloud() {
		if held[r.Tags["owner"]] {
			return fmt.Errorf("a parent owns two of %s", r.Name)
		}
		held[r.Tags["owner"]] = true
	}
	return nil
}

// annotate sets annotations of parent and removes empty ones. If parent has changed, it
// returns a Conflict, because the merge patch has a version. The annotations contain the
// UID, because users copy objects.
func annotate(ctx context.Context, client typedcorev1.ConfigMapInterface, parent *corev1.ConfigMap, annotations map[string]string) (*corev1.ConfigMap, error) {
	change := map[string]any{annotatedUID: parent.UID}
	for key, value := range annotations {
		change[key] = value
		if value == "" {
			change[key] = nil
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": parent.ResourceVersion, "annotations": change}})
	if err != nil {
		return nil, err
	}
	return client.Patch(ctx, parent.Name, types.MergePatchType, patch, metav1.PatchOptions{})
}

// annotation returns the value that annotate set for this object, and "" for a copy of
// another object.
func annotation(parent metav1.Object, name string) string {
	if parent.GetAnnotations()[annotatedUID] != string(parent.GetUID()) {
		return ""
	}
	return parent.GetAnnotations()[name]
}

// annotationsMask removes the values that differ in an object and a copy by a user: ids,
// and all values of the former object.
func annotationsMask(ids ...string) func(*unstructured.Unstructured) {
	return func(o *unstructured.Unstructured) {
		annotations := o.GetAnnotations()
		for name := range o.GetAnnotations() {
			stale := strings.HasPrefix(name, "zoo.example.com/") && annotation(o, name) == ""
			if stale || name == annotatedUID || slices.Contains(ids, name) {
				delete(annotations, name)
			}
		}
		o.SetAnnotations(annotations)
	}
}

func notFoundIsGone(err error) error {
	if errors.Is(err, cloud.ErrNotFound) {
		return nil
	}
	return err
}

func accountFamily() Family {
	return Family{Name: "account", Scenario: account, Mutants: []Mutant{
		{
			Bug: "no-lookup", Cause: "create without lookup", Historic: true,
			Does:      "creates the account and then stores its id; if the store fails, the next attempt creates another account",
			Reference: "aws-controllers-k8s/community#2062",
			Plan:      "crash-after@external create p#1", Oracle: controllertest.Invariance,
		},
		{
			Bug: "late-finalizer", Cause: "finalizer too late",
			Does:      "adds the finalizer after the account exists; if the parent is deleted before, the account is left",
			Reference: "outscale/cluster-api-provider-outscale#917",
			Plan:      "user-delete(configmaps/p)@patch configmaps p metadata.finalizers#1", Oracle: controllertest.Liveness,
		},
		{
			Bug: "unchecked-finalizer", Cause: "finalizer not checked",
			Does:      "continues although adding the finalizer failed",
			Reference: "gardener/gardener#1498",
			Plan:      "user-delete(configmaps/p)@patch configmaps p metadata.finalizers#1", Oracle: controllertest.Liveness,
		},
		{
			Bug: "early-unfinalize", Cause: "finalizer removed too early",
			Does:      "removes the finalizer and deletes the account afterwards",
			Reference: "appvia/kore#818",
			Plan:      "crash-before@external delete p#1", Oracle: controllertest.Liveness,
		},
		{
			Bug: "memory-cleanup", Cause: "state in memory only", Historic: true,
			Does:      "cleans up only the accounts that this process created",
			Reference: "kubernetes/kubernetes#78124",
			Plan:      "crash-before@external delete p#1", Oracle: controllertest.Liveness,
		},
		{
			Bug: "no-finalizer", Cause: "deletion missed while down", Historic: true,
			Does:      "has no finalizer and cleans up when the parent disappears from the cache, which it misses while it is down",
			Reference: "kubernetes/kubernetes#53451",
			Plan:      "crash-before@external delete p#1", Oracle: controllertest.Liveness,
		},
		{
			Bug: "create-pending", Cause: "stuck on an unknown outcome", Historic: true,
			Does:      "marks the parent before it creates the account, and waits for a person if it finds the mark without an id",
			Reference: "crossplane/crossplane#3037",
			Plan:      "crash-before@external create p#1", Oracle: controllertest.Liveness,
		},
		{
			Bug: "swallowed-error", Cause: "swallowed error",
			Does:      "removes the finalizer although the cleanup failed",
			Reference: "DataDog/datadog-operator#2919",
			Plan:      "drop-request@external delete p#1", Oracle: controllertest.Liveness,
		},
	}}
}
