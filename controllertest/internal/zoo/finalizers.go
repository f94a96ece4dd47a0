package zoo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	ownFinalizer   = "zoo.example.com/bucket"
	auditFinalizer = "audit.example.org/record"
)

// owners owns a bucket for each parent that names one. It shares the finalizers of the
// parent with the auditor. It waits for the finalizer of the auditor before it creates
// the bucket, unless the parent is not audited.
//
// The correct one changes the list by patches of its own entry that test the rest. It
// adds no finalizer to an object in deletion, and then only cleans up.
type owners struct {
	bug     string
	parents listers.ConfigMapNamespaceLister
	client  typedcorev1.ConfigMapInterface
	cloud   *cloud.Cloud
	made    sync.Map // true by UID of the parent
}

func (c *owners) reconcile(ctx context.Context, key types.NamespacedName) (none reconcile.Result, _ error) {
	parent, err := c.parents.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return none, nil
	}
	if err != nil || parent.Data["bucket"] == "" {
		return none, err
	}
	deleting := parent.DeletionTimestamp != nil
	if c.bug == "alive-without-own" {
		deleting = deleting && finalizer.Has(parent, ownFinalizer)
	}
	if deleting || parent.Data["bucket"] == "no" {
		return none, c.release(ctx, parent)
	}
	if c.bug != "alive-without-own" || parent.DeletionTimestamp == nil {
		if err := c.hold(ctx, parent); err != nil {
			return none, err
		}
	}
	audited := finalizer.Has(parent, auditFinalizer) || parent.Data["audit"] == "no"
	if _, made := c.made.Load(parent.UID); made || !audited {
		return none, nil
	}
	if err := existsIsMade(c.cloud.Create(ctx, cloud.Resource{Name: parent.Name})); err != nil {
		return none, err
	}
	c.made.Store(parent.UID, true)
	return none, nil
}

func (c *owners) release(ctx context.Context, parent *corev1.ConfigMap) error {
	if !finalizer.Has(parent, ownFinalizer) {
		return nil
	}
	if err := notFoundIsGone(c.cloud.Delete(ctx, parent.Name)); err != nil {
		return err
	}
	c.made.Delete(parent.UID)
	if c.bug == "remove-by-index" {
		at := slices.Index(parent.Finalizers, ownFinalizer)
		return c.patch(ctx, parent, types.JSONPatchType, []map[string]any{
			{"op": "remove", "path": fmt.Sprintf("/metadata/finalizers/%d", at)},
		})
	}
	_, err := finalizer.Remove(ctx, c.client, parent, ownFinalizer)
	return err
}

// hold adds the finalizer, if it is not there.
func (c *owners) hold(ctx context.Context, parent *corev1.ConfigMap) error {
	if finalizer.Has(parent, ownFinalizer) {
		return nil
	}
	switch list := append(slices.Clone(parent.Finalizers), ownFinalizer); {
	case c.bug == "whole-list":
		return c.patch(ctx, parent, types.MergePatchType, map[string]any{"metadata": map[string]any{"finalizers": list}})
	case c.bug == "blind-update":
		parent = parent.DeepCopy()
		parent.Finalizers, parent.ResourceVersion = list, ""
		_, err := c.client.Update(ctx, parent, metav1.UpdateOptions{})
		return err
	case c.bug == "append-untested" && len(parent.Finalizers) > 0:
		return c.patch(ctx, parent, types.JSONPatchType, []map[string]any{
			{"op": "add", "path": "/metadata/finalizers/-", "value": ownFinalizer},
		})
	}
	_, err := finalizer.Add(ctx, c.client, parent, ownFinalizer)
	return err
}

func (c *owners) patch(ctx context.Context, parent *corev1.ConfigMap, kind types.PatchType, patch any) error {
	data, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, err = c.client.Patch(ctx, parent.Name, kind, data, metav1.PatchOptions{})
	return err
}

// seenAlive stores the objects with an event before their deletion.
type seenAlive struct{ uids sync.Map }

// self is empty for an object that is first seen while it is being deleted.
func (s *seenAlive) self(o metav1.Object) []types.NamespacedName {
	if o.GetDeletionTimestamp() == nil {
		s.uids.Store(o.GetUID(), true)
	} else if _, seen := s.uids.Load(o.GetUID()); !seen {
		return nil
	}
	return self(o)
}

// auditor is another controller without bugs. It keeps a record of each parent until the
// parent opts out, or is being deleted and has no bucket.
type auditor struct {
	parents listers.ConfigMapNamespaceLister
	client  typedcorev1.ConfigMapInterface
	cloud   *cloud.Cloud
	made    sync.Map // true by UID of the parent
}

func (a *auditor) reconcile(ctx context.Context, key types.NamespacedName) (none reconcile.Result, _ error) {
	parent, err := a.parents.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return none, nil
	}
	if err != nil || parent.Data["bucket"] == "" {
		return none, err
	}
	owned, audited := finalizer.Has(parent, ownFinalizer), finalizer.Has(parent, auditFinalizer)
	inOrder := owned == (parent.Data["bucket"] == "yes") // one after the other, so that runs are alike
	switch deleting := parent.DeletionTimestamp != nil; {
	case audited && (deleting && !owned || !deleting && inOrder && parent.Data["audit"] == "no"):
		if err := notFoundIsGone(a.cloud.Delete(ctx, recordOf(parent))); err != nil {
			return none, err
		}
		a.made.Delete(parent.UID)
		_, err := finalizer.Remove(ctx, a.client, parent, auditFinalizer)
		return none, err
	case !deleting && parent.Data["audit"] != "no" && (inOrder || audited):
		if _, err := finalizer.Add(ctx, a.client, parent, auditFinalizer); err != nil {
			return none, err
		}
		if _, made := a.made.Load(parent.UID); made {
			return none, nil
		}
		if err := existsIsMade(a.cloud.Create(ctx, cloud.Resource{Name: recordOf(parent)})); err != nil {
			return none, err
		}
		a.made.Store(parent.UID, true)
	}
	return none, nil
}

func recordOf(parent metav1.Object) string { return parent.GetName() + "-audit" }

// existsIsMade accepts AlreadyExists, for names of this controller alone.
func existsIsMade(_ cloud.Resource, err error) error {
	if errors.Is(err, cloud.ErrExists) {
		return nil
	}
	return err
}

func finalizers(bug string) controllertest.Scenario {
	return controllertest.Scenario{
		Name: "finalizers",
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			theirs, err := newLoop(rest.CopyConfig(cfg), env, loopOptions{})
			if err != nil {
				return err
			}
			watched := theirs.factory.Core().V1().ConfigMaps()
			if err := theirs.watch(corev1.Resource("configmaps"), watched.Informer(), self); err != nil {
				return err
			}
			a := &auditor{
				parents: watched.Lister().ConfigMaps(env.Namespace),
				client:  theirs.kube.CoreV1().ConfigMaps(env.Namespace), cloud: env.Cloud,
			}

			ours, err := newLoop(rest.CopyConfig(cfg), env, loopOptions{})
			if err != nil {
				return err
			}
			keys := self
			if bug == "deleting-at-start" {
				keys = new(seenAlive).self
			}
			parents := ours.factory.Core().V1().ConfigMaps()
			if err := ours.watch(corev1.Resource("configmaps"), parents.Informer(), keys); err != nil {
				return err
			}
			c := &owners{
				bug: bug, parents: parents.Lister().ConfigMaps(env.Namespace),
				client: ours.kube.CoreV1().ConfigMaps(env.Namespace), cloud: env.Cloud,
			}
			return runBoth(ctx,
				func(ctx context.Context) error { return ours.run(ctx, c.reconcile) },
				func(ctx context.Context) error { return theirs.run(ctx, a.reconcile) })
		},
		Script: []controllertest.Step{
			{Name: "create", Do: createsConfigMap("p", map[string]string{"bucket": "yes"})},
			{Name: "no bucket", Do: editsConfigMap("p", `{"data":{"bucket":"no"}}`)},
			{Name: "a bucket, no audit", Do: editsConfigMap("p", `{"data":{"bucket":"yes","audit":"no"}}`)},
			{Name: "delete", Do: deletesConfigMap("p")},
		},
		Converged: finalizersConverged,
		Invariants: []controllertest.Invariant{
			{Name: "a finalizer is there once", Check: finalizersOnce},
			{Name: "what exists is guarded", Check: finalizersGuard},
		},
		Cloud: cloud.Options{ChosenIDs: true},
	}
}

func runBoth(ctx context.Context, runs ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(runs))
	var wg sync.WaitGroup
	for i, run := range runs {
		wg.Go(func() {
			defer cancel()
			errs[i] = run(ctx)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// finalizersConverged requires a bucket for each parent that names one, the finalizers
// that belong to it, and no others.
func finalizersConverged(s *controllertest.State) error {
	held := map[string]bool{}
	for _, r := range s.Cloud() {
		held[r.Name] = true
	}
	for _, parent := range s.Objects("configmaps") {
		data := configMapData(parent)
		if data["bucket"] == "" {
			continue
		}
		if parent.GetDeletionTimestamp() != nil {
			return fmt.Errorf("%s is still being deleted", parent.GetName())
		}
		bucket, audit := data["bucket"] == "yes", data["audit"] != "no"
		switch {
		case held[parent.GetName()] != bucket, finalizer.Has(parent, ownFinalizer) != bucket:
			return fmt.Errorf("%s: want a bucket and its finalizer: %v", parent.GetName(), bucket)
		case held[recordOf(parent)] != audit, finalizer.Has(parent, auditFinalizer) != audit:
			return fmt.Errorf("%s: want a record and its finalizer: %v", parent.GetName(), audit)
		}
		delete(held, parent.GetName())
		delete(held, recordOf(parent))
	}
	if len(held) > 0 {
		return fmt.Errorf("there are %v, which belong to nobody", held)
	}
	return nil
}

func finalizersOnce(s *controllertest.State) error {
	for _, parent := range s.Objects("configmaps") {
		list := slices.Sorted(slices.Values(parent.GetFinalizers()))
		if len(slices.Compact(slices.Clone(list))) < len(list) {
			return fmt.Errorf("%s has the finalizers %q", parent.GetName(), list)
		}
	}
	return nil
}

// finalizersGuard requires a parent with a finalizer for each bucket and each record.
func finalizersGuard(s *controllertest.State) error {
	guarded := map[string]bool{}
	for _, parent := range s.Objects("configmaps") {
		guarded[parent.GetName()] = finalizer.Has(parent, ownFinalizer)
		guarded[recordOf(parent)] = finalizer.Has(parent, auditFinalizer)
	}
	for _, r := range s.Cloud() {
		if !guarded[r.Name] {
			return fmt.Errorf("nothing holds the parent of %s", r.Name)
		}
	}
	return nil
}

func finalizersFamily() Family {
	return Family{Name: "finalizers", Scenario: finalizers, Mutants: []Mutant{
		{
			Bug: "whole-list", Cause: "list replaced as a whole", Historic: true,
			Does:      "adds its finalizer with a merge patch, which contains the whole list and no version",
			Reference: "kubermatic/kubermatic#6759",
			Plan:      "commit-503@patch configmaps p metadata.finalizers#1", Oracle: controllertest.Invariance,
		},
		{
			Bug: "blind-update", Cause: "update without version",
			Does:      "adds its finalizer with an update without a version",
			Reference: "EnMasseProject/enmasse#1988",
			Plan:      "commit-503@update configmaps p#1", Oracle: controllertest.Invariance,
		},
		{
			Bug: "append-untested", Cause: "list changed without test", Historic: true,
			Does:      "appends its finalizer with a JSON patch that does not test the list",
			Reference: "kube-rs/kube#964",
			Plan:      "commit-503@patch configmaps p metadata.finalizers#4", Oracle: controllertest.Invariance,
		},
		{
			Bug: "remove-by-index", Cause: "neighbour removed by index", Historic: true,
			Does:      "removes its finalizer by index, without a test of the entry",
			Reference: "prometheus-operator/prometheus-operator#8323",
			Plan:      "commit-503@patch configmaps p metadata.finalizers#3", Oracle: controllertest.Invariance,
		},
		{
			Bug: "alive-without-own", Cause: "work for a deleted object",
			Does:      "treats a parent in deletion as new after its own finalizer is removed, while another finalizer remains",
			Reference: "hashicorp/hcp-terraform-operator#460",
			Plan:      "user-delete(configmaps/p)@external create p#1", Oracle: controllertest.Invariance,
		},
		{
			Bug: "deleting-at-start", Cause: "event filter too narrow",
			Does:      "does not queue objects that are already in deletion when it starts",
			Reference: "fluid-cloudnative/fluid#1970",
			Plan:      "crash-before@external delete p#2", Oracle: controllertest.Liveness,
		},
	}}
}
