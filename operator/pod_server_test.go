package operator_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
)

// TestServerPod tests, with a user who has the rights of Rules alone, that Run returns an
// error before informers start if the Pod does not allow GracePeriod and 1s to stop.
func TestServerPod(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	pods := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().Pods(namespace)
	for name, spec := range map[string]corev1.PodSpec{
		"usual": {},
		"short": {TerminationGracePeriodSeconds: ptr.To[int64](20)},
		"sleepy": {Containers: []corev1.Container{{Name: "first", Image: "x"}, {Name: "c", Image: "x", Lifecycle: &corev1.Lifecycle{
			PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 5}},
		}}}},
	} {
		if spec.Containers == nil {
			spec.Containers = []corev1.Container{{Name: "c", Image: "x"}}
		}
		spec.AutomountServiceAccountToken = ptr.To(false)
		if _, err := pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	options := func(namespace, pod string) operator.Options {
		return operator.Options{Name: "pairs", LeaseNamespace: namespace, Pod: pod}
	}
	// limited returns a user with the rights of Rules for the options.
	limited := func(o operator.Options) *rest.Config {
		objects, leases := newPairs(t, testserver.Config(t), o.LeaseNamespace, o).op.Rules()
		return testserver.Limited(t, o.LeaseNamespace, slices.Concat(objects, leases)...)
	}
	may := limited(options(namespace, "usual"))
	closed := testserver.Namespace(t)
	mayNot := limited(options(closed, ""))
	for _, tc := range []struct {
		user           *rest.Config
		namespace, pod string
		want           string
	}{
		{may, namespace, "short", `Options.Pod "short": shutdown: Group.GracePeriod (28s) does not fit into the Pod's 20s`},
		{may, namespace, "sleepy", `Options.Pod "sleepy": shutdown: Group.GracePeriod (28s) does not fit into the Pod's 25s`},
		{may, namespace, "none", `Options.Pod "none": namespace "` + namespace + `" has no such Pod`},
		{mayNot, closed, "usual", `Options.Pod "usual": the Pod may not be read: a Role in namespace "` + closed + `" must allow verb "get" on pods`},
	} {
		seen := &requests{}
		config := rest.CopyConfig(tc.user)
		config.Wrap(seen.wrap)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // ends an operator that runs
		err := newPairs(t, config, tc.namespace, options(tc.namespace, tc.pod)).op.Run(testlog.New().Context(ctx))
		cancel()
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Run() = %v, want one line with %q", err, tc.want)
		}
		if seen.has("list", "secrets") || seen.has("watch", "secrets") {
			t.Errorf("%s: the informers were started: %v", tc.pod, seen)
		}
	}
	p := newPairs(t, may, namespace, options(namespace, "usual"))
	start(t, p.op, testlog.New())
	create(t, testserver.Config(t), namespace, "make-a")
	receive(t, p.created)
}

// TestStopDuringStart: a stop while the API server is awaited is no failure.
func TestStopDuringStart(t *testing.T) {
	for _, pod := range []string{"", "self"} {
		op, err := operator.New(nowhere(), operator.Options{Name: "x", LeaseNamespace: "y", Pod: pod})
		if err != nil {
			t.Fatal(err)
		}
		f := newFactory()
		operator.For(op.Controller("a", nothing), corev1.Resource("configmaps"), f.Core().V1().ConfigMaps())
		ctx, cancel := context.WithCancel(testlog.New().Context(t.Context()))
		op.Group.Add("last", func(ctx context.Context) error { time.AfterFunc(50*time.Millisecond, cancel); <-ctx.Done(); return nil })
		if err := op.Run(ctx); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	}
}
