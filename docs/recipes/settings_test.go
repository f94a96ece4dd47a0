package recipes_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// Settings are those of the ConfigMap widgets-settings.
type Settings struct {
	Color string
}

func parseSettings(data map[string]string) (Settings, error) {
	if color := data["color"]; color == "green" || color == "blue" {
		return Settings{Color: color}, nil
	}
	return Settings{}, fmt.Errorf("color is %q: use green or blue", data["color"])
}

// painter gives each Widget the color of the settings.
type painter struct {
	namespace string // of the settings

	// settings is a reader of operator.Reads, or a fake of a unit test.
	settings interface {
		Get(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	}

	mu     sync.Mutex // guards the rest
	good   *Settings
	logged string // the last error
}

func (p *painter) register(op *operator.Operator) *operator.Controller {
	c := operator.Kind(op, widgetVersion.WithResource("widgets"), operator.Reconciler[*Widget]{Reconcile: p.reconcile})
	p.settings = operator.Reads(c, corev1.SchemeGroupVersion.WithResource("configmaps"), operator.Reading[*corev1.ConfigMap]{
		Single: true, Names: []string{"widgets-settings"}, // one watch, and no right to list others
	})
	return c
}

func (p *painter) reconcile(ctx context.Context, w *Widget) (reconcile.Result, error) {
	settings, err := p.current(ctx)
	if err != nil {
		return reconcile.Result{}, err // before a change of the status, which would be written
	}
	w.Status.Color = settings.Color
	return reconcile.Result{}, nil
}

// current returns the settings, or the last good ones. A change of the ConfigMap runs all keys that called it.
func (p *painter) current(ctx context.Context) (Settings, error) {
	cm, err := p.settings.Get(ctx, p.namespace, "widgets-settings") // it can wait for the watch, so without the lock
	p.mu.Lock()
	defer p.mu.Unlock()
	var settings Settings
	if err == nil {
		settings, err = parseSettings(cm.Data)
	}
	switch {
	case err == nil:
		p.good, p.logged = &settings, ""
		return settings, nil
	case p.good == nil:
		return Settings{}, fmt.Errorf("settings %s/widgets-settings: %w", p.namespace, err)
	}
	if p.logged != err.Error() { // not once for each Widget
		p.logged = err.Error()
		klog.FromContext(ctx).Error(err, "Settings are not valid, so the last good ones are used")
	}
	return *p.good, nil
}

// testSettings: new settings change each Widget. Settings that are not valid or absent change none, also of new
// Widgets. A process that begins with them works after their correction.
func testSettings(t *testing.T) {
	namespace := testserver.Namespace(t)
	const message = "Settings are not valid, so the last good ones are used"
	process := func() (stop func(), logs testlog.Logs, failed chan struct{}) {
		t.Helper()
		op, err := operator.New(testserver.Config(t), operator.Options{Name: "settings", Namespace: namespace})
		if err != nil {
			t.Fatal(err)
		}
		c := (&painter{namespace: namespace}).register(op)
		failed = make(chan struct{}, 1000)
		c.Loop.Hook = func(ctx context.Context, _ types.NamespacedName) (context.Context, func(string, error)) {
			return ctx, func(_ string, err error) {
				if err != nil {
					failed <- struct{}{}
				}
			}
		}
		stop, logs = start(t, op)
		return stop, logs, failed
	}
	widgets := newWidgets(t, testserver.Config(t)).Namespace(namespace)
	create := func(name string) {
		t.Helper()
		if _, err := widgets.Create(t.Context(), &Widget{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	is := func(color string) func(*Widget) bool {
		return func(w *Widget) bool { return w.Status.Color == color && strings.HasPrefix(ready(w), "True") }
	}
	configMaps := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().ConfigMaps(namespace)
	set := func(color string) {
		t.Helper()
		config := applycorev1.ConfigMap("widgets-settings", namespace).WithData(map[string]string{"color": color})
		if _, err := configMaps.Apply(t.Context(), config, metav1.ApplyOptions{FieldManager: "test"}); err != nil {
			t.Fatal(err)
		}
	}

	stop, logs, _ := process()
	create("one")
	set("green")
	await(t, widgets, "one", is("green"))
	set("blue")
	await(t, widgets, "one", is("blue"))
	set("grean")
	create("two")
	await(t, widgets, "two", is("blue"))
	if err := configMaps.Delete(t.Context(), "widgets-settings", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	create("three")
	await(t, widgets, "three", is("blue"))
	await(t, widgets, "one", is("blue"))
	set("green")
	for _, name := range []string{"one", "two", "three"} {
		await(t, widgets, name, is("green"))
	}
	stop()
	// The calls can see one of the two states only.
	if lines := logs.Find(message); len(lines) < 1 || len(lines) > 2 {
		t.Errorf("the lines are %v, want one for each error", lines)
	}

	set("grean")
	_, _, failed := process()
	receive(t, failed)
	await(t, widgets, "one", is("green"))
	set("blue")
	await(t, widgets, "one", is("blue"))
}
