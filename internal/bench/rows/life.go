package rows

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/controllerkit/controllerkit/internal/bench"
	"github.com/controllerkit/controllerkit/status"
)

// The rows about lives count the requests of a controller during the life of an object.
// A user creates a Widget. The controller stores a finalizer, creates a resource outside
// the cluster, a Deployment, a Service and two ConfigMaps, and writes the status. Then
// follow changes and resyncs that need no write. Then the user deletes the Widget, and
// the controller deletes the outside resource and removes the finalizer. The garbage
// collector deletes the children.

const (
	lives   = 16
	touches = 5 // by the user, of an annotation
	resyncs = 3
)

// Values that all contenders use.
const (
	lifeWorkers   = 4
	lifeFinalizer = "life.example.com/outside"
	touched       = "life.example.com/touched"
	childLabel    = "life.example.com/widget" // on all children
	lifeChildren  = 4
)

// lifeQuiet is the time without a reconcile after which a phase has ended.
const lifeQuiet = 200 * time.Millisecond

// Figures of the row. Requests are reads and writes without watches.
const (
	lifeRequests = "requests"
	lifeCreation = "requests, creation"
	lifeSteady   = "requests, steady"
	lifeDeletion = "requests, deletion"
	lifeFailed   = "requests, failed" // requests that returned an error, in any phase
)

// Rivals that skip unnecessary writes.
const (
	guardedStatus = "controller-runtime, status guarded"
	allGuarded    = "controller-runtime, all guarded"
)

func init() {
	bench.Register(bench.Row{
		Name: "life/requests",
		About: "Requests to a real API server during the life of an object with a finalizer, 4 children (Deployment, Service, 2 ConfigMaps) and a status. They are " +
			"counted in the transport, without watches, initial lists and the user's own requests. A life consists of the creation, then 5 changes of an annotation " +
			"and 3 resyncs that need no write, then the deletion, which leaves the children to the garbage collector. controller-runtime is used as in its book: " +
			"AddFinalizer and Update, CreateOrUpdate, and Status().Update at the end of each reconcile. The second rival writes the status only if it differs. The " +
			"third also preserves defaulted fields in each CreateOrUpdate and enables the experimental EnableReadYourWritesConsistency. Four lives begin and end at " +
			"a time, with 4 workers.",
		Op: "life",
		Goals: []bench.Goal{
			{Figure: lifeRequests, Rival: controllerRuntime, AtMost: 0.6},
			{Figure: lifeSteady, AtMost: 0},
		},
		Pairs: func(ctx context.Context) ([]bench.Pair, func(), error) {
			w, err := openLifeWorld(ctx)
			if err != nil {
				return nil, nil, err
			}
			contender := func(name, module string) bench.Contender {
				return bench.Contender{Name: name, Module: module, Run: func(ctx context.Context, m *bench.Meter) (int, error) {
					n, quiet := m.N(lives), lifeQuiet
					if m.Quick {
						quiet /= 10
					}
					run, err := w.live(logr.NewContext(ctx, logr.Discard()), lifeKinds()[name], n, quiet)
					if err != nil {
						return 0, err
					}
					for figure, count := range run.counts {
						m.Count(figure, float64(count))
					}
					return n, nil
				}}
			}
			var pairs []bench.Pair
			for _, rival := range []string{controllerRuntime, guardedStatus, allGuarded} {
				pairs = append(pairs, bench.Pair{
					Ours:   contender("controllerkit", ""),
					Theirs: contender(rival, "sigs.k8s.io/controller-runtime"),
				})
			}
			return pairs, w.stop, nil
		},
	})
}

// lifeKinds returns the contenders of the rows about lives by name.
func lifeKinds() map[string]lifeKind {
	return map[string]lifeKind{
		"controllerkit":   liveOurs,
		byHand:            liveByHand,
		controllerRuntime: rivalLife{}.live,
		guardedStatus:     rivalLife{guardStatus: true}.live,
		allGuarded:        rivalLife{guardStatus: true, guardChildren: true, readYourWrites: true}.live,
	}
}

// A lifeKind starts a controller and waits until its caches have synced.
type lifeKind func(ctx context.Context, s lifeSetting) (*lifeController, error)

// A lifeSetting is the configuration of a controller.
type lifeSetting struct {
	config    *rest.Config
	namespace string
	outside   *outside

	// seen is called after each reconcile with its error and with the Widget that was
	// in the cache before it. The Widget is nil if the cache had none.
	seen func(key types.NamespacedName, before *widget, err error)
}

type lifeController struct {
	resync func(types.NamespacedName) // adds the key to the queue
	stop   func() error               // stops the controller and waits
}

// outside is a fake service outside the cluster, with one resource for each UID.
type outside struct {
	mu     sync.Mutex // guards the fields below
	things map[types.UID]bool
	calls  int                  // of make
	fail   func(call int) error // if it is not nil, make fails
}

func (o *outside) make(uid types.UID) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls++
	if o.fail != nil {
		return o.fail(o.calls)
	}
	o.things[uid] = true
	return nil
}

// failWith makes the service fail. nil ends the outage.
func (o *outside) failWith(fail func(call int) error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fail = fail
}

func (o *outside) made() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.calls
}

func (o *outside) remove(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.things, uid)
}

func (o *outside) len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.things)
}

// A lifeWorld is the arena of a row with the user's clients.
type lifeWorld struct {
	arena   *arena
	widgets *widgetClient
	kube    kubernetes.Interface
	stop    func()
}

func openLifeWorld(ctx context.Context) (*lifeWorld, error) {
	a, err := openArena(ctx)
	if err != nil {
		return nil, err
	}
	ctrl.SetLogger(logr.Discard()) // otherwise controller-runtime prints a warning
	w := &lifeWorld{arena: a}
	uninstall, err := installWidgets(ctx, a.config)
	if err != nil {
		a.stop()
		return nil, err
	}
	w.stop = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if err := uninstall(ctx); err != nil {
			logr.FromContextOrDiscard(ctx).Error(err, "Remove the CustomResourceDefinition")
		}
		a.stop()
	}
	if w.widgets, err = newWidgetClient(a.config, a.namespace); err == nil {
		w.kube, err = kubernetes.NewForConfig(a.config)
	}
	if err != nil {
		w.stop()
		return nil, err
	}
	return w, nil
}

// A lifeRun is the result of several lives.
type lifeRun struct {
	counts map[string]int64 // by figure
	steady *lifeState       // at the end of the steady phase
}

// live runs n lives under one controller.
func (w *lifeWorld) live(ctx context.Context, kind lifeKind, n int, quiet time.Duration) (_ *lifeRun, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	p, err := w.open(ctx, kind, n, quiet)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.controller.stop()) }()
	run := &lifeRun{counts: map[string]int64{}}
	for _, phase := range []struct {
		figure string
		play   func(context.Context) error
		gone   bool // whether no object is left at its end
	}{
		{figure: lifeCreation, play: p.create},
		{figure: lifeSteady, play: p.disturb},
		{figure: lifeDeletion, play: p.delete, gone: true},
	} {
		requests, refused := p.counts.requests.Load(), p.counts.refused.Load()
		err := phase.play(ctx)
		if err == nil {
			err = p.quiet(ctx)
		}
		if err == nil && phase.gone {
			err = p.checkGone(ctx)
		} else if err == nil {
			run.steady, err = p.checkThere(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", phase.figure, err)
		}
		requests, refused = p.counts.requests.Load()-requests, p.counts.refused.Load()-refused
		run.counts[phase.figure] = requests
		run.counts[lifeRequests] += requests
		run.counts[lifeFailed] += refused
	}
	return run, nil
}

// open starts a controller for n Widgets, which do not exist yet.
func (w *lifeWorld) open(ctx context.Context, kind lifeKind, n int, quiet time.Duration) (_ *lifePlay, err error) {
	p := &lifePlay{
		world: w, quietFor: quiet,
		outside: &outside{things: map[types.UID]bool{}},
		counts:  &lifeCounts{},
		sights:  make(chan lifeSight, 1<<16), // never full: a run has some thousand
		last:    map[types.NamespacedName]lifeSight{},
	}
	config := rest.CopyConfig(w.arena.config)
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return lifeCounter{RoundTripper: rt, counts: p.counts} })
	for i := range n {
		p.keys = append(p.keys, types.NamespacedName{Namespace: w.arena.namespace, Name: fmt.Sprintf("widget-%d", i)})
	}
	p.controller, err = kind(ctx, lifeSetting{
		config: config, namespace: w.arena.namespace, outside: p.outside,
		seen: func(key types.NamespacedName, before *widget, err error) {
			p.counts.reconciles.Add(1)
			p.sights <- lifeSight{key: key, widget: before, err: err}
		},
	})
	return p, err
}

type lifeCounts struct{ reconciles, requests, refused, statuses atomic.Int64 }

// lifeCounter counts requests in the transport.
type lifeCounter struct {
	http.RoundTripper
	counts *lifeCounts
}

func (c lifeCounter) RoundTrip(r *http.Request) (*http.Response, error) {
	if v := r.URL.Query().Get("watch"); v == "true" || v == "1" {
		return c.RoundTripper.RoundTrip(r)
	}
	c.counts.requests.Add(1)
	if strings.HasSuffix(r.URL.Path, "/status") {
		c.counts.statuses.Add(1)
	}
	response, err := c.RoundTripper.RoundTrip(r)
	if err != nil || response.StatusCode >= 400 {
		c.counts.refused.Add(1)
	}
	return response, err
}

// A lifePlay is one run: the user's actions and the observed reconciles.
type lifePlay struct {
	world      *lifeWorld
	controller *lifeController
	outside    *outside
	counts     *lifeCounts
	keys       []types.NamespacedName
	sights     chan lifeSight
	quietFor   time.Duration

	// Of each key. Used by the goroutine of live only.
	last map[types.NamespacedName]lifeSight
}

// A lifeSight is one reconcile.
type lifeSight struct {
	key    types.NamespacedName
	widget *widget // nil if the cache had none
	err    error
}

// each calls f for all Widgets, as many at a time as there are workers. After each group
// it waits with until.
func (p *lifePlay) each(ctx context.Context, f func(ctx context.Context, key types.NamespacedName) error, ok func(*widget) bool) error {
	for keys := range slices.Chunk(p.keys, lifeWorkers) {
		err := together(ctx, len(keys), func(ctx context.Context, i int) error { return f(ctx, keys[i]) })
		if err == nil {
			err = p.until(ctx, keys, ok)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *lifePlay) create(ctx context.Context) error {
	return p.each(ctx, p.world.create, func(w *widget) bool {
		return w != nil && meta.IsStatusConditionTrue(w.Status.Conditions, "Ready")
	})
}

// create creates a Widget.
func (w *lifeWorld) create(ctx context.Context, key types.NamespacedName) error {
	_, err := w.widgets.Create(ctx, &widget{
		TypeMeta:   metav1.TypeMeta{APIVersion: widgetVersion().String(), Kind: widgetKind},
		ObjectMeta: metav1.ObjectMeta{Name: key.Name},
		Spec:       widgetSpec{Replicas: 2, Text: "text of " + key.Name},
	}, metav1.CreateOptions{})
	return err
}

// touch changes the annotation of a Widget.
func (w *lifeWorld) touch(ctx context.Context, key types.NamespacedName, value string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, touched, value)
	_, err := w.widgets.Patch(ctx, key.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// disturb makes changes and resyncs that need no write of the controller.
func (p *lifePlay) disturb(ctx context.Context) error {
	for i := range touches {
		value := fmt.Sprint(i)
		err := p.each(ctx, func(ctx context.Context, key types.NamespacedName) error {
			return p.world.touch(ctx, key, value)
		}, func(w *widget) bool { return w != nil && w.Annotations[touched] == value })
		if err != nil {
			return err
		}
	}
	if err := p.quiet(ctx); err != nil {
		return err
	}
	for range resyncs {
		err := p.each(ctx, func(_ context.Context, key types.NamespacedName) error {
			p.controller.resync(key)
			return nil
		}, func(*widget) bool { return true })
		if err != nil {
			return err
		}
	}
	return nil
}

// delete deletes the Widgets and waits until they and their children are gone.
func (p *lifePlay) delete(ctx context.Context) error {
	s, err := p.world.list(ctx)
	if err != nil {
		return err
	}
	err = p.each(ctx, func(ctx context.Context, key types.NamespacedName) error {
		return p.world.widgets.Delete(ctx, key.Name, metav1.DeleteOptions{})
	}, func(w *widget) bool { return w == nil })
	if err != nil {
		return err
	}
	return p.world.collected(ctx, s)
}

func (p *lifePlay) checkGone(ctx context.Context) error {
	s, err := p.world.list(ctx)
	if err != nil {
		return err
	}
	if left := len(s.Widgets) + len(s.children()) + p.outside.len(); left > 0 {
		return fmt.Errorf("%d Widgets, children and outside resources are left", left)
	}
	return nil
}

// until waits until each key had a reconcile without an error for a Widget that
// satisfies ok.
func (p *lifePlay) until(ctx context.Context, keys []types.NamespacedName, ok func(*widget) bool) error {
	waiting := map[types.NamespacedName]bool{}
	for _, key := range keys {
		waiting[key] = true
	}
	for len(waiting) > 0 {
		select {
		case s := <-p.sights:
			p.last[s.key] = s
			if s.err == nil && ok(s.widget) {
				delete(waiting, s.key)
			}
		case <-ctx.Done():
			return fmt.Errorf("%d Widgets did not reach the wanted state: %w", len(waiting), errors.Join(context.Cause(ctx), p.failures()))
		}
	}
	return nil
}

// quiet waits until no reconcile runs for a while and no failure is left to retry.
func (p *lifePlay) quiet(ctx context.Context) error {
	timer := time.NewTimer(p.quietFor)
	defer timer.Stop()
	for {
		select {
		case s := <-p.sights:
			p.last[s.key] = s
			timer.Reset(p.quietFor)
		case <-timer.C:
			if p.failures() == nil {
				return nil
			}
			timer.Reset(p.quietFor)
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), p.failures())
		}
	}
}

func (p *lifePlay) failures() error {
	for key, s := range p.last {
		if s.err != nil {
			return fmt.Errorf("%s: %w", key, s.err)
		}
	}
	return nil
}

// A lifeState contains all objects of a run.
type lifeState struct {
	Widgets     []widget
	Deployments []appsv1.Deployment
	Services    []corev1.Service
	ConfigMaps  []corev1.ConfigMap

	versions [3]string // of the lists of children
}

// children returns the children of all owners.
func (s *lifeState) children() (children []metav1.Object) {
	for i := range s.Deployments {
		children = append(children, &s.Deployments[i])
	}
	for i := range s.Services {
		children = append(children, &s.Services[i])
	}
	for i := range s.ConfigMaps {
		children = append(children, &s.ConfigMaps[i])
	}
	return children
}

func (w *lifeWorld) list(ctx context.Context) (*lifeState, error) {
	widgets, err := w.widgets.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	options := metav1.ListOptions{LabelSelector: childLabel} // in a complete cluster each namespace has another ConfigMap
	deployments, err := w.kube.AppsV1().Deployments(w.arena.namespace).List(ctx, options)
	if err != nil {
		return nil, err
	}
	services, err := w.kube.CoreV1().Services(w.arena.namespace).List(ctx, options)
	if err != nil {
		return nil, err
	}
	configMaps, err := w.kube.CoreV1().ConfigMaps(w.arena.namespace).List(ctx, options)
	if err != nil {
		return nil, err
	}
	return &lifeState{
		Widgets: widgets.Items, Deployments: deployments.Items, Services: services.Items, ConfigMaps: configMaps.Items,
		versions: [3]string{deployments.ResourceVersion, services.ResourceVersion, configMaps.ResourceVersion},
	}, nil
}

// checkThere returns the state, or an error if it does not match the Widgets.
func (p *lifePlay) checkThere(ctx context.Context) (*lifeState, error) {
	s, err := p.world.list(ctx)
	if err != nil {
		return nil, err
	}
	n := len(p.keys)
	if len(s.Widgets) != n || len(s.children()) != n*lifeChildren || p.outside.len() != n {
		return nil, fmt.Errorf("there are %d Widgets, %d children and %d outside resources, want those of %d Widgets", len(s.Widgets), len(s.children()), p.outside.len(), n)
	}
	children := map[types.UID]map[string]metav1.Object{}
	for _, child := range s.children() {
		owner := metav1.GetControllerOf(child)
		if owner == nil {
			return nil, fmt.Errorf("%T %s has no controller", child, child.GetName())
		}
		if children[owner.UID] == nil {
			children[owner.UID] = map[string]metav1.Object{}
		}
		children[owner.UID][fmt.Sprintf("%T %s", child, child.GetName())] = child
	}
	for i := range s.Widgets {
		owner := &s.Widgets[i]
		ready := meta.FindStatusCondition(owner.Status.Conditions, "Ready")
		if ready == nil || ready.Status != metav1.ConditionTrue || ready.ObservedGeneration != owner.Generation || owner.Status.Children != lifeChildren {
			return nil, fmt.Errorf("%s has the status %+v", owner.Name, owner.Status)
		}
		for _, want := range wantedChildren(owner) {
			name := fmt.Sprintf("%T %s", want, want.GetName())
			got := children[owner.UID][name]
			if got == nil || !sameChild(want, got) {
				return nil, fmt.Errorf("%s is %+v, want %+v", name, got, want)
			}
		}
	}
	return s, nil
}

// sameChild reports whether got has all fields of want. It ignores fields that only got
// has, because the server sets defaults.
func sameChild(want, got metav1.Object) bool {
	same := maps.Equal(want.GetLabels(), got.GetLabels())
	switch want := want.(type) {
	case *appsv1.Deployment:
		return same && equality.Semantic.DeepDerivative(want.Spec, got.(*appsv1.Deployment).Spec)
	case *corev1.Service:
		return same && equality.Semantic.DeepDerivative(want.Spec, got.(*corev1.Service).Spec)
	case *corev1.ConfigMap:
		return same && maps.Equal(want.Data, got.(*corev1.ConfigMap).Data)
	}
	return false
}

// collected waits until the garbage collector has deleted the children of s.
func (w *lifeWorld) collected(ctx context.Context, s *lifeState) error {
	for _, kind := range []struct {
		watch   func(context.Context, metav1.ListOptions) (watch.Interface, error)
		version string
		left    int
	}{
		{w.kube.AppsV1().Deployments(w.arena.namespace).Watch, s.versions[0], len(s.Deployments)},
		{w.kube.CoreV1().Services(w.arena.namespace).Watch, s.versions[1], len(s.Services)},
		{w.kube.CoreV1().ConfigMaps(w.arena.namespace).Watch, s.versions[2], len(s.ConfigMaps)},
	} {
		events, err := kind.watch(ctx, metav1.ListOptions{LabelSelector: childLabel, ResourceVersion: kind.version})
		if err != nil {
			return err
		}
		for event := range events.ResultChan() {
			if event.Type == watch.Deleted {
				kind.left--
			}
			if kind.left <= 0 {
				break
			}
		}
		events.Stop()
		if kind.left > 0 {
			return fmt.Errorf("the garbage collector has not deleted %d children: %w", kind.left, context.Cause(ctx))
		}
	}
	return nil
}

// wantedChildren returns the children of a Widget without the server's defaults.
func wantedChildren(w *widget) []metav1.Object {
	return []metav1.Object{
		wantedDeployment(w),
		wantedService(w),
		wantedConfigMap(w, "first"),
		wantedConfigMap(w, "second"),
	}
}

// lifeCondition returns the condition of a reconcile that ended with err.
func lifeCondition(err error) metav1.Condition {
	if err != nil {
		return status.False("Ready", "OutsideFailed", err.Error())
	}
	return status.True("Ready", "Applied", "all children are there")
}

func childMeta(w *widget, suffix string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name + suffix, Labels: childLabels(w)}
}

func childLabels(w *widget) map[string]string { return map[string]string{childLabel: w.Name} }

func wantedDeployment(w *widget) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: childMeta(w, ""),
		Spec: appsv1.DeploymentSpec{
			Replicas: new(w.Spec.Replicas),
			Selector: &metav1.LabelSelector{MatchLabels: childLabels(w)},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: childLabels(w)},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name:  "main",
					Image: "example.com/image:1",
					Args:  []string{"--text=" + w.Spec.Text},
					Ports: []corev1.ContainerPort{{ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
				}}},
			},
		},
	}
}

func wantedService(w *widget) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: childMeta(w, ""),
		Spec: corev1.ServiceSpec{
			Selector: childLabels(w),
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
		},
	}
}

func wantedConfigMap(w *widget, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: childMeta(w, "-"+name),
		Data:       map[string]string{"name": name, "text": w.Spec.Text},
	}
}
