// Command operator is the contender of the rows about processes that package operator
// assembles.
package main

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/compact"
	"github.com/controllerkit/controllerkit/internal/bench/internal/contender"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

func main() { contender.Main(run) }

// reader reads an object from the cache.
type reader func(namespace, name string) (metav1.Object, error)

func run(ctx context.Context, p *contender.Process) error {
	op, err := operator.New(p.Config, operator.Options{Name: "operator", StartTimeout: 2 * time.Minute}) // as controller-runtime's
	if err != nil {
		return err
	}
	var get reader
	c := op.Controller("operator", func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
		obj, err := get(key.Namespace, key.Name)
		if apierrors.IsNotFound(err) {
			return reconcile.Result{}, nil
		}
		if err != nil {
			return reconcile.Result{}, err
		}
		return reconcile.Result{}, p.Reconciled(ctx, obj)
	})
	c.Loop.Workers = contender.Workers
	if p.Kind == contender.Gadgets {
		get, err = gadgets(p, op, c)
	} else {
		get, err = builtIn(p, op, c)
	}
	if err != nil {
		return err
	}
	return op.Run(ctx)
}

// builtIn makes the controller reconcile the objects of a generated factory.
func builtIn(p *contender.Process, op *operator.Operator, c *operator.Controller) (get reader, err error) {
	kube, err := kubernetes.NewForConfig(op.Config)
	if err != nil {
		return nil, err
	}
	options := []informers.SharedInformerOption{informers.WithNamespace(p.Namespace)}
	switch {
	case p.Metadata:
		options = append(options, informers.WithTransform(informer.KeepMetadata(func(o metav1.Object) bool { return contender.Selected(o.GetLabels()) })))
	case p.Trim:
		options = append(options, informers.WithTransform(informer.Trim))
	}
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, options...)
	switch p.Kind {
	case contender.ConfigMaps:
		if p.Compact {
			if get, err = compacted(p, factory, &corev1.ConfigMap{}, kube.CoreV1().RESTClient()); err != nil {
				return nil, err
			}
		}
		objects := operator.For(c, corev1.Resource(p.Kind), factory.Core().V1().ConfigMaps())
		if get == nil {
			get = func(namespace, name string) (metav1.Object, error) { return objects.ConfigMaps(namespace).Get(name) }
		}
	case contender.Deployments:
		if p.Compact {
			if get, err = compacted(p, factory, &appsv1.Deployment{}, kube.AppsV1().RESTClient()); err != nil {
				return nil, err
			}
		}
		objects := operator.For(c, appsv1.Resource(p.Kind), factory.Apps().V1().Deployments())
		if get == nil {
			get = func(namespace, name string) (metav1.Object, error) { return objects.Deployments(namespace).Get(name) }
		}
	default:
		return nil, fmt.Errorf("unknown kind %q", p.Kind)
	}
	return get, nil
}

// compacted replaces the factory's informer of a type by one with a compact cache.
func compacted[T controllerkit.Object](p *contender.Process, factory informers.SharedInformerFactory, of T, client rest.Interface) (reader, error) {
	objects, err := compact.New[T](client, p.Kind, compact.Options{Namespace: p.Namespace})
	if err != nil {
		return nil, err
	}
	factory.InformerFor(of, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer { return objects })
	return func(namespace, name string) (metav1.Object, error) { return objects.Get(namespace, name) }, nil
}

// gadgets makes the controller reconcile custom resources.
func gadgets(p *contender.Process, op *operator.Operator, c *operator.Controller) (reader, error) {
	client, err := crd.New[*contender.Gadget](op.Config, contender.GadgetKind(), p.Kind)
	if err != nil {
		return nil, err
	}
	if p.Compact {
		of, err := contender.GadgetRESTClient(op.Config)
		if err != nil {
			return nil, err
		}
		objects, err := compact.New[*contender.Gadget](of, p.Kind, compact.Options{Namespace: p.Namespace})
		if err != nil {
			return nil, err
		}
		operator.For(c, contender.GadgetResource(), client.Over(objects))
		return func(namespace, name string) (metav1.Object, error) { return objects.Get(namespace, name) }, nil
	}
	source := client.Namespace(p.Namespace).Informer(0, nil)
	if p.Trim {
		if err := source.Informer().SetTransform(informer.Trim); err != nil {
			return nil, err
		}
	}
	objects := operator.For(c, contender.GadgetResource(), source)
	return func(namespace, name string) (metav1.Object, error) { return objects.Namespace(namespace).Get(name) }, nil
}
