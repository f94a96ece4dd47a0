package controller

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	applybatchv1 "k8s.io/client-go/applyconfigurations/batch/v1"
	"k8s.io/client-go/informers"
	batchinformers "k8s.io/client-go/informers/batch/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/examples/backup/api/v1"
	"github.com/controllerkit/controllerkit/examples/backup/store"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/informer/scope"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// Options configure the operator of the backups. All fields are required.
type Options struct {
	Operator     operator.Options
	Settings     types.NamespacedName // of the ConfigMap
	Level        *slog.LevelVar       // of the log, which the settings change
	Store        store.Service
	VisibleAfter time.Duration    // of the store: see store.VisibleAfter
	Now          func() time.Time // time.Now, or the clock of a test
}

// New returns the operator of the backups.
func New(config *rest.Config, o Options) (*operator.Operator, error) {
	op, err := operator.New(config, o.Operator)
	if err != nil {
		return nil, fmt.Errorf("backup operator: %w", err)
	}
	kube, err := kubernetes.NewForConfig(op.Config)
	if err != nil {
		return nil, fmt.Errorf("backup operator: make a client: %w", err)
	}
	backups, err := crd.New[*v1.Backup](op.Config, v1.GroupVersion.WithKind("Backup"), "backups")
	if err != nil {
		return nil, fmt.Errorf("backup operator: make a client: %w", err)
	}

	// The informers show the namespaces of the settings.
	inScope := scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
		return backups.Namespace(p.Namespace).Informer(0, p.Options).Informer(), nil
	})
	byNamespace := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	jobsInScope := inScope.With(func(p scope.Part) (cache.SharedIndexInformer, error) {
		return batchinformers.NewFilteredJobInformer(kube, p.Namespace, 0, byNamespace, p.Options), nil
	})
	configMaps := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(o.Settings.Namespace),
		informers.WithTweakListOptions(func(list *metav1.ListOptions) {
			list.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, o.Settings.Name).String()
		})).Core().V1().ConfigMaps()
	op.Inform(v1.Resource("backups"), inScope)
	op.Inform(batchv1.Resource("jobs"), jobsInScope)
	op.Inform(corev1.Resource("configmaps"), configMaps.Informer())

	// Follow loads the settings on every replica, before the first backup is seen. If they are not
	// valid at the start, the replica does not become ready, and Run returns the reason.
	live := &Live{Level: o.Level, Limit: &Limit{}}
	load := func() (Settings, error) {
		return live.Load(func() (*corev1.ConfigMap, error) {
			return configMaps.Lister().ConfigMaps(o.Settings.Namespace).Get(o.Settings.Name)
		})
	}
	operator.Follow(op, corev1.Resource("configmaps"), configMaps, inScope, func(corelisters.ConfigMapLister) (scope.Selection, error) {
		settings, err := load()
		return scope.Selection{Namespaces: settings.Namespaces}, err
	})
	addSettings(op, configMaps, load)

	r := &Reconciler{Store: o.Store, VisibleAfter: o.VisibleAfter, Now: o.Now}
	c := operator.Kind(op, v1.GroupVersion.WithResource("backups"), operator.Reconciler[*v1.Backup]{
		Reconcile: r.Reconcile, Finalizer: Finalizer, Cleanup: r.Cleanup, Manager: "backup.example.com/backup-operator",
	})
	c.Loop.Workers = maxWorkers // the Limit is lower
	c.Loop.Queue = limited{
		Queue: queue.New(queue.Config[types.NamespacedName]{Name: c.Loop.Name, MetricsProvider: op.Metrics}),
		limit: live.Limit,
	}

	operator.Children(c, batchv1.SchemeGroupVersion.WithResource("jobs"), applybatchv1.ExtractJob)
	const byOwner = "owner"
	jobs := operator.Reads(c, batchv1.SchemeGroupVersion.WithResource("jobs"), operator.Reading[*batchv1.Job]{
		Indexes: map[string]func(*batchv1.Job) []string{byOwner: ownerUID},
	})
	settings := operator.Reads(c, corev1.SchemeGroupVersion.WithResource("configmaps"), operator.Reading[*corev1.ConfigMap]{})
	op.Writes(batchv1.Resource("jobs"), "delete") // Prune would need all kept Jobs to be applied again

	r.Apply = c.Apply
	r.Jobs = func(ctx context.Context, b *v1.Backup) ([]*batchv1.Job, error) {
		return jobs.ByIndex(ctx, byOwner, string(b.UID))
	}
	r.JobClient = func(namespace string) JobClient { return kube.BatchV1().Jobs(namespace) }
	r.Settings = func(ctx context.Context) (Settings, error) {
		// This read makes each change of the ConfigMap run the backup again.
		if _, err := settings.Get(ctx, o.Settings.Namespace, o.Settings.Name); err != nil && !apierrors.IsNotFound(err) {
			return Settings{}, err
		}
		valid, err := load()
		if err != nil {
			klog.FromContext(ctx).V(4).Info("The last valid settings are in effect", "reason", err.Error())
		}
		return valid, nil
	}
	return op, nil
}

// addSettings adds a controller of the ConfigMap. It loads nothing that Follow does not: it reports
// settings that are not valid, on the leader, by an Event, the log and the metric
// controller_reconcile_total{controller="settings",result="terminal"}.
func addSettings(op *operator.Operator, configMaps interface {
	Informer() cache.SharedIndexInformer
	Lister() corelisters.ConfigMapLister
}, load func() (Settings, error),
) {
	var c *operator.Controller
	c = op.Controller("settings", func(_ context.Context, key types.NamespacedName) (reconcile.Result, error) {
		configMap, err := configMaps.Lister().ConfigMaps(key.Namespace).Get(key.Name)
		switch {
		case apierrors.IsNotFound(err):
			return reconcile.Result{}, fmt.Errorf("the settings are gone, and the last valid ones stay in effect: %w: %w", reconcile.ErrTerminal, err)
		case err != nil:
			return reconcile.Result{}, fmt.Errorf("read the settings: %w", err)
		}
		if _, err := load(); err != nil {
			c.Event(configMap, corev1.EventTypeWarning, "InvalidSettings", "Load", "The last valid settings stay in effect: %v", err)
			return reconcile.Result{}, fmt.Errorf("the last valid settings stay in effect: %w: %w", reconcile.ErrTerminal, err)
		}
		return reconcile.Result{}, nil
	})
	operator.For(c, corev1.Resource("configmaps"), configMaps)
}

// ownerUID returns the values of a Job in the index of owners.
func ownerUID(job *batchv1.Job) []string {
	if owner := metav1.GetControllerOfNoCopy(job); owner != nil {
		return []string{string(owner.UID)}
	}
	return nil
}

// JobClient has the methods of a client of Jobs that the controller calls beside Apply.
type JobClient interface {
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*batchv1.Job, error)
	finalizer.Deleter
}
