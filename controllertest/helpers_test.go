package controllertest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
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
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/internal/testserver"
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

// createsAndAwaits creates a and waits for its copy until ctx is done.
func createsAndAwaits(ctx context.Context, cfg *rest.Config, env *controllertest.Env) (made *corev1.ConfigMap, err error) {
	kube, err := kubernetes.NewForConfig(cfg)
	if err == nil {
		err = createsA(ctx, cfg, env)
	}
	if err != nil {
		return nil, err
	}
	err = wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		made, err = kube.CoreV1().ConfigMaps(env.Namespace).Get(ctx, "a-copy", metav1.GetOptions{})
		return err == nil, ignoreNotFound(err)
	})
	return made, err
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

// A recorder is the testing.TB of a test that is expected to fail.
type recorder struct {
	testing.TB
	ctx     context.Context
	failed  bool
	skipped bool

	mu     sync.Mutex
	told   []string
	logged []string
}

// record runs a test, and returns what it told.
func record(t *testing.T, test func(testing.TB)) *recorder {
	t.Helper()
	r := &recorder{TB: t, ctx: t.Context()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		test(r)
	}()
	<-done
	return r
}

func (r *recorder) errors() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.told, "\n")
}

func (r *recorder) logs() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.logged, "\n")
}

func (r *recorder) tell(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
	r.told = append(r.told, text)
}

func (r *recorder) Helper() {}

func (r *recorder) Name() string { return "Recorded" }

func (r *recorder) Context() context.Context { return r.ctx }

func (r *recorder) Error(args ...any) { r.tell(fmt.Sprint(args...)) }

func (r *recorder) Errorf(f string, a ...any) { r.tell(fmt.Sprintf(f, a...)) }

func (r *recorder) Log(args ...any) { r.Logf("%s", fmt.Sprint(args...)) }

func (r *recorder) Logf(f string, a ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logged = append(r.logged, fmt.Sprintf(f, a...))
}

func (r *recorder) Fatal(args ...any) {
	r.tell(fmt.Sprint(args...))
	runtime.Goexit()
}

func (r *recorder) Skipf(string, ...any) {
	r.skipped = true
	runtime.Goexit()
}

// dropped is the plan under which the copier's first attempt fails.
const dropped = "drop-request@create configmaps a-copy#1"

func quick(t testing.TB, plans ...string) controllertest.Options {
	return controllertest.Options{
		Config: testserver.Config(t), KeepNamespaces: true, Plans: plans, Parallel: 8, Confirm: -1,
		ConvergeTimeout: 10 * time.Second, StopTimeout: 5 * time.Second,
	}
}

func run(t *testing.T, s controllertest.Scenario, o controllertest.Options) *controllertest.Report {
	t.Helper()
	report, err := controllertest.Run(t.Context(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

type queueOf int

func (q queueOf) Len() int { return int(q) }

// A follower is a controller that calls reconcile for each event of the ConfigMap a,
// and again some time after an error.
type follower struct {
	reconcile func(ctx context.Context, f *following, a *corev1.ConfigMap) error
	queue     func(env *controllertest.Env) workqueue.TypedRateLimitingInterface[string] // nil means a queue that the explorer does not know
	retry     time.Duration                                                              // 0 means 20ms
}

// A following is a follower at work.
type following struct {
	kube      kubernetes.Interface
	env       *controllertest.Env
	namespace string
}

func newClientgoQueue(*controllertest.Env) workqueue.TypedRateLimitingInterface[string] {
	return workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
}

func (f *follower) start(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	newQueue := f.queue
	if newQueue == nil {
		newQueue = newClientgoQueue
	}
	work := newQueue(env)
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(env.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			if o.ResourceVersion == "0" {
				o.ResourceVersion = ""
			}
		}))
	informer := factory.Core().V1().ConfigMaps()
	add := func(obj any) {
		if key, err := cache.DeletionHandlingObjectToName(obj); err == nil && key.Name == "a" {
			work.Add("a")
		}
	}
	if _, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) }, DeleteFunc: add,
	}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer factory.Shutdown()
	defer cancel()
	defer work.ShutDown()
	factory.StartWithContext(ctx)
	stop := context.AfterFunc(ctx, work.ShutDown)
	defer stop()
	if !cache.WaitForCacheSync(ctx.Done(), informer.Informer().HasSynced) {
		return nil
	}
	c := &following{kube: kube, env: env, namespace: env.Namespace}
	for {
		key, shutdown := work.Get()
		if shutdown {
			return nil
		}
		a, err := informer.Lister().ConfigMaps(env.Namespace).Get(key)
		if err == nil {
			err = f.reconcile(ctx, c, a.DeepCopy())
		}
		if err != nil && !apierrors.IsNotFound(err) {
			work.AddAfter(key, max(f.retry, 20*time.Millisecond))
		}
		work.Done(key)
	}
}

func (f *follower) scenario() controllertest.Scenario {
	return controllertest.Scenario{
		Name: "follower", Start: f.start,
		Script:    []controllertest.Step{{Name: "create a", Do: createsA}},
		Converged: func(*controllertest.State) error { return nil },
	}
}

// annotate stores an annotation in a by an update.
func (f *following) annotate(ctx context.Context, a *corev1.ConfigMap, key, value string) error {
	if a.Annotations[key] == value {
		return nil
	}
	metav1.SetMetaDataAnnotation(&a.ObjectMeta, key, value)
	_, err := f.kube.CoreV1().ConfigMaps(f.namespace).Update(ctx, a, metav1.UpdateOptions{})
	return err
}

// copyAndNote makes the ConfigMap b for a, and notes that in a.
func copyAndNote(ctx context.Context, f *following, a *corev1.ConfigMap) error {
	b := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "a", UID: a.UID}}}}
	if _, err := f.kube.CoreV1().ConfigMaps(f.namespace).Create(ctx, b, metav1.CreateOptions{}); ignoreExists(err) != nil {
		return err
	}
	return f.annotate(ctx, a, "noted", "yes")
}

func ignoreConflict(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}

func ignoreExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
