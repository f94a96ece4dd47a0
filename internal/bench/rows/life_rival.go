package rows

import (
	"context"
	"errors"
	"maps"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// The controller of the rows about lives, with controller-runtime.

type rivalLife struct {
	guardStatus    bool // write the status only if it differs
	guardChildren  bool // set the fields of children one by one, which keeps defaults
	readYourWrites bool // the client's option EnableReadYourWritesConsistency

	client.Client
	outside *outside
}

func (l rivalLife) live(ctx context.Context, s lifeSetting) (*lifeController, error) {
	scheme, err := widgetScheme()
	if err != nil {
		return nil, err
	}
	m, err := ctrl.NewManager(s.config, ctrl.Options{
		Scheme:  scheme,
		Logger:  logr.FromContextOrDiscard(ctx),
		Metrics: metricsserver.Options{BindAddress: "0"},
		Cache:   crcache.Options{DefaultNamespaces: map[string]crcache.Config{s.namespace: {}}},
		Client:  client.Options{Cache: &client.CacheOptions{EnableReadYourWritesConsistency: new(l.readYourWrites)}},
	})
	if err != nil {
		return nil, err
	}
	l.Client, l.outside = m.GetClient(), s.outside
	resynced := make(chan event.GenericEvent)
	err = builder.ControllerManagedBy(m).
		Named(widgetResource).
		For(&widget{}).
		Owns(&appsv1.Deployment{}).
		Owns(&corev1.Service{}).
		Owns(&corev1.ConfigMap{}).
		WatchesRawSource(source.Channel(resynced, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: lifeWorkers,
			SkipNameValidation:      new(true), // each run creates the controller again
		}).
		Complete(ctrlReconciler(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
			before := &widget{}
			err := l.Get(ctx, req.NamespacedName, before)
			if client.IgnoreNotFound(err) != nil {
				return ctrl.Result{}, err
			}
			if err != nil {
				before = nil
			}
			result, err := l.Reconcile(ctx, req)
			s.seen(req.NamespacedName, before, err)
			return result, err
		}))
	if err != nil {
		return nil, err
	}
	for _, kind := range []client.Object{&widget{}, &appsv1.Deployment{}, &corev1.Service{}, &corev1.ConfigMap{}} {
		if _, err := m.GetCache().GetInformer(ctx, kind, crcache.BlockUntilSynced(false)); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	stopManager := start(ctx, m.Start)
	stop := func() error {
		cancel()
		return stopManager()
	}
	if !m.GetCache().WaitForCacheSync(ctx) {
		return nil, errors.Join(errors.New("controller-runtime's cache did not sync"), context.Cause(ctx), stop())
	}
	return &lifeController{stop: stop, resync: func(key types.NamespacedName) {
		select {
		case resynced <- event.GenericEvent{Object: &widget{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}}:
		case <-ctx.Done():
		}
	}}, nil
}

type ctrlReconciler func(ctx context.Context, req ctrl.Request) (ctrl.Result, error)

func (f ctrlReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return f(ctx, req)
}

// Reconcile follows controller-runtime's book.
func (l rivalLife) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	w := &widget{}
	if err := l.Get(ctx, req.NamespacedName, w); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !w.DeletionTimestamp.IsZero() {
		if controllerutil.ContainsFinalizer(w, lifeFinalizer) {
			l.outside.remove(w.UID)
			controllerutil.RemoveFinalizer(w, lifeFinalizer)
			return ctrl.Result{}, l.Update(ctx, w)
		}
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(w, lifeFinalizer) {
		if err := l.Update(ctx, w); err != nil {
			return ctrl.Result{}, err
		}
	}
	if err := l.outside.make(w.UID); err != nil {
		return ctrl.Result{}, errors.Join(err, l.setReady(ctx, w, err))
	}

	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name}}
	if err := l.child(ctx, w, deployment, func() { l.mutateDeployment(w, deployment) }); err != nil {
		return ctrl.Result{}, err
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name}}
	if err := l.child(ctx, w, service, func() { l.mutateService(w, service) }); err != nil {
		return ctrl.Result{}, err
	}
	for _, name := range []string{"first", "second"} {
		configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name + "-" + name}}
		if err := l.child(ctx, w, configMap, func() { configMap.Data = wantedConfigMap(w, name).Data }); err != nil {
			return ctrl.Result{}, err
		}
	}

	return ctrl.Result{}, l.setReady(ctx, w, nil)
}

// setReady writes the status of a reconcile that ended with err.
func (l rivalLife) setReady(ctx context.Context, w *widget, err error) error {
	before := w.DeepCopy()
	w.setReady(err)
	if l.guardStatus && equality.Semantic.DeepEqual(before.Status, w.Status) {
		return nil
	}
	return l.Status().Update(ctx, w)
}

// setReady sets the status of a reconcile that ended with err.
func (w *widget) setReady(err error) {
	if err == nil {
		w.Status.Children = lifeChildren
	}
	ready := lifeCondition(err)
	ready.ObservedGeneration = w.Generation
	meta.SetStatusCondition(&w.Status.Conditions, ready)
}

func (l rivalLife) child(ctx context.Context, w *widget, obj client.Object, mutate func()) error {
	_, err := controllerutil.CreateOrUpdate(ctx, l.Client, obj, func() error {
		labels := obj.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		maps.Copy(labels, childLabels(w))
		obj.SetLabels(labels)
		mutate()
		return controllerutil.SetControllerReference(w, obj, l.Scheme())
	})
	return err
}

func (l rivalLife) mutateDeployment(w *widget, d *appsv1.Deployment) {
	want := wantedDeployment(w).Spec
	d.Spec.Replicas = want.Replicas
	if d.CreationTimestamp.IsZero() { // the selector is immutable
		d.Spec.Selector = want.Selector
	}
	if !l.guardChildren || len(d.Spec.Template.Spec.Containers) != 1 {
		d.Spec.Template = want.Template
		return
	}
	d.Spec.Template.Labels = want.Template.Labels
	got, container := &d.Spec.Template.Spec.Containers[0], want.Template.Spec.Containers[0]
	got.Name, got.Image, got.Args, got.Ports = container.Name, container.Image, container.Args, container.Ports
}

func (l rivalLife) mutateService(w *widget, s *corev1.Service) {
	// Replacing the whole spec would clear clusterIP, which the server rejects.
	want := wantedService(w).Spec
	s.Spec.Selector, s.Spec.Ports = want.Selector, want.Ports
}
