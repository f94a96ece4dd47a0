package controllertest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/controllertest"
)

// A copier is the smallest controller that does something: it sees to it that
// there is a ConfigMap a-copy exactly as long as there is a. What it does when its
// first attempt to make one fails is the test's choice.
type copier struct {
	failed func(ctx context.Context, c *copying) error // nil means to try again
	begin  func(ctx context.Context, c *copying) error // at the start; nil means nothing
	end    func(c *copying)                            // at the end; nil means nothing
}

// A copying is a copier at work.
type copying struct {
	configMaps typedv1.ConfigMapInterface
	env        *controllertest.Env
	note       map[string]string // goes into the copy
}

func (o *copier) start(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	c := &copying{configMaps: kube.CoreV1().ConfigMaps(env.Namespace), env: env}
	if o.end != nil {
		defer o.end(c)
	}
	if o.begin != nil {
		if err := o.begin(ctx, c); err != nil {
			return err
		}
	}
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(env.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			if o.ResourceVersion == "0" {
				o.ResourceVersion = "" // an old list would be no bug of the kind that is looked for here
			}
		}))
	informer := factory.Core().V1().ConfigMaps().Informer()
	_ = informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {})
	wake := make(chan struct{}, 1)
	trigger := func(obj any) {
		if key, err := cache.DeletionHandlingObjectToName(obj); err != nil || !strings.HasPrefix(key.Name, "a") {
			return
		}
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: trigger, UpdateFunc: func(_, obj any) { trigger(obj) }, DeleteFunc: trigger,
	}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer factory.Shutdown()
	defer cancel()
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil
	}
	for {
		select {
		case <-wake:
		case <-ctx.Done():
			return nil
		}
		for ctx.Err() == nil {
			err := c.reconcile(ctx, informer.GetStore(), env.Namespace)
			if err == nil || ctx.Err() != nil {
				break
			}
			if o.failed != nil {
				if err := o.failed(ctx, c); err != nil {
					if errors.Is(err, errStop) {
						break
					}
					return err
				}
			}
			select {
			case <-time.After(20 * time.Millisecond): // tries again
			case <-ctx.Done():
			}
		}
	}
}

// errStop ends the attempts.
var errStop = errors.New("stop")

func (c *copying) reconcile(ctx context.Context, store cache.Store, namespace string) error {
	_, wanted, _ := store.GetByKey(namespace + "/a")
	_, have, _ := store.GetByKey(namespace + "/a-copy")
	switch {
	case wanted && !have:
		return c.create(ctx, map[string]string{"k": "v"})
	case !wanted && have:
		if err := c.configMaps.Delete(ctx, "a-copy", metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

func (c *copying) create(ctx context.Context, data map[string]string) error {
	copied := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a-copy", Annotations: c.note}, Data: data}
	if _, err := c.configMaps.Create(ctx, copied, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

func (c *copying) annotate(ctx context.Context, name, value string) error {
	_, err := c.configMaps.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"noted":"`+value+`"}}}`), metav1.PatchOptions{})
	return err
}

// createsA is the only step of the story.
func createsA(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	_, err = kube.CoreV1().ConfigMaps(env.Namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	return err
}

func copied(s *controllertest.State) error {
	if a, b := s.Get("configmaps", "a"), s.Get("configmaps", "a-copy"); (a == nil) != (b == nil) {
		return fmt.Errorf("a is there: %t, a-copy is there: %t", a != nil, b != nil)
	}
	return nil
}

func (o *copier) scenario() controllertest.Scenario {
	return controllertest.Scenario{
		Name: "copier", Start: o.start,
		Script:    []controllertest.Step{{Name: "create a", Do: createsA}},
		Converged: copied,
	}
}

// panicking has client-go guard a goroutine that panics.
func panicking(ctx context.Context, c *copying) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		first := true
		worker, cancel := context.WithCancel(ctx)
		defer cancel()
		wait.UntilWithContext(worker, func(context.Context) {
			if !first {
				cancel()
				return
			}
			first = false
			panic("in a worker of client-go")
		}, time.Millisecond)
	}()
	<-done
	return nil
}
