package recipes_test

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/status"
	"github.com/controllerkit/controllerkit/status/kstatus"
)

// waiting works on a Widget once the Deployment of spec.after is ready.
type waiting struct {
	// deployments is a reader of operator.Reads, or a fake of a unit test.
	deployments interface {
		Get(ctx context.Context, namespace, name string) (*appsv1.Deployment, error)
	}
}

func (r *waiting) register(op *operator.Operator) {
	c := operator.Kind(op, widgetVersion.WithResource("widgets"), operator.Reconciler[*Widget]{Reconcile: r.reconcile})
	r.deployments = operator.Reads(c, appsv1.SchemeGroupVersion.WithResource("deployments"), operator.Reading[*appsv1.Deployment]{})
}

func (r *waiting) reconcile(ctx context.Context, w *Widget) (reconcile.Result, error) {
	after, err := r.deployments.Get(ctx, w.Namespace, w.Spec.After) // a change of it runs this function again
	switch {
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, wait(w, "Deployment "+w.Spec.After+" is absent")
	case err != nil:
		return reconcile.Result{}, err
	}
	if state, reason := kstatus.Of(after); state != kstatus.Ready {
		return reconcile.Result{}, wait(w, "Deployment "+w.Spec.After+": "+reason)
	}
	w.Status.Color = "green" // the work
	return reconcile.Result{}, nil
}

func wait(w *Widget, message string) error {
	return status.Set(&w.Status.Conditions, w.Generation, status.False("Ready", "Waiting", message))
}

// fakeDeployments is a reader of a unit test.
type fakeDeployments map[string]*appsv1.Deployment

func (f fakeDeployments) Get(_ context.Context, namespace, name string) (*appsv1.Deployment, error) {
	if found := f[namespace+"/"+name]; found != nil {
		return found, nil
	}
	return nil, apierrors.NewNotFound(appsv1.Resource("deployments"), name)
}

// TestWaiting: the function of the recipe works in a unit test.
func TestWaiting(t *testing.T) {
	fake := fakeDeployments{}
	r := &waiting{deployments: fake}
	w := &Widget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "w"}, Spec: WidgetSpec{After: "db"}}
	if _, err := r.reconcile(t.Context(), w); err != nil || ready(w) != "False Waiting Deployment db is absent" {
		t.Errorf("without the Deployment: %v, Ready is %s", err, ready(w))
	}
	fake["ns/db"] = &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", Generation: 1},
		Status: appsv1.DeploymentStatus{
			ObservedGeneration: 1, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1,
			Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue}},
		},
	}
	if _, err := r.reconcile(t.Context(), w); err != nil || w.Status.Color != "green" {
		t.Errorf("with a ready Deployment: %v, the color is %q, Ready is %s", err, w.Status.Color, ready(w))
	}
}

// testWait: the Widget waits for the Deployment to exist and to be ready.
func testWait(t *testing.T) {
	namespace := testserver.Namespace(t)
	op, err := operator.New(testserver.Config(t), operator.Options{Name: "waiting", Namespace: namespace})
	if err != nil {
		t.Fatal(err)
	}
	(&waiting{}).register(op)
	_, _ = start(t, op)
	widgets := newWidgets(t, testserver.Config(t)).Namespace(namespace)
	if _, err := widgets.Create(t.Context(), &Widget{ObjectMeta: metav1.ObjectMeta{Name: "w"}, Spec: WidgetSpec{After: "db"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	is := func(text string) func(*Widget) bool {
		return func(w *Widget) bool { return strings.HasPrefix(ready(w), text) }
	}
	await(t, widgets, "w", is("False Waiting Deployment db is absent"))

	deployments := kubernetes.NewForConfigOrDie(testserver.Config(t)).AppsV1().Deployments(namespace)
	labels := map[string]string{"app": "db"}
	db, err := deployments.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "db", Image: "db"}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if w := await(t, widgets, "w", is("False Waiting Deployment db: ")); w.Status.Color != "" {
		t.Error("the Widget did not wait")
	}
	db.Status = appsv1.DeploymentStatus{
		ObservedGeneration: db.Generation, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1,
		Conditions: []appsv1.DeploymentCondition{
			{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue},
			{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"},
		},
	}
	if _, err := deployments.UpdateStatus(t.Context(), db, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if w := await(t, widgets, "w", is("True")); w.Status.Color != "green" {
		t.Error("the Widget is ready without its work")
	}
}
