package operator_test

import (
	"context"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/preview"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestServerPreview has a preview beside a process that uses its port, with calls that panic, a paused object, a queue of the caller, a guard and
// a part of the caller, and one that is stopped. The other tests of previews are in package preview and in the examples.
func TestServerPreview(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	accounts := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().ServiceAccounts(namespace)
	for name, annotations := range map[string]map[string]string{"bad": nil, "good": nil, "rests": {pausedAnnotation: "incident"}} {
		if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	present, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer present.Close()
	run := func(ctx context.Context) (*preview.Report, error) {
		p := &preview.Preview{}
		op, err := operator.New(testserver.Config(t), operator.Options{Name: "maps", Namespace: namespace, LeaseNamespace: namespace, Listen: present.Addr().String(), Preview: p})
		if err != nil {
			t.Fatal(err)
		}
		op.Config.Wrap(leader.Guard)
		op.Group.Add("migration", func(context.Context) error {
			t.Error("a preview ran a part of the user")
			return nil
		})
		var c *operator.Controller
		c = operator.Kind(op, corev1.SchemeGroupVersion.WithResource("serviceaccounts"), operator.Reconciler[*corev1.ServiceAccount]{
			ReadOnly: true, Reconcile: func(ctx context.Context, a *corev1.ServiceAccount) (reconcile.Result, error) {
				if a.Name == "bad" {
					panic("out of \x1b[31mluck")
				}
				_, err := c.Apply(ctx, applycorev1.ConfigMap(a.Name, a.Namespace))
				return reconcile.Result{RequeueAfter: 1}, err
			},
		})
		operator.Children(c, corev1.SchemeGroupVersion.WithResource("configmaps"), applycorev1.ExtractConfigMap)
		c.Loop.Queue, c.Loop.Resync = queue.New(queue.Config[types.NamespacedName]{Name: "own"}), 1
		err = op.Run(testlog.New().Context(ctx))
		return p.Report(), err
	}

	before := testserver.Stored(t, testserver.Config(t), namespace)
	got, err := run(t.Context())
	want := &preview.Report{Keys: 3, Calls: []preview.Call{
		{Controller: "serviceaccounts", Key: namespace + "/bad", Error: `panic: out of \x1b[31mluck`},
		{Controller: "serviceaccounts", Key: namespace + "/good", Changes: []preview.Change{{Action: preview.Create, Resource: "configmaps", Namespace: namespace, Name: "good"}}},
		{Controller: "serviceaccounts", Key: namespace + "/rests", Skipped: []string{
			"Reconcile: the annotation controllerkit.github.io/paused has the value \"incident\": remove it to go on. A deletion is still cleaned up",
		}},
	}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, (-want +got)\n%s", err, diff)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := run(ctx); err == nil || err.Error() != "preview: it was stopped before each key has run" {
		t.Errorf("a preview that is stopped: %v", err)
	}
	if diff := cmp.Diff(before, testserver.Stored(t, testserver.Config(t), namespace)); diff != "" {
		t.Errorf("the previews have changed objects: (-before +after)\n%s", diff)
	}
}
