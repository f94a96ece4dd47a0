package zoo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	bucketFinalizer = "zoo.example.com/bucket"
	bucketNames     = "zoo.example.com/bucket-names" // of all buckets that the parent may own
	bucketState     = "zoo.example.com/bucket-state" // the wish that was fulfilled, or refused
)

// buckets owns the bucket that each parent names, in a service whose clients choose the
// names and share them. A second call sets the settings of a bucket.
//
// The correct one stores each name before it creates the bucket, and marks the bucket as
// the parent's in the call that creates it. It changes only buckets with this mark, and
// completes unfinished ones.
type buckets struct {
	bug     string
	parents listers.ConfigMapNamespaceLister
	client  typedcorev1.ConfigMapInterface
	cloud   *cloud.Cloud
	done    sync.Map // names by parent whose work is complete
	wishing sync.Map // parents that this process saw with a wish
}

func (c *buckets) reconcile(ctx context.Context, key types.NamespacedName) (none reconcile.Result, _ error) {
	parent, err := c.parents.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return none, nil
	}
	bucket, ours := parent.Data["bucket"]
	if err != nil || !ours {
		return none, err
	}
	if bucket != "" {
		c.wishing.Store(parent.UID, true)
	} else if _, known := c.wishing.Load(parent.UID); !known && c.bug == "not-wanted-skipped" {
		return none, nil
	}
	if parent.DeletionTimestamp != nil {
		return none, c.release(ctx, parent)
	}
	wish := strings.TrimSpace(bucket + " " + parent.Data["retention"])
	id := string(parent.UID)
	if c.bug == "done-by-name" {
		id = key.Name
	}
	if done, _ := c.done.Load(id); done == wish {
		return none, nil
	}
	if bucket == "" {
		err = c.release(ctx, parent)
	} else {
		err = c.provide(ctx, parent, wish)
	}
	if err == nil {
		c.done.Store(id, wish)
	}
	return none, err
}

func (c *buckets) provide(ctx context.Context, parent *corev1.ConfigMap, wish string) error {
	bucket, names := parent.Data["bucket"], namesOf(parent)
	switch state := annotation(parent, bucketState); {
	case state == wish && slices.Equal(names, []string{bucket}), state == "refused "+wish && len(names) == 0:
		return nil
	}
	held, err := finalizer.Add(ctx, c.client, parent, bucketFinalizer)
	if err != nil {
		return err
	}
	parent = held.Object()
	if !slices.Contains(names, bucket) {
		names = append(names, bucket)
		if parent, err = annotate(ctx, c.client, parent, map[string]string{bucketNames: strings.Join(names, " "), bucketState: ""}); err != nil {
			return err
		}
	}
	owner := map[string]string{"owner": string(parent.UID)}
	if c.bug == "marked-later" {
		owner = nil
	}
	_, err = c.cloud.Create(ctx, cloud.Resource{Name: bucket, Tags: owner})
	refused, exists := false, errors.Is(err, cloud.ErrExists)
	if exists {
		var found cloud.Resource
		found, err = c.cloud.Get(ctx, bucket)
		refused = found.Tags["owner"] != string(parent.UID) || c.bug == "exists-is-foreign"
	}
	if err != nil {
		return err
	}
	if !refused && (c.bug != "exists-is-done" || !exists) {
		settings := map[string]string{"owner": string(parent.UID), "retention": parent.Data["retention"]}
		if err := c.cloud.Update(ctx, bucket, settings); err != nil {
			return err
		}
	}
	for _, name := range names {
		if name == bucket {
			continue
		}
		if err := c.remove(ctx, parent, name); err != nil {
			return err
		}
	}
	result := map[string]string{bucketNames: bucket, bucketState: wish}
	if refused {
		result = map[string]string{bucketNames: "", bucketState: "refused " + wish}
	}
	_, err = annotate(ctx, c.client, parent, result)
	return err
}

// release removes all buckets of the parent, and the finalizer.
func (c *buckets) release(ctx context.Context, parent *corev1.ConfigMap) error {
	if !finalizer.Has(parent, bucketFinalizer) {
		return nil
	}
	names := namesOf(parent)
	if c.bug == "cleanup-by-wish" && parent.Data["bucket"] != "" {
		names = []string{parent.Data["bucket"]}
	}
	for _, name := range names {
		if err := c.remove(ctx, parent, name); err != nil {
			return err
		}
	}
	if parent.DeletionTimestamp == nil && annotation(parent, bucketNames)+annotation(parent, bucketState) != "" {
		var err error
		if parent, err = annotate(ctx, c.client, parent, map[string]string{bucketNames: "", bucketState: ""}); err != nil {
			return err
		}
	}
	_, err := finalizer.Remove(ctx, c.client, parent, bucketFinalizer)
	return err
}

// remove deletes a bucket, if it is the parent's.
func (c *buckets) remove(ctx context.Context, parent *corev1.ConfigMap, name string) error {
	found, err := c.cloud.Get(ctx, name)
	if errors.Is(err, cloud.ErrNotFound) && c.bug != "gone-is-error" {
		return nil
	}
	if err != nil {
		return err
	}
	if found.Tags["owner"] != string(parent.UID) && c.bug != "delete-unowned" {
		return nil
	}
	return c.cloud.Delete(ctx, name)
}

func namesOf(parent *corev1.ConfigMap) []string {
	return strings.Fields(annotation(parent, bucketNames))
}

func bucketsScenario(bug string) controllertest.Scenario {
	return controllertest.Scenario{
		Name: "buckets",
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			l, err := newLoop(cfg, env, loopOptions{})
			if err != nil {
				return err
			}
			parents := l.factory.Core().V1().ConfigMaps()
			if err := l.watch(corev1.Resource("configmaps"), parents.Informer(), self); err != nil {
				return err
			}
			c := &buckets{
				bug: bug, parents: parents.Lister().ConfigMaps(env.Namespace),
				client: l.kube.CoreV1().ConfigMaps(env.Namespace), cloud: env.Cloud,
			}
			return l.run(ctx, c.reconcile)
		},
		Script: []controllertest.Step{
			{Name: "create", Do: createsConfigMap("p", map[string]string{"bucket": "red", "retention": "1d"})},
			{Name: "wish a bucket that somebody has", Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
				if _, err := env.Cloud.Create(ctx, cloud.Resource{Name: "taken"}); err != nil {
					return err
				}
				return createsConfigMap("q", map[string]string{"bucket": "taken", "retention": "1d"})(ctx, cfg, env)
			}},
			{Name: "wish another", Do: editsConfigMap("p", `{"data":{"bucket":"blue"}}`)},
			{Name: "wish none", Do: editsConfigMap("p", `{"data":{"bucket":"","retention":""}}`)},
			{Name: "delete", Do: deletesConfigMap("q")},
		},
		Converged: bucketsConverged,
		Invariants: []controllertest.Invariant{
			{Name: "what exists is guarded", Check: bucketsBelong},
		},
		Mask:  annotationsMask(),
		Cloud: cloud.Options{ChosenIDs: true},
	}
}

// bucketsConverged requires the named bucket of each parent, unless another client owns
// it, and no others.
func bucketsConverged(s *controllertest.State) error {
	held := map[string]cloud.Resource{}
	for _, r := range s.Cloud() {
		held[r.Name] = r
	}
	for _, parent := range s.Objects("configmaps") {
		data := configMapData(parent)
		bucket, ours := data["bucket"]
		if !ours {
			continue
		}
		found := held[bucket]
		state := annotation(parent, bucketState)
		switch {
		case parent.GetDeletionTimestamp() != nil:
			return fmt.Errorf("%s is still being deleted", parent.GetName())
		case bucket == "" && (state != "" || finalizer.Has(parent, bucketFinalizer)):
			return fmt.Errorf("%s is not released", parent.GetName())
		case bucket == "taken" && !strings.HasPrefix(state, "refused "):
			return fmt.Errorf("the wish of %s is not refused", parent.GetName())
		case bucket == "" || bucket == "taken":
			continue
		case found.Tags["owner"] != string(parent.GetUID()), found.Tags["retention"] != data["retention"]:
			return fmt.Errorf("the bucket %s of %s has the tags %v", bucket, parent.GetName(), found.Tags)
		case state != bucket+" "+data["retention"]:
			return fmt.Errorf("the state of %s is %q", parent.GetName(), state)
		}
		delete(held, bucket)
	}
	delete(held, "taken")
	for name := range held {
		return fmt.Errorf("bucket %s belongs to nobody", name)
	}
	return nil
}

// bucketsBelong requires a parent with the finalizer for each bucket of this controller.
func bucketsBelong(s *controllertest.State) error {
	guarded := map[string]bool{"": true}
	for _, parent := range s.Objects("configmaps") {
		guarded[string(parent.GetUID())] = finalizer.Has(parent, bucketFinalizer)
	}
	for _, r := range s.Cloud() {
		if !guarded[r.Tags["owner"]] {
			return fmt.Errorf("nothing holds the parent of %s", r.Name)
		}
	}
	return nil
}

func bucketsFamily() Family {
	return Family{Name: "buckets", Scenario: bucketsScenario, Mutants: []Mutant{
		{
			Bug: "done-by-name", Cause: "name taken for identity",
			Does:      "stores finished parents by name, and confuses a new parent with the old one",
			Reference: "kubevirt/ssp-operator#145",
			Plan:      "user-recreate(configmaps/p)@patch configmaps q metadata.finalizers#1", Oracle: controllertest.Liveness,
		},
		{
			Bug: "delete-unowned", Cause: "cleanup without ownership",
			Does:      "deletes each bucket whose name it stored, although the creation was refused",
			Reference: "seaweedfs/seaweedfs-operator#275",
			Plan:      "user-delete(configmaps/q)@patch configmaps q metadata.annotations#2", Oracle: controllertest.EndState,
		},
		{
			Bug: "exists-is-done", Cause: "half-done taken for done",
			Does:      "skips the settings of an existing bucket, although an interrupted attempt has left it without settings",
			Reference: "dome9/cloud-bots#37",
			Plan:      "crash-after@external create red#1", Oracle: controllertest.Liveness,
		},
		{
			Bug: "exists-is-foreign", Cause: "own creation not recognised",
			Does:      "treats every existing bucket as foreign, also its own bucket after a lost response",
			Reference: "aws-controllers-k8s/community#2267",
			Plan:      "crash-after@external create red#1", Oracle: controllertest.Liveness,
		},
		{
			Bug: "marked-later", Cause: "ownership recorded too late",
			Does:      "marks the bucket as the parent's by a second call, and refuses the bucket if that call failed",
			Reference: "aws-controllers-k8s/community#2730",
			Plan:      "crash-after@external create red#1", Oracle: controllertest.Liveness,
		},
		{
			Bug: "gone-is-error", Cause: "absence taken for failure",
			Does:      "fails forever to delete a bucket that is already deleted",
			Reference: "coralogix/coralogix-operator#239",
			Plan:      "crash-after@external delete blue#1", Oracle: controllertest.Liveness,
		},
		{
			Bug: "not-wanted-skipped", Cause: "transition seen in memory only", Historic: true,
			Does:      "skips a parent without a bucket, unless this process has seen it with one",
			Reference: "kubernetes/kubernetes#78954",
			Plan:      "crash-before@external delete blue#1", Oracle: controllertest.Liveness,
		},
		{
			Bug: "cleanup-by-wish", Cause: "cleanup by wish",
			Does:      "deletes the bucket that the parent names now, but not the buckets that it named before",
			Reference: "seaweedfs/seaweedfs-operator#380",
			Plan:      "user-delete(configmaps/p)@patch configmaps p metadata.annotations#3", Oracle: controllertest.Invariance,
		},
	}}
}
