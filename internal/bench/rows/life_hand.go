package rows

import (
	"context"
	"errors"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// The controller of the rows about lives, with client-go only. It writes children and the
// status only if they differ from the cache.

type handLife struct{ *plainLife }

func liveByHand(ctx context.Context, s lifeSetting) (*lifeController, error) {
	plain, err := openPlainLife(s, s.config)
	if err != nil {
		return nil, err
	}
	l := &handLife{plain}
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[types.NamespacedName]())
	add := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		if w, ok := obj.(*widget); ok {
			q.Add(types.NamespacedName{Namespace: w.Namespace, Name: w.Name})
		} else if child, ok := obj.(metav1.Object); ok {
			if owner := metav1.GetControllerOf(child); owner != nil && owner.Kind == widgetKind {
				q.Add(types.NamespacedName{Namespace: child.GetNamespace(), Name: owner.Name})
			}
		}
	}
	all := []cache.SharedIndexInformer{
		l.widgets, l.factory.Apps().V1().Deployments().Informer(), l.factory.Core().V1().Services().Informer(), l.factory.Core().V1().ConfigMaps().Informer(),
	}
	var synced []cache.InformerSynced
	for _, i := range all {
		handler, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) }, DeleteFunc: add})
		if err != nil {
			return nil, err
		}
		synced = append(synced, handler.HasSynced)
	}
	stopInformers := start(ctx, func(ctx context.Context) error {
		var wg sync.WaitGroup
		for _, i := range all {
			wg.Go(func() { i.RunWithContext(ctx) })
		}
		wg.Wait()
		return nil
	})
	stopWorkers := start(ctx, func(ctx context.Context) error {
		var wg sync.WaitGroup
		for range lifeWorkers {
			wg.Go(func() { l.work(ctx, q, s) })
		}
		wg.Wait()
		return nil
	})
	stop := func() error {
		q.ShutDown()
		return errors.Join(stopWorkers(), stopInformers())
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil, errors.Join(context.Cause(ctx), stop())
	}
	return &lifeController{resync: q.Add, stop: stop}, nil
}

func (l *handLife) work(ctx context.Context, q workqueue.TypedRateLimitingInterface[types.NamespacedName], s lifeSetting) {
	for {
		key, shutdown := q.Get()
		if shutdown {
			return
		}
		before, err := l.get(key)
		if err == nil && before != nil {
			err = l.reconcile(ctx, before.DeepCopy())
		}
		s.seen(key, before, err)
		if err != nil {
			q.AddRateLimited(key)
		} else {
			q.Forget(key)
		}
		q.Done(key)
	}
}

func (l *handLife) reconcile(ctx context.Context, w *widget) (err error) {
	held := slices.Contains(w.Finalizers, lifeFinalizer)
	switch {
	case w.DeletionTimestamp != nil && held:
		l.outside.remove(w.UID)
		w.Finalizers = slices.DeleteFunc(w.Finalizers, func(f string) bool { return f == lifeFinalizer })
		_, err = l.client.Update(ctx, w, metav1.UpdateOptions{})
		return err
	case w.DeletionTimestamp != nil:
		return nil
	case !held:
		w.Finalizers = append(w.Finalizers, lifeFinalizer)
		if w, err = l.client.Update(ctx, w, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	if err := l.outside.make(w.UID); err != nil {
		return errors.Join(err, l.setReady(ctx, w, err))
	}
	fields := rivalLife{guardChildren: true}
	deployment, err := l.deployments.Deployments(w.Namespace).Get(w.Name)
	if err := writeChild(ctx, w, l.kube.AppsV1().Deployments(w.Namespace), wantedDeployment(w), deployment, err, func(d *appsv1.Deployment) { fields.mutateDeployment(w, d) }); err != nil {
		return err
	}
	service, err := l.services.Services(w.Namespace).Get(w.Name)
	if err := writeChild(ctx, w, l.kube.CoreV1().Services(w.Namespace), wantedService(w), service, err, func(s *corev1.Service) { fields.mutateService(w, s) }); err != nil {
		return err
	}
	for _, name := range []string{"first", "second"} {
		want := wantedConfigMap(w, name)
		configMap, err := l.configMaps.ConfigMaps(w.Namespace).Get(want.Name)
		if err := writeChild(ctx, w, l.kube.CoreV1().ConfigMaps(w.Namespace), want, configMap, err, func(c *corev1.ConfigMap) { c.Data = want.Data }); err != nil {
			return err
		}
	}
	return l.setReady(ctx, w, nil)
}

// setReady writes the status of a reconcile that ended with err.
func (l *handLife) setReady(ctx context.Context, w *widget, err error) error {
	before := w.DeepCopy()
	w.setReady(err)
	if equality.Semantic.DeepEqual(before.Status, w.Status) {
		return nil
	}
	_, err = l.client.UpdateStatus(ctx, w, metav1.UpdateOptions{})
	return err
}

// writeChild creates want, or updates live if set changes it. live and err are the results of a lister.
func writeChild[T interface {
	metav1.Object
	DeepCopy() T
}](
	ctx context.Context, w *widget, client interface {
		Create(context.Context, T, metav1.CreateOptions) (T, error)
		Update(context.Context, T, metav1.UpdateOptions) (T, error)
	}, want, live T, err error, set func(T),
) error {
	owner := []metav1.OwnerReference{*metav1.NewControllerRef(w, widgetVersion().WithKind(widgetKind))}
	switch {
	case apierrors.IsNotFound(err):
		want.SetOwnerReferences(owner)
		_, err = client.Create(ctx, want, metav1.CreateOptions{})
		return err
	case err != nil:
		return err
	}
	changed := live.DeepCopy()
	changed.SetLabels(childLabels(w))
	changed.SetOwnerReferences(owner)
	set(changed)
	if equality.Semantic.DeepEqual(live, changed) {
		return nil
	}
	_, err = client.Update(ctx, changed, metav1.UpdateOptions{})
	return err
}
