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
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

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
	settings  *operator.Reader[*corev1.ConfigMap]

	mu     sync.Mutex // guards the rest
	good   *Settings
	logged string // the version of the last settings that were not valid
}

func (p *painter) register(op *operator.Operator) {
	c := operator.Kind(op, widgetVersion.WithResource("widgets"), operator.Reconciler[*Widget]{Reconcile: p.reconcile})
	p.settings = operator.Reads(c, corev1.SchemeGroupVersion.WithResource("configmaps"), operator.Reading[*corev1.ConfigMap]{
		Single: true, Names: []string{"widgets-settings"}, // one watch, and no right to list others
	})
}

func (p *painter) reconcile(ctx context.Context, w *Widget) (reconcile.Result, error) {
	settings, err := p.current(ctx)
	w.Status.Color = settings.Color
	return reconcile.Result{}, err
}

// current returns the settings, or the last good ones. A change of the ConfigMap runs all keys that called it.
func (p *painter) current(ctx context.Context) (Settings, error) {
	cm, err := p.settings.Get(ctx, p.namespace, "widgets-settings")
	var settings Settings
	if err == nil {
		settings, err = parseSettings(cm.Data)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		p.good = &settings
		return settings, nil
	case p.good == nil:
		return Settings{}, fmt.Errorf("settings %s/widgets-settings: %w", p.namespace, err)
	}
	if cm != nil && p.logged != cm.ResourceVersion {
		p.logged = cm.ResourceVersion
		klog.FromContext(ctx).Error(err, "Settings are not valid, so the last good ones are used", "resourceVersion", p.logged)
	}
	return *p.good, nil
}

// testSettings: new settings change each Widget, and settings that are not valid change none, also of new
// Widgets.
func testSettings(t *testing.T) {
	namespace := testserver.Namespace(t)
	op, err := operator.New(testserver.Config(t), operator.Options{Name: "settings", Namespace: namespace})
	if err != nil {
		t.Fatal(err)
	}
	(&painter{namespace: namespace}).register(op)
	_, logs := start(t, op)
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
	create("one")
	configMaps := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().ConfigMaps(namespace)
	set := func(color string) {
		t.Helper()
		data := []byte(`{"data":{"color":"` + color + `"}}`)
		if _, err := configMaps.Patch(t.Context(), "widgets-settings", types.MergePatchType, data, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "widgets-settings"}, Data: map[string]string{"color": "green"}}
	if _, err := configMaps.Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, widgets, "one", is("green"))
	set("blue")
	await(t, widgets, "one", is("blue"))
	set("grean")
	create("two")
	await(t, widgets, "two", is("blue"))
	await(t, widgets, "one", is("blue"))
	create("three")
	await(t, widgets, "three", is("blue"))
	set("green")
	for _, name := range []string{"one", "two", "three"} {
		await(t, widgets, name, is("green"))
	}
	if lines := logs.Find("Settings are not valid, so the last good ones are used"); len(lines) != 1 {
		t.Errorf("the lines are %v, want one", lines)
	}
}
