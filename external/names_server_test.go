package external_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/controllerkit/controllerkit/external"
	"github.com/controllerkit/controllerkit/internal/testnames"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// dryRun makes a dry run of each patch.
type dryRun struct {
	typedcorev1.ConfigMapInterface
	patches int
}

func (d *dryRun) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*corev1.ConfigMap, error) {
	d.patches++
	opts.DryRun = []string{metav1.DryRunAll}
	return d.ConfigMapInterface.Patch(ctx, name, pt, data, opts, subresources...)
}

// Once accepts each annotation that the API server accepts, and stores its intent in it.
func TestServerAnnotations(t *testing.T) {
	d := &dryRun{ConfigMapInterface: kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().ConfigMaps(testserver.Namespace(t))}
	obj, err := d.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	errStored := errors.New("the intent is stored")
	testnames.Compare(t, testnames.All(t), func(name string) error {
		data, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{name: "x"}}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = d.Patch(t.Context(), "one", types.MergePatchType, data, metav1.PatchOptions{})
		return err
	}, func(name string) error {
		d.patches = 0
		_, err := external.Once(t.Context(), d, obj, external.Resource{
			Annotation: name,
			Find:       func(context.Context, string) (string, bool, error) { return "", false, errStored },
			Create:     func(context.Context, string) (string, error) { return "", errStored },
		})
		switch {
		case errors.Is(err, errStored):
			return nil
		case !isTerminal(err) || d.patches > 0:
			t.Errorf("%.80q: %v after %d patches", name, err, d.patches)
		}
		return err
	}, nil)
}
