package reconcile_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestServerUnstorable: the API server has the code 500 for some requests that it can never store.
// They are rejected: as errors they would be sent again by the queue's rate limiter without end.
func TestServerUnstorable(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().Pods(testserver.Namespace(t))
	apply := func(ctx context.Context, spec string) error {
		body := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"one"},"spec":` + spec + `}`
		_, err := client.Patch(ctx, "one", types.ApplyPatchType, []byte(body), metav1.PatchOptions{FieldManager: "m"})
		return err
	}
	create := func(ctx context.Context, size int) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "large"}}
		pod.Spec.Containers = []corev1.Container{{Name: "a", Image: "a", Args: []string{strings.Repeat("x", size)}}}
		_, err := client.Create(ctx, pod, metav1.CreateOptions{})
		return err
	}
	for name, request := range map[string]func(context.Context) error{
		"larger than etcd allows":          func(ctx context.Context) error { return create(ctx, 7<<18) },
		"larger than etcd's client sends":  func(ctx context.Context) error { return create(ctx, 2<<20) },
		"larger than the API server reads": func(ctx context.Context) error { return create(ctx, 3<<20) },
		"a key of a list twice": func(ctx context.Context) error {
			return apply(ctx, `{"containers":[{"name":"a","image":"a","env":[{"name":"A","value":"1"},{"name":"A","value":"2"}]}]}`)
		},
		"an unknown field": func(ctx context.Context) error { return apply(ctx, `{"containers":[],"colour":"red"}`) },
		"a list in place of a text": func(ctx context.Context) error {
			return apply(ctx, `{"containers":[{"name":"a","image":[]}]}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			type end struct {
				result string
				err    error
			}
			ends := make(chan end, 100)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			c := &controller{
				Name: "x", Queue: newTestQueue("a"),
				Reconcile: func(ctx context.Context, _ string) (reconcile.Result, error) { return reconcile.Result{}, request(ctx) },
				Hook: func(ctx context.Context, _ string) (context.Context, func(string, error)) {
					return ctx, func(result string, err error) { ends <- end{result, err} }
				},
			}
			go func() { ended <- c.Run(ctx) }()
			if got := <-ends; got.result != "rejected" {
				t.Errorf("the result is %s for %v (%s)", got.result, got.err, apierrors.ReasonForError(got.err))
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}
