package operator_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/ssa"
)

// TestServerStrayWrite: if a call writes an object of an informer by a client that is not of Config,
// one line names the cure. A client of Config, and one of a Gate of the program, log none.
func TestServerStrayWrite(t *testing.T) {
	t.Parallel()
	const manager ssa.FieldManager = "example.com/stray"
	held := func(ctx context.Context, c kubernetes.Interface, cm *corev1.ConfigMap) error {
		_, _, err := finalizer.Ensure(ctx, c.CoreV1().ConfigMaps(cm.Namespace), cm.DeepCopy(), "example.com/stray",
			func(context.Context, finalizer.Held[*corev1.ConfigMap]) error { return nil })
		return err
	}
	applied := func(ctx context.Context, c kubernetes.Interface, cm *corev1.ConfigMap) error {
		_, err := ssa.Apply(ctx, manager, c.CoreV1().ConfigMaps(cm.Namespace).Apply, applycorev1.ConfigMap("made", cm.Namespace).WithData(map[string]string{"a": "b"}))
		return err
	}
	patched := func(ctx context.Context, c kubernetes.Interface, cm *corev1.ConfigMap) error {
		_, err := c.CoreV1().ConfigMaps(cm.Namespace).Patch(ctx, "a", types.MergePatchType, []byte(`{"data":{"p":"q"}}`), metav1.PatchOptions{})
		return err
	}
	for _, tt := range []struct {
		name   string
		raw    bool // the client is of the configuration that New got
		gate   bool // the loop has a Gate of the program, which records the writes
		write  func(ctx context.Context, c kubernetes.Interface, cm *corev1.ConfigMap) error
		logged string // the name of the object
	}{
		{name: "an old object", raw: true, write: held, logged: "a"},
		{name: "a new object", raw: true, write: applied, logged: "made"},
		{name: "Config, an old object", write: held},
		{name: "Config, a new object", write: applied},
		{name: "a Gate of the program", raw: true, gate: true, write: held},
		{name: "without a package of the library", raw: true, write: patched, logged: "a"},
		{name: "Config, without a package of the library", write: patched},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			config, namespace := rest.CopyConfig(testserver.Config(t)), testserver.Namespace(t)
			op, err := operator.New(config, operator.Options{Name: "stray"})
			if err != nil {
				t.Fatal(err)
			}
			factory := informers.NewSharedInformerFactoryWithOptions(kubernetes.NewForConfigOrDie(op.Config), 0, informers.WithNamespace(namespace))
			configMaps := factory.Core().V1().ConfigMaps()
			var client kubernetes.Interface
			ended := make(chan struct{}, 100)
			c := op.Controller("stray", func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
				cm, err := configMaps.Lister().ConfigMaps(key.Namespace).Get(key.Name)
				if apierrors.IsNotFound(err) || err == nil && key.Name != "a" && key.Name != "b" {
					return reconcile.Result{}, nil
				}
				if err == nil {
					err = tt.write(ctx, client, cm)
				}
				if err == nil {
					ended <- struct{}{}
				}
				return reconcile.Result{}, err
			})
			operator.For(c, corev1.Resource("configmaps"), configMaps)
			op.Writes(corev1.Resource("configmaps"), "patch", "create")
			if tt.gate {
				writes := consistency.New(consistency.Config{})
				if err := writes.AddInformer(corev1.Resource("configmaps"), configMaps.Informer()); err != nil {
					t.Fatal(err)
				}
				config.Wrap(writes.Wrap)
				c.Loop.Gate = writes
			}
			client = kubernetes.NewForConfigOrDie(op.Config)
			if tt.raw {
				client = kubernetes.NewForConfigOrDie(config)
			}
			logs := testlog.New()
			seen := make(chan struct{}, 1)
			const line = "A write was not recorded, so the next call may not see it: make the client from Operator.Config, and give it the context of the call"
			logs.Hook = func(message string) {
				if message == line {
					select {
					case seen <- struct{}{}:
					default:
					}
				}
			}
			start(t, op, logs)
			raw := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().ConfigMaps(namespace)
			for _, name := range []string{"a", "b"} {
				create(t, testserver.Config(t), namespace, name)
				receive(t, ended)
			}
			if tt.logged != "" {
				// The event of another object brings the call that sees the new one in the cache.
				for done, end := false, time.Now().Add(30*time.Second); !done; {
					if time.Now().After(end) {
						t.Fatal("the write is not logged")
					}
					if _, err := raw.Patch(t.Context(), "b", types.MergePatchType, []byte(`{"data":{"n":"`+string(uuid.NewUUID())+`"}}`), metav1.PatchOptions{}); err != nil {
						t.Fatal(err)
					}
					receive(t, ended)
					select {
					case <-seen:
						done = true
					default:
					}
				}
			}
			lines := logs.Find(line)
			switch {
			case tt.logged == "" && len(lines) > 0:
				t.Errorf("logged %v", lines)
			case tt.logged != "" && (len(lines) != 1 || lines[0].Values["name"] != tt.logged || lines[0].Values["controller"] != "stray" || lines[0].Values["type"] != "configmaps"):
				t.Errorf("logged %v, want one line about %s", lines, tt.logged)
			}
		})
	}
}
