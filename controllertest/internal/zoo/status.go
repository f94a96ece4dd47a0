package zoo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	clientcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	listerscorev1 "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/status"
)

var gauges = schema.GroupVersionResource{Group: "status.zoo.example.com", Version: "v1", Resource: "gauges"}

// inspectedAnnotation is the uid of the Gauge that was inspected.
const inspectedAnnotation = "zoo.example.com/inspected"

// statusFamily copies spec.value of a Gauge, a custom resource with a status, to a
// ConfigMap with its name. The condition Ready reports the outcome and its generation.
// Another controller keeps a condition in the same list.
func statusFamily() Family {
	return Family{Name: "status", Scenario: statusScenario, Mutants: []Mutant{{
		Bug: "edge-status", Cause: "status only after a change",
		Does:      "writes the status only in the call that changes the child, and never if that write fails",
		Reference: "k8ssandra/cass-operator#657",
		Plan:      "crash-after@create configmaps oil#1",
		Oracle:    controllertest.Liveness,
	}, {
		Bug: "latest-generation", Cause: "status for another generation",
		Does:      "retries a conflict with the latest object, and reports the result of the former one for it",
		Reference: "karmada-io/karmada#7446",
		Plan:      "commit-503@update gauges.status.zoo.example.com/status oil status.conditions#1",
		Oracle:    controllertest.Invariance,
	}, {
		Bug: "still-ready", Cause: "status that survives its spec",
		Does:      "stores the new observedGeneration although the update of the child failed, and keeps Ready true",
		Reference: "fluxcd/helm-controller#265",
		Plan:      "500@update configmaps oil data.value#1",
		Oracle:    controllertest.Invariance,
	}, {
		Bug: "whole-list", Cause: "merge patch of a list",
		Does:      "patches the whole list of conditions, and removes one that was added in between",
		Reference: "k0sproject/k0smotron#1657",
		Plan:      "commit-503@patch gauges.status.zoo.example.com/status oil status.conditions#1",
		Oracle:    controllertest.Invariance,
	}, {
		Bug: "hot-loop", Cause: "hot loop",
		Does:      "writes the time of each call to the status, whose event causes the next call",
		Reference: "strimzi/strimzi-kafka-operator#13079", Historic: true,
		Oracle: controllertest.Quiescence,
	}}}
}

func statusScenario(bug string) controllertest.Scenario {
	return controllertest.Scenario{
		Name:  "status",
		Setup: installGauges,
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			l, err := newLoop(cfg, env, loopOptions{})
			if err != nil {
				return err
			}
			informer, configMaps := l.dynamic.ForResource(gauges), l.factory.Core().V1().ConfigMaps()
			if err := l.watch(gauges.GroupResource(), informer.Informer(), self); err != nil {
				return err
			}
			if err := l.watch(corev1.Resource("configmaps"), configMaps.Informer(), owner); err != nil {
				return err
			}
			r := &statusReconciler{
				bug:      bug,
				gauges:   l.dyn.Resource(gauges).Namespace(env.Namespace),
				cache:    informer.Lister().ByNamespace(env.Namespace),
				children: l.kube.CoreV1().ConfigMaps(env.Namespace),
				cached:   configMaps.Lister().ConfigMaps(env.Namespace),
			}
			return l.run(ctx, r.reconcile)
		},
		Script: []controllertest.Step{
			gaugeStep("create", func(ctx context.Context, client dynamic.ResourceInterface) error {
				_, err := client.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": gauges.GroupVersion().String(), "kind": "Gauge",
					"metadata": map[string]any{"name": "oil"},
					"spec":     map[string]any{"value": "low"},
				}}, metav1.CreateOptions{})
				return err
			}),
			gaugeStep("inspect", func(ctx context.Context, client dynamic.ResourceInterface) error {
				return retry.RetryOnConflict(retry.DefaultRetry, func() error {
					gauge, err := client.Get(ctx, "oil", metav1.GetOptions{})
					if err != nil {
						return err
					}
					gauge, err = status.Update(ctx, client, gauge, func(g *unstructured.Unstructured) error {
						return setCondition(g, status.True("Inspected", "Inspected", "by a human"))
					})
					if err != nil {
						return err
					}
					patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, inspectedAnnotation, gauge.GetUID())
					_, err = client.Patch(ctx, "oil", types.MergePatchType, patch, metav1.PatchOptions{})
					return err
				})
			}),
			gaugeStep("change", func(ctx context.Context, client dynamic.ResourceInterface) error {
				_, err := client.Patch(ctx, "oil", types.MergePatchType, []byte(`{"spec":{"value":"high"}}`), metav1.PatchOptions{})
				return err
			}),
			gaugeStep("delete", func(ctx context.Context, client dynamic.ResourceInterface) error {
				return client.Delete(ctx, "oil", metav1.DeleteOptions{})
			}),
		},
		Converged: func(s *controllertest.State) error {
			gauge := s.Get(gauges.GroupResource().String(), "oil")
			children, err := childrenOf(s, "configmaps", gauge)
			if err != nil || gauge == nil {
				return err
			}
			if children["oil"] == nil {
				return errors.New("the child is missing")
			}
			if got, want := text(children["oil"], "data", "value"), text(gauge, "spec", "value"); got != want {
				return fmt.Errorf("the child's value is %q, want %q", got, want)
			}
			if ready := readyCondition(gauge); ready == nil || ready.Status != metav1.ConditionTrue || ready.ObservedGeneration != gauge.GetGeneration() {
				return fmt.Errorf("not ready for generation %d: %v", gauge.GetGeneration(), ready)
			}
			return nil
		},
		Invariants: []controllertest.Invariant{{
			Name: "ready for this generation means that the child has its value",
			Check: func(s *controllertest.State) error {
				gauge := s.Get(gauges.GroupResource().String(), "oil")
				if gauge == nil {
					return nil
				}
				ready := readyCondition(gauge)
				if ready == nil || ready.Status != metav1.ConditionTrue || ready.ObservedGeneration != gauge.GetGeneration() {
					return nil
				}
				if child, want := s.Get("configmaps", "oil"), text(gauge, "spec", "value"); child == nil || text(child, "data", "value") != want {
					return fmt.Errorf("ready for generation %d, but the child does not have %q", gauge.GetGeneration(), want)
				}
				return nil
			},
		}, {
			Name: "a condition of somebody else stays",
			Check: func(s *controllertest.State) error {
				gauge := s.Get(gauges.GroupResource().String(), "oil")
				if gauge == nil || text(gauge, "metadata", "annotations", inspectedAnnotation) != string(gauge.GetUID()) {
					return nil
				}
				if !meta.IsStatusConditionTrue(statusOf(gauge).Conditions, "Inspected") {
					return errors.New("it was inspected, but does not say so")
				}
				return nil
			},
		}},
		// The transition time and the inspection are not compared, because a Gauge that
		// is deleted and created again loses the inspection.
		Mask: func(obj *unstructured.Unstructured) {
			unstructured.RemoveNestedField(obj.Object, "metadata", "annotations", inspectedAnnotation)
			conditions, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
			conditions = slices.DeleteFunc(conditions, func(c any) bool { return c.(map[string]any)["type"] == "Inspected" })
			for _, c := range conditions {
				delete(c.(map[string]any), "lastTransitionTime")
			}
			if len(conditions) > 0 {
				_ = unstructured.SetNestedSlice(obj.Object, conditions, "status", "conditions")
			}
		},
	}
}

type statusReconciler struct {
	bug      string
	gauges   dynamic.ResourceInterface
	cache    cache.GenericNamespaceLister
	children clientcorev1.ConfigMapInterface
	cached   listerscorev1.ConfigMapNamespaceLister
}

func (r *statusReconciler) reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	obj, err := r.cache.Get(key.Name)
	if err != nil {
		return reconcile.Result{}, ignoreNotFound(err)
	}
	gauge := obj.(*unstructured.Unstructured)
	changed, err := r.child(ctx, gauge)
	if r.bug == "edge-status" && !changed {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, errors.Join(err, r.report(ctx, gauge, err))
}

// child writes the value to the child, and reports whether the child was changed.
func (r *statusReconciler) child(ctx context.Context, gauge *unstructured.Unstructured) (changed bool, err error) {
	value := text(gauge, "spec", "value")
	child, err := r.cached.Get(gauge.GetName())
	switch {
	case apierrors.IsNotFound(err):
		// The cache of ConfigMaps can show a garbage collection before the cache of
		// Gauges shows the deletion of the Gauge.
		live, err := r.gauges.Get(ctx, gauge.GetName(), metav1.GetOptions{})
		if err != nil || live.GetUID() != gauge.GetUID() {
			return false, ignoreNotFound(err)
		}
		_, err = r.children.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Name:            gauge.GetName(),
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(gauge, gauge.GroupVersionKind())},
			},
			Data: map[string]string{"value": value},
		}, metav1.CreateOptions{})
		return true, err
	case err != nil:
	case !metav1.IsControlledBy(child, gauge):
		return false, apierrors.NewAlreadyExists(corev1.Resource("configmaps"), child.Name)
	case child.Data["value"] == value:
		return false, nil
	default:
		child = child.DeepCopy()
		child.Data["value"] = value
		_, err = r.children.Update(ctx, child, metav1.UpdateOptions{})
	}
	return true, err
}

// report stores the outcome in the status.
func (r *statusReconciler) report(ctx context.Context, gauge *unstructured.Unstructured, failure error) error {
	ready := status.True("Ready", "Written", "the child has the value")
	if failure != nil {
		ready = status.False("Ready", "Failed", "the child could not be written")
	}
	mutate := func(g *unstructured.Unstructured) error {
		if r.bug == "hot-loop" {
			if err := unstructured.SetNestedField(g.Object, time.Now().String(), "status", "lastPass"); err != nil {
				return err
			}
		}
		if r.bug == "still-ready" && failure != nil && readyCondition(g) != nil {
			ready = *readyCondition(g)
		}
		return setCondition(g, ready)
	}

	if r.bug == "whole-list" {
		changed := gauge.DeepCopy()
		if err := mutate(changed); err != nil || equality.Semantic.DeepEqual(changed, gauge) {
			return err
		}
		patch, _ := json.Marshal(map[string]any{"status": changed.Object["status"]})
		_, err := r.gauges.Patch(ctx, gauge.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	}
	_, err := status.Update(ctx, r.gauges, gauge, mutate)
	if r.bug == "latest-generation" && apierrors.IsConflict(err) {
		if gauge, err = r.gauges.Get(ctx, gauge.GetName(), metav1.GetOptions{}); err != nil {
			return err
		}
		_, err = status.Update(ctx, r.gauges, gauge, mutate)
	}
	return ignoreNotFound(err) // it was deleted meanwhile
}

// gaugeStatus is the status of a Gauge.
type gaugeStatus struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

func statusOf(gauge *unstructured.Unstructured) gaugeStatus {
	var s struct {
		Status gaugeStatus `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(gauge.Object, &s); err != nil {
		panic(err) // the schema does not allow it
	}
	return s.Status
}

func readyCondition(gauge *unstructured.Unstructured) *metav1.Condition {
	return meta.FindStatusCondition(statusOf(gauge).Conditions, "Ready")
}

// setCondition sets a condition of a Gauge, for the generation that it has.
func setCondition(gauge *unstructured.Unstructured, condition metav1.Condition) error {
	s := statusOf(gauge)
	if err := status.Set(&s.Conditions, gauge.GetGeneration(), condition); err != nil {
		return err
	}
	var conditions []any
	for _, c := range s.Conditions {
		c, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&c)
		if err != nil {
			return err
		}
		conditions = append(conditions, c)
	}
	return unstructured.SetNestedSlice(gauge.Object, conditions, "status", "conditions")
}

func gaugeStep(name string, do func(context.Context, dynamic.ResourceInterface) error) controllertest.Step {
	return controllertest.Step{Name: name, Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		client, err := dynamic.NewForConfig(cfg)
		if err != nil {
			return err
		}
		return do(ctx, client.Resource(gauges).Namespace(env.Namespace))
	}}
}

// installGauges defines Gauges and returns when they are served.
func installGauges(ctx context.Context, cfg *rest.Config) error {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	_, err = definitions.Create(ctx, &unstructured.Unstructured{Object: gaugeDefinition}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	w, err := definitions.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, gauges.GroupResource().String()).String()})
	if err != nil {
		return err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		definition, ok := event.Object.(*unstructured.Unstructured)
		if ok && meta.IsStatusConditionTrue(statusOf(definition).Conditions, "Established") {
			return nil
		}
	}
	return cmp.Or(context.Cause(ctx), errors.New("the watch for the definition ended"))
}

var gaugeDefinition = map[string]any{
	"apiVersion": "apiextensions.k8s.io/v1",
	"kind":       "CustomResourceDefinition",
	"metadata":   map[string]any{"name": gauges.GroupResource().String()},
	"spec": map[string]any{
		"group": gauges.Group,
		"scope": "Namespaced",
		"names": map[string]any{"plural": gauges.Resource, "singular": "gauge", "kind": "Gauge"},
		"versions": []any{map[string]any{
			"name": gauges.Version, "served": true, "storage": true,
			"subresources": map[string]any{"status": map[string]any{}},
			"schema": map[string]any{"openAPIV3Schema": map[string]any{
				"type": "object",
				"properties": map[string]any{
					"spec":   map[string]any{"type": "object", "properties": map[string]any{"value": map[string]any{"type": "string"}}},
					"status": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
				},
			}},
		}},
	},
}
