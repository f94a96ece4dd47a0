package rows

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appsv1listers "k8s.io/client-go/listers/apps/v1"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/status"
)

// The controller of the rows about lives, with the library.

type ourLife struct{ *plainLife }

// plainLife has the clients and informers of a controller without controller-runtime.
type plainLife struct {
	outside *outside

	client  *widgetClient
	kube    kubernetes.Interface
	widgets cache.SharedIndexInformer
	factory informers.SharedInformerFactory // of the children

	deployments appsv1listers.DeploymentLister
	services    corev1listers.ServiceLister
	configMaps  corev1listers.ConfigMapLister
}

func openPlainLife(s lifeSetting, config *rest.Config) (*plainLife, error) {
	client, err := newWidgetClient(config, s.namespace)
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(s.namespace))
	return &plainLife{
		outside: s.outside, client: client, kube: kube, factory: factory,
		widgets: cache.NewSharedIndexInformer(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) },
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return client.Watch(ctx, o)
			},
		}, &widget{}, 0, cache.Indexers{}),
		deployments: factory.Apps().V1().Deployments().Lister(),
		services:    factory.Core().V1().Services().Lister(),
		configMaps:  factory.Core().V1().ConfigMaps().Lister(),
	}, nil
}

func liveOurs(ctx context.Context, s lifeSetting) (*lifeController, error) {
	// The controller does not use LiveRead, so it must wait for its writes without limit.
	writes := consistency.New(consistency.Config{MaxWait: -1})
	config := rest.CopyConfig(s.config)
	config.Wrap(writes.Wrap)
	plain, err := openPlainLife(s, config)
	if err != nil {
		return nil, err
	}
	l := &ourLife{plain}

	q := queue.New(queue.Config[types.NamespacedName]{Name: widgetResource})
	c := &reconcile.Controller[types.NamespacedName]{
		Name:    widgetResource,
		Queue:   q,
		Workers: lifeWorkers,
		Gate:    writes,
		Reconcile: func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
			before, err := l.get(key)
			if err == nil {
				err = l.reconcile(ctx, key)
			}
			s.seen(key, before, err)
			return reconcile.Result{}, err
		},
	}
	owner := schema.GroupKind{Group: widgetVersion().Group, Kind: widgetKind}
	set := &informer.Set{}
	for _, i := range []struct {
		resource schema.GroupResource
		informer cache.SharedIndexInformer
		handler  func(*reconcile.Source[types.NamespacedName]) cache.ResourceEventHandler
	}{
		{widgetVersion().WithResource(widgetResource).GroupResource(), l.widgets, handlerOf(enqueue.KeyOf[*widget])},
		{appsv1.Resource("deployments"), l.factory.Apps().V1().Deployments().Informer(), handlerOf(enqueue.ControllerOf[*appsv1.Deployment](owner))},
		{corev1.Resource("services"), l.factory.Core().V1().Services().Informer(), handlerOf(enqueue.ControllerOf[*corev1.Service](owner))},
		{corev1.Resource("configmaps"), l.factory.Core().V1().ConfigMaps().Informer(), handlerOf(enqueue.ControllerOf[*corev1.ConfigMap](owner))},
	} {
		handler, err := c.Handle(i.informer, i.handler(c.Source(i.resource.Resource)))
		if err != nil {
			return nil, err
		}
		if err := writes.AddInformer(i.resource, i.informer); err != nil {
			return nil, err
		}
		set.Add(i.resource.String(), i.informer, handler)
	}
	c.HasSynced = []cache.DoneChecker{set.HasSyncedChecker()}
	stopInformers := start(ctx, set.Run)
	stopController := start(ctx, c.Run)
	stop := func() error {
		err := errors.Join(stopController(), stopInformers())
		q.ShutDown()
		return err
	}
	select {
	case <-set.HasSyncedChecker().Done():
		return &lifeController{resync: c.Source("user").Add, stop: stop}, nil
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), stop())
	}
}

func handlerOf[T any](keys func(T) []types.NamespacedName) func(*reconcile.Source[types.NamespacedName]) cache.ResourceEventHandler {
	return func(s *reconcile.Source[types.NamespacedName]) cache.ResourceEventHandler {
		return enqueue.Handler(s, keys)
	}
}

// get returns nil if the cache has no such Widget.
func (l *plainLife) get(key types.NamespacedName) (*widget, error) {
	obj, exists, err := l.widgets.GetIndexer().GetByKey(key.String())
	if err != nil || !exists {
		return nil, err
	}
	return obj.(*widget), nil
}

func (l *ourLife) reconcile(ctx context.Context, key types.NamespacedName) error {
	w, err := l.get(key)
	if err != nil || w == nil {
		return err
	}
	held, live, err := finalizer.Ensure(ctx, l.client, w, lifeFinalizer, l.cleanup)
	if err != nil || !live {
		return err
	}
	w = held.Object()
	if err := l.makeOutside(held); err != nil {
		return errors.Join(err, l.setReady(ctx, w, err))
	}

	deployment, deploymentErr := l.deployments.Deployments(w.Namespace).Get(w.Name)
	service, serviceErr := l.services.Services(w.Namespace).Get(w.Name)
	err = errors.Join(
		ensureChild(ctx, w, l.kube.AppsV1().Deployments(w.Namespace), deploymentConfig(w), deployment, deploymentErr, applyappsv1.ExtractDeployment),
		ensureChild(ctx, w, l.kube.CoreV1().Services(w.Namespace), serviceConfig(w), service, serviceErr, applycorev1.ExtractService),
	)
	for _, name := range []string{"first", "second"} {
		config := configMapConfig(w, name)
		configMap, configMapErr := l.configMaps.ConfigMaps(w.Namespace).Get(*config.Name)
		err = errors.Join(err, ensureChild(ctx, w, l.kube.CoreV1().ConfigMaps(w.Namespace), config, configMap, configMapErr, applycorev1.ExtractConfigMap))
	}
	if err != nil {
		return err
	}

	return l.setReady(ctx, w, nil)
}

func (l *ourLife) makeOutside(held finalizer.Held[*widget]) error {
	return l.outside.make(held.Object().UID)
}

// setReady writes the status of a reconcile that ended with err.
func (l *ourLife) setReady(ctx context.Context, w *widget, err error) error {
	_, err = status.Update(ctx, l.client, w, func(w *widget) error {
		if err == nil {
			w.Status.Children = lifeChildren
		}
		return status.Set(&w.Status.Conditions, w.Generation, lifeCondition(err))
	})
	return err
}

func (l *ourLife) cleanup(_ context.Context, held finalizer.Held[*widget]) error {
	l.outside.remove(held.Object().UID)
	return nil
}

// ensureChild applies a child. live and err are the results of a lister.
func ensureChild[T metav1.Object, C any](
	ctx context.Context, w *widget, client interface {
		Apply(context.Context, C, metav1.ApplyOptions) (T, error)
	}, config C, live T, err error, extract func(T, string) (C, error),
) error {
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return err
	case !metav1.IsControlledBy(live, w):
		return fmt.Errorf("%T %s belongs to another owner", live, live.GetName())
	}
	_, _, err = ssa.ApplyChanged(ctx, applier, client.Apply, config, live, extract)
	return err
}

func ownerConfig(w *widget) *applymetav1.OwnerReferenceApplyConfiguration {
	return applymetav1.OwnerReference().WithAPIVersion(widgetVersion().String()).WithKind(widgetKind).
		WithName(w.Name).WithUID(w.UID).WithController(true).WithBlockOwnerDeletion(true)
}

func deploymentConfig(w *widget) *applyappsv1.DeploymentApplyConfiguration {
	container := applycorev1.Container().WithName("main").WithImage("example.com/image:1").WithArgs("--text=" + w.Spec.Text).
		WithPorts(applycorev1.ContainerPort().WithContainerPort(8080).WithProtocol(corev1.ProtocolTCP))
	return applyappsv1.Deployment(w.Name, w.Namespace).WithLabels(childLabels(w)).WithOwnerReferences(ownerConfig(w)).
		WithSpec(applyappsv1.DeploymentSpec().WithReplicas(w.Spec.Replicas).
			WithSelector(applymetav1.LabelSelector().WithMatchLabels(childLabels(w))).
			WithTemplate(applycorev1.PodTemplateSpec().WithLabels(childLabels(w)).
				WithSpec(applycorev1.PodSpec().WithContainers(container))))
}

func serviceConfig(w *widget) *applycorev1.ServiceApplyConfiguration {
	return applycorev1.Service(w.Name, w.Namespace).WithLabels(childLabels(w)).WithOwnerReferences(ownerConfig(w)).
		WithSpec(applycorev1.ServiceSpec().WithSelector(childLabels(w)).
			WithPorts(applycorev1.ServicePort().WithName("http").WithPort(80).WithProtocol(corev1.ProtocolTCP).WithTargetPort(intstr.FromInt32(8080))))
}

func configMapConfig(w *widget, name string) *applycorev1.ConfigMapApplyConfiguration {
	return applycorev1.ConfigMap(w.Name+"-"+name, w.Namespace).WithLabels(childLabels(w)).WithOwnerReferences(ownerConfig(w)).
		WithData(map[string]string{"name": name, "text": w.Spec.Text})
}
