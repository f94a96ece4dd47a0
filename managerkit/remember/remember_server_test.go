package remember_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/managerkit/remember"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

const patience = time.Minute // for what takes milliseconds on an idle machine

func quiet(options manager.Options, namespace string) manager.Options {
	options.Logger = logr.Discard()
	options.Metrics = metricsserver.Options{BindAddress: "0"}
	options.Controller = config.Controller{SkipNameValidation: ptr.To(true)}
	if namespace != "" {
		options.Cache = cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}}
	}
	return options
}

// run runs f in the background. stop ends it and returns its error.
func run(t *testing.T, f func(context.Context) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var err error
	go func() { defer close(done); err = f(ctx) }()
	stop = func() error {
		cancel()
		await(t, done, "end")
		return err
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("the manager ended with %v", err)
		}
	})
	return stop
}

func await[T any](t *testing.T, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("no %s within %v", what, patience)
	}
	return v
}

func core(t *testing.T) typedcorev1.CoreV1Interface {
	t.Helper()
	return kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1()
}

// create creates a ConfigMap for each request.
func create(t *testing.T, namespace string, names ...string) {
	t.Helper()
	for _, name := range names {
		_, err := core(t).ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		must(t, err)
	}
}

// reader is a Reconciler of ConfigMaps that reads by the name of its request.
type reader struct {
	client.Client
	reads     *remember.Reader
	namespace string
	called    chan string
}

func (r *reader) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	in := client.InNamespace(r.namespace)
	var list corev1.SecretList
	var err error
	switch req.Name {
	case "labels":
		err = r.reads.List(ctx, &list, in, client.MatchingLabels{"app": "x"})
	case "index":
		err = r.reads.List(ctx, &list, in, client.MatchingFields{"type": "example.com/t"})
	default:
		list.Items = make([]corev1.Secret, 1)
		if err = r.reads.Get(ctx, types.NamespacedName{Namespace: r.namespace, Name: req.Name}, &list.Items[0]); apierrors.IsNotFound(err) {
			list.Items, err = nil, nil
		}
	}
	if err == nil && req.Name == "writer" {
		patch := fmt.Appendf(nil, `{"data":{"seen":"%d"}}`, len(list.Items))
		out := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: "out"}}
		err = r.Patch(ctx, out, client.RawPatch(types.MergePatchType, patch))
	}
	if err != nil {
		r.called <- fmt.Sprintf("%s: %v", req.Name, err)
		return ctrl.Result{}, err
	}
	r.called <- fmt.Sprintf("%s: %d", req.Name, len(list.Items))
	return ctrl.Result{}, nil
}

type completing = func(b *builder.Builder, r crreconcile.Reconciler) error

// add adds a controller of the ConfigMaps with these names to a manager.
func (r *reader) add(mgr ctrl.Manager, complete completing, names ...string) error {
	b := ctrl.NewControllerManagedBy(mgr).Named("remember").
		For(&corev1.ConfigMap{}, builder.WithPredicates(predicate.NewPredicateFuncs(func(obj client.Object) bool {
			return slices.Contains(names, obj.GetName())
		}))).
		WatchesRawSource(r.reads.Source())
	return complete(b, r.reads.Reconciler(r))
}

// TestServerReads: with each kind of workers, an event of a Secret runs exactly the requests whose last call has read
// it, or lists it now or no longer. A global predicate has no effect on the reads.
//
// Proves RR1, RR2 and RR3.
func TestServerReads(t *testing.T) {
	t.Parallel()
	names := []string{"secret", "labels", "index", "writer", "fence"}
	for _, tt := range []struct {
		name     string
		writes   bool
		complete func(*managerkit.Writes) completing
	}{
		{"plain", false, func(*managerkit.Writes) completing {
			return func(b *builder.Builder, r crreconcile.Reconciler) error {
				return b.WithEventFilter(predicate.GenerationChangedPredicate{}).Complete(r)
			}
		}},
		{"queue", false, func(*managerkit.Writes) completing {
			return func(b *builder.Builder, r crreconcile.Reconciler) error {
				return b.WithOptions(controller.Options{NewQueue: managerkit.NewQueue(queue.Config[ctrl.Request]{})}).Complete(r)
			}
		}},
		{"no priorities", false, func(*managerkit.Writes) completing {
			return func(b *builder.Builder, r crreconcile.Reconciler) error {
				return b.WithOptions(controller.Options{UsePriorityQueue: ptr.To(false)}).Complete(r)
			}
		}},
		{"Writes", true, func(w *managerkit.Writes) completing {
			return func(b *builder.Builder, r crreconcile.Reconciler) error { return b.Complete(w.Reconciler(r)) }
		}},
		{"Complete", true, func(w *managerkit.Writes) completing {
			return func(b *builder.Builder, r crreconcile.Reconciler) error {
				loop := &reconcile.Controller[ctrl.Request]{Name: "remember", Workers: 1, Gate: w.Gate()}
				return managerkit.Complete(b, r, loop, controller.Options{})
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			namespace := testserver.Namespace(t)
			cfg, options := rest.CopyConfig(testserver.Config(t)), quiet(manager.Options{}, namespace)
			var writes *managerkit.Writes
			if tt.writes {
				writes = managerkit.NewWrites(consistency.Config{})
				must(t, writes.Install(cfg, &options))
			}
			mgr, err := ctrl.NewManager(cfg, options)
			must(t, err)
			reads, err := remember.New(mgr, &corev1.Secret{})
			must(t, err)
			must(t, reads.IndexField(t.Context(), &corev1.Secret{}, "type", byType))
			r := &reader{Client: mgr.GetClient(), reads: reads, namespace: namespace, called: make(chan string, 1000)}
			must(t, r.add(mgr, tt.complete(writes), names...))
			create(t, namespace, append([]string{"out", "other"}, names...)...)
			stop := run(t, mgr.Start)
			for range names {
				await(t, r.called, "first call")
			}
			secrets := core(t).Secrets(namespace)
			_, err = secrets.Create(t.Context(), secret("", "fence"), metav1.CreateOptions{})
			must(t, err)
			// want holds that the events so far have run these calls: an event behind them runs fence.
			fences := 0
			want := func(what string, calls ...string) {
				t.Helper()
				fences++
				_, err := secrets.Patch(t.Context(), "fence", types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"n":"%d"}}}`, fences), metav1.PatchOptions{})
				must(t, err)
				var got []string
				for {
					call := await(t, r.called, "call of fence")
					if call == "fence: 1" {
						break
					}
					got = append(got, call)
				}
				slices.Sort(got)
				if !slices.Equal(got, calls) {
					t.Errorf("%s runs %q, want %q", what, got, calls)
				}
			}
			await(t, r.called, "call of the new fence")
			want("nothing")
			make := func(name, kind string, labels ...string) {
				t.Helper()
				s := secret("", name, labels...)
				s.Type = corev1.SecretType(kind)
				_, err := secrets.Create(t.Context(), s, metav1.CreateOptions{})
				must(t, err)
			}
			change := func(name, patch string) {
				t.Helper()
				_, err := secrets.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
				must(t, err)
			}
			make("secret", "Opaque")
			want("a Secret that appears", "secret: 1")
			change("secret", `{"data":{"a":"Yg=="}}`)
			want("its change", "secret: 1")
			change("secret", `{"metadata":{"labels":{"app":"x"}}}`)
			want("its label", "labels: 1", "secret: 1")
			change("secret", `{"metadata":{"labels":{"app":"y"}}}`)
			want("its other label", "labels: 0", "secret: 1")
			make("unrelated", "Opaque", "app=y")
			want("an unrelated Secret")
			make("typed", "example.com/t", "app=x")
			want("a type", "index: 1", "labels: 1")
			make("writer", "Opaque")
			if got := await(t, r.called, "call of writer"); got != "writer: 1" { // Writes may delay it behind fence
				t.Errorf("what a call that writes has read runs %q", got)
			}
			want("its write")
			must(t, secrets.Delete(t.Context(), "typed", metav1.DeleteOptions{}))
			want("the end of the type", "index: 0", "labels: 0")
			must(t, secrets.Delete(t.Context(), "secret", metav1.DeleteOptions{}))
			want("the deletion", "secret: 0")
			must(t, stop())
		})
	}
}

// TestServerStandby: with Complete, the informers of a standby's reads run and its queue is empty. When it leads, its
// calls read and are run by events.
func TestServerStandby(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	names := []string{"secret"}
	replica := func() (r *reader, keys *queue.Queue[ctrl.Request], informers chan string, stop func() error) {
		options := quiet(manager.Options{}, namespace)
		informers = make(chan string, 1000)
		options.Cache.NewInformer = func(lw toolscache.ListerWatcher, obj k8sruntime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
			informers <- fmt.Sprintf("%T", obj)
			return toolscache.NewSharedIndexInformer(lw, obj, resync, indexers)
		}
		must(t, managerkit.Elect(&options, elector(t, namespace)))
		mgr, err := ctrl.NewManager(testserver.Config(t), options)
		must(t, err)
		reads, err := remember.New(mgr, &corev1.Secret{})
		must(t, err)
		r = &reader{Client: mgr.GetClient(), reads: reads, namespace: namespace, called: make(chan string, 1000)}
		keys = queue.New(queue.Config[ctrl.Request]{})
		must(t, r.add(mgr, func(b *builder.Builder, r crreconcile.Reconciler) error {
			return managerkit.Complete(b, r, &reconcile.Controller[ctrl.Request]{Name: "remember", Workers: 1, Queue: keys}, controller.Options{})
		}, names...))
		return r, keys, informers, run(t, mgr.Start)
	}
	create(t, namespace, names...)
	first, _, _, stop := replica()
	await(t, first.called, "call of the first")
	second, keys, informers, _ := replica()
	for await(t, informers, "informer of the standby") != "*v1.Secret" {
	}
	secrets := core(t).Secrets(namespace)
	_, err := secrets.Create(t.Context(), secret("", "secret"), metav1.CreateOptions{})
	must(t, err)
	if got := await(t, first.called, "call of the first"); got != "secret: 1" {
		t.Errorf("the first runs %q", got)
	}
	if pending := keys.Pending(); len(pending) > 0 || len(second.called) > 0 {
		t.Errorf("the standby has %v in its queue and %d calls", pending, len(second.called))
	}
	must(t, stop())
	if got := await(t, second.called, "call of the second"); got != "secret: 1" {
		t.Errorf("the second runs %q", got)
	}
	must(t, secrets.Delete(t.Context(), "secret", metav1.DeleteOptions{}))
	if got := await(t, second.called, "call of the second"); got != "secret: 0" {
		t.Errorf("the second runs %q", got)
	}
}

func elector(t *testing.T, namespace string) *leader.Elector {
	return &leader.Elector{
		Leases: kubernetes.NewForConfigOrDie(testserver.Config(t)).CoordinationV1().Leases(namespace), Namespace: namespace, Name: "election",
		LeaseDuration: 10 * time.Minute, RenewDeadline: 8 * time.Minute, RetryPeriod: 4 * time.Minute,
	}
}

// TestServerTerms: each term of a manager has a Reader, with the index of a shared cache. Nothing holds that of
// an earlier term.
func TestServerTerms(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	names := []string{"secret", "index"}
	create(t, namespace, names...)
	shared, err := cluster.New(testserver.Config(t), func(o *cluster.Options) {
		o.Logger = logr.Discard()
		o.Cache = cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}}
	})
	must(t, err)
	must(t, shared.GetFieldIndexer().IndexField(t.Context(), &corev1.Secret{}, "type", byType))
	run(t, shared.Start)
	called, freed := make(chan string, 1000), make(chan int, 10)
	terms := 0
	stop := run(t, func(ctx context.Context) error {
		return managerkit.Run(ctx, elector(t, namespace), func(options manager.Options) (manager.Manager, error) {
			options = quiet(options, "")
			if err := managerkit.Share(&options, shared); err != nil {
				return nil, err
			}
			mgr, err := ctrl.NewManager(testserver.Config(t), options)
			if err != nil {
				return nil, err
			}
			reads, err := remember.New(mgr, &corev1.Secret{})
			if err != nil {
				return nil, err
			}
			terms++
			runtime.AddCleanup(reads, func(term int) { freed <- term }, terms)
			if err := reads.Indexed(&corev1.Secret{}, "type", byType); err != nil {
				return nil, err
			}
			r := &reader{Client: mgr.GetClient(), reads: reads, namespace: namespace, called: called}
			return mgr, r.add(mgr, func(b *builder.Builder, r crreconcile.Reconciler) error { return b.Complete(r) }, names...)
		})
	})
	leases := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoordinationV1().Leases(namespace)
	secrets := core(t).Secrets(namespace)
	for term := range 3 {
		for range names {
			await(t, called, "first call of the term")
		}
		s := secret("", "secret")
		s.Type = "example.com/t"
		_, err := secrets.Create(t.Context(), s, metav1.CreateOptions{})
		must(t, err)
		got := []string{await(t, called, "call"), await(t, called, "call")}
		slices.Sort(got)
		if !slices.Equal(got, []string{"index: 1", "secret: 1"}) {
			t.Errorf("term %d runs %q", term, got)
		}
		must(t, secrets.Delete(t.Context(), "secret", metav1.DeleteOptions{}))
		_, _ = await(t, called, "call"), await(t, called, "call")
		if term < 2 {
			patch := []byte(`{"spec":{"holderIdentity":"","leaseDurationSeconds":1}}`)
			_, err = leases.Patch(t.Context(), "election", types.MergePatchType, patch, metav1.PatchOptions{})
			must(t, err)
		}
	}
	must(t, stop())
	for range terms {
		for deadline := time.Now().Add(patience); len(freed) == 0; runtime.GC() { // cleanups run soon after a collection
			if time.Now().After(deadline) {
				t.Fatal("a Reader of an ended term is held")
			}
		}
		<-freed
	}
}

// TestServerTwice: a Reader whose Source is in two controllers ends the manager with an error that names the cure.
func TestServerTwice(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	mgr, err := ctrl.NewManager(testserver.Config(t), quiet(manager.Options{}, namespace))
	must(t, err)
	reads, err := remember.New(mgr, &corev1.Secret{})
	must(t, err)
	for _, name := range []string{"a", "b"} {
		must(t, ctrl.NewControllerManagedBy(mgr).Named(name).For(&corev1.ConfigMap{}).WatchesRawSource(reads.Source()).
			Complete(reads.Reconciler(crreconcile.Func(func(context.Context, ctrl.Request) (ctrl.Result, error) { return ctrl.Result{}, nil }))))
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("the manager does not end"))
	defer cancel()
	if err := mgr.Start(ctx); err == nil || context.Cause(ctx) != nil {
		t.Errorf("Start() = %v, %v, want an error", err, context.Cause(ctx))
	} else {
		t.Log(err)
	}
}
