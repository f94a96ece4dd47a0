package controllertest_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/controllertest"
)

// TestLateStart: a process that takes longer than usual until its first write still decides
// on the old list.
func TestLateStart(t *testing.T) {
	t.Parallel()
	var started sync.Map // the namespaces of runs
	create := func(name string) controllertest.Step {
		return controllertest.Step{Name: "create " + name, Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			kube, err := kubernetes.NewForConfig(cfg)
			if err == nil {
				_, err = kube.CoreV1().ConfigMaps(env.Namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			}
			return err
		}}
	}
	s := controllertest.Scenario{
		Name:   "late start",
		Script: []controllertest.Step{create("a"), create("last")},
		Start: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
			kube, err := kubernetes.NewForConfig(cfg)
			if err != nil {
				return err
			}
			shared := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(env.Namespace))
			configMaps, changed := shared.Core().V1().ConfigMaps(), make(chan struct{}, 1)
			change := func() {
				select {
				case changed <- struct{}{}:
				default:
				}
			}
			_, err = configMaps.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { change() }, UpdateFunc: func(any, any) { change() }})
			if err != nil {
				return err
			}
			defer shared.Shutdown()
			shared.StartWithContext(ctx)
			if !cache.WaitForCacheSync(ctx.Done(), configMaps.Informer().HasSynced) {
				return nil
			}
			if _, again := started.LoadOrStore(env.Namespace, true); again {
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			}
			for {
				select {
				case <-ctx.Done():
					return nil
				case <-changed:
				}
				all, err := configMaps.Lister().ConfigMaps(env.Namespace).List(labels.Everything())
				if err != nil {
					return err
				}
				have := map[string]*corev1.ConfigMap{}
				for _, c := range all {
					have[c.Name] = c
					if c.GenerateName != "" {
						have["note"] = c
					}
				}
				if have["a"] != nil && have["note"] == nil {
					_, _ = kube.CoreV1().ConfigMaps(env.Namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "note-"}}, metav1.CreateOptions{})
				}
				if last := have["last"]; last != nil && last.Labels == nil {
					_, _ = kube.CoreV1().ConfigMaps(env.Namespace).Patch(ctx, "last", types.MergePatchType, []byte(`{"metadata":{"labels":{"seen":"1"}}}`), metav1.PatchOptions{})
				}
			}
		},
		Converged: func(*controllertest.State) error { return nil },
	}
	o := quick(t, "time-travel(configmaps<create configmaps note-*#1)@patch configmaps last metadata.labels#1")
	o.ConvergeTimeout = 3 * time.Second // the end state stays another
	report := run(t, s, o)
	if report.Valid != 1 || len(report.Failures) != 1 || !strings.Contains(report.Failures[0].String(), "configmaps/note-* was created 2 times, without faults 1 times") {
		t.Error(report)
	}
}
