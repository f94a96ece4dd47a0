package zoo

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/cloud"
)

var sampleFoos = schema.GroupVersionResource{Group: "sample.zoo.example.com", Version: "v1", Resource: "foos"}

const sampleFinalizer = "sample.zoo.example.com/account"

// A sample follows the sample-controller of the Kubernetes project, with the usual
// additions of a finalizer and an external object. A Foo has a child ConfigMap and an
// account, whose id is in the status of the Foo. It is no family of the zoo, because it
// has no deliberate bugs.
type sample struct {
	kube     kubernetes.Interface
	foos     dynamic.ResourceInterface
	env      *controllertest.Env
	lister   cache.GenericLister
	children cache.SharedIndexInformer
	queue    workqueue.TypedRateLimitingInterface[string]
}

func startSample(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(env.Namespace))
	fooFactory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(dyn, 0, env.Namespace, nil)
	s := &sample{
		kube: kube, foos: dyn.Resource(sampleFoos).Namespace(env.Namespace), env: env,
		lister: fooFactory.ForResource(sampleFoos).Lister(), children: factory.Core().V1().ConfigMaps().Informer(),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
	}
	env.Queue(s.queue)
	fooInformer := fooFactory.ForResource(sampleFoos).Informer()
	if _, err := fooInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    s.enqueue,
		UpdateFunc: func(_, obj any) { s.enqueue(obj) },
	}); err != nil {
		return err
	}
	if _, err := s.children.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: s.enqueueOwner,
		UpdateFunc: func(before, obj any) {
			if before.(*corev1.ConfigMap).ResourceVersion != obj.(*corev1.ConfigMap).ResourceVersion {
				s.enqueueOwner(obj)
			}
		},
		DeleteFunc: s.enqueueOwner,
	}); err != nil {
		return err
	}
	defer factory.Shutdown()
	defer fooFactory.Shutdown()
	factory.Start(ctx.Done())
	fooFactory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), fooInformer.HasSynced, s.children.HasSynced) {
		return nil
	}
	var workers sync.WaitGroup
	defer workers.Wait()
	defer s.queue.ShutDown()
	for range 2 {
		workers.Go(func() {
			for s.processNext(ctx) {
			}
		})
	}
	<-ctx.Done()
	return nil
}

func (s *sample) enqueue(obj any) {
	if key, err := cache.MetaNamespaceKeyFunc(obj); err == nil {
		s.queue.Add(key)
	}
}

func (s *sample) enqueueOwner(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	if child, ok := obj.(*corev1.ConfigMap); ok {
		if owner := metav1.GetControllerOf(child); owner != nil && owner.Kind == "Foo" {
			if foo, err := s.lister.ByNamespace(child.Namespace).Get(owner.Name); err == nil {
				s.enqueue(foo)
			}
		}
	}
}

func (s *sample) processNext(ctx context.Context) bool {
	key, shutdown := s.queue.Get()
	if shutdown {
		return false
	}
	defer s.queue.Done(key)
	if err := s.sync(ctx, key); err != nil {
		klog.FromContext(ctx).V(2).Info("Could not sync", "key", key, "err", err)
		s.queue.AddRateLimited(key)
		return true
	}
	s.queue.Forget(key)
	return true
}

func (s *sample) sync(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil
	}
	cached, err := s.lister.ByNamespace(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	foo := cached.(*unstructured.Unstructured).DeepCopy()
	account, _, _ := unstructured.NestedString(foo.Object, "status", "account")
	held := slices.Contains(foo.GetFinalizers(), sampleFinalizer)

	if foo.GetDeletionTimestamp() != nil {
		if !held {
			return nil
		}
		if account != "" {
			if err := s.env.Cloud.Delete(ctx, account); err != nil {
				return err
			}
		}
		foo.SetFinalizers(slices.DeleteFunc(foo.GetFinalizers(), func(f string) bool { return f == sampleFinalizer }))
		_, err := s.foos.Update(ctx, foo, metav1.UpdateOptions{})
		return err
	}
	if !held {
		foo.SetFinalizers(append(foo.GetFinalizers(), sampleFinalizer))
		if foo, err = s.foos.Update(ctx, foo, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}

	value, _, _ := unstructured.NestedString(foo.Object, "spec", "value")
	obj, exists, err := s.children.GetStore().GetByKey(key)
	if err != nil {
		return err
	}
	if !exists {
		if obj, err = s.kube.CoreV1().ConfigMaps(namespace).Create(ctx, s.childOf(foo, value), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	child := obj.(*corev1.ConfigMap)
	if !metav1.IsControlledBy(child, foo) {
		return fmt.Errorf("ConfigMap %s exists already and is not controlled by this Foo", key)
	}
	if child.Data["value"] != value {
		if child, err = s.kube.CoreV1().ConfigMaps(namespace).Update(ctx, s.childOf(foo, value), metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	if account == "" {
		existing, err := s.env.Cloud.List(ctx, name)
		if err != nil {
			return err
		}
		if len(existing) == 0 { // the status may not have been written the last time
			made, err := s.env.Cloud.Create(ctx, cloud.Resource{Name: name})
			if err != nil {
				return err
			}
			existing = append(existing, made)
		}
		account = existing[0].ID
	}

	status := map[string]any{"account": account, "value": child.Data["value"]}
	if equality.Semantic.DeepEqual(foo.Object["status"], status) {
		return nil
	}
	foo.Object["status"] = status
	_, err = s.foos.UpdateStatus(ctx, foo, metav1.UpdateOptions{})
	return err
}

func (s *sample) childOf(foo *unstructured.Unstructured, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: foo.GetName(), Namespace: foo.GetNamespace(),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(foo, sampleFoos.GroupVersion().WithKind("Foo"))},
		},
		Data: map[string]string{"value": value},
	}
}

// SampleController is the scenario of a controller in the common style, for the
// documentation. The explorer finds only bugs of that style in it.
func SampleController() controllertest.Scenario {
	step := func(name string, do func(context.Context, dynamic.ResourceInterface) error) controllertest.Step {
		return controllertest.Step{Name: name, Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			dyn, err := dynamic.NewForConfig(cfg)
			if err != nil {
				return err
			}
			return do(ctx, dyn.Resource(sampleFoos).Namespace(env.Namespace))
		}}
	}
	return controllertest.Scenario{
		Name:  "sample-controller",
		Start: startSample,
		Setup: installFoos,
		Script: []controllertest.Step{
			step("create foo", func(ctx context.Context, foos dynamic.ResourceInterface) error {
				_, err := foos.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": sampleFoos.GroupVersion().String(), "kind": "Foo",
					"metadata": map[string]any{"name": "foo"},
					"spec":     map[string]any{"value": "1"},
				}}, metav1.CreateOptions{})
				return err
			}),
			step("change foo", func(ctx context.Context, foos dynamic.ResourceInterface) error {
				_, err := foos.Patch(ctx, "foo", types.MergePatchType, []byte(`{"spec":{"value":"2"}}`), metav1.PatchOptions{})
				return err
			}),
			step("delete foo", func(ctx context.Context, foos dynamic.ResourceInterface) error {
				return foos.Delete(ctx, "foo", metav1.DeleteOptions{})
			}),
		},
		Converged: func(s *controllertest.State) error {
			foo := s.Get(sampleFoos.GroupResource().String(), "foo")
			child, accounts := s.Get("configmaps", "foo"), s.Cloud()
			switch {
			case foo == nil && len(accounts)+len(s.Objects("configmaps")) > 0 && child != nil:
				return fmt.Errorf("the child is still there")
			case foo == nil && len(accounts) > 0:
				return fmt.Errorf("account %s belongs to nothing", accounts[0].ID)
			case foo == nil:
				return nil
			}
			value, _, _ := unstructured.NestedString(foo.Object, "spec", "value")
			shown, _, _ := unstructured.NestedString(foo.Object, "status", "value")
			account, _, _ := unstructured.NestedString(foo.Object, "status", "account")
			switch {
			case foo.GetDeletionTimestamp() != nil:
				return fmt.Errorf("foo is still there")
			case child == nil || configMapData(child)["value"] != value || shown != value:
				return fmt.Errorf("the child or the status does not show %s", value)
			case len(accounts) != 1 || accounts[0].ID != account:
				return fmt.Errorf("the status names account %q, and there are %d", account, len(accounts))
			}
			return nil
		},
		Invariants: []controllertest.Invariant{oneAccountEach},
		Mask: func(obj *unstructured.Unstructured) {
			unstructured.RemoveNestedField(obj.Object, "status", "account") // another id after a recreation
		},
	}
}

// installFoos defines Foos and returns when they are served.
func installFoos(ctx context.Context, cfg *rest.Config) error {
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	definitions := dyn.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	name := sampleFoos.GroupResource().String()
	open := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	_, err = definitions.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"group": sampleFoos.Group, "scope": "Namespaced",
			"names": map[string]any{"plural": sampleFoos.Resource, "singular": "foo", "kind": "Foo"},
			"versions": []any{map[string]any{
				"name": sampleFoos.Version, "served": true, "storage": true,
				"subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object", "properties": map[string]any{"spec": open, "status": open},
				}},
			}},
		},
	}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	stream, err := definitions.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()})
	if err != nil {
		return err
	}
	defer stream.Stop()
	for event := range stream.ResultChan() {
		definition, ok := event.Object.(*unstructured.Unstructured)
		if !ok {
			break
		}
		conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
				return nil
			}
		}
	}
	return fmt.Errorf("the definition of %s was not established: %w", name, context.Cause(ctx))
}
