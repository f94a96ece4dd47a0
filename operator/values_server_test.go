package operator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// testValues: the API server quotes the values of a Secret in its response to an apply that does not fit the
// schema, and the whole object in that to a patch. Neither the status nor the log shows them, whatever client sent the
// request.
func testValues(t *testing.T, s *shelf) {
	secrets := s.kube.CoreV1().Secrets(s.namespace)
	if _, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "old"}, StringData: map[string]string{"password": "hunter2"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const encoded = "aHVudGVyMg==" // of the password
	s.Reconcile = func(ctx context.Context, b *Box) (reconcile.Result, error) {
		_, applied := s.c.Apply(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "x", "namespace": b.Namespace},
			"stringData": map[string]any{"config": map[string]any{"password": "hunter2"}},
		}})
		if applied == nil || strings.Contains(applied.Error(), "hunter2") {
			t.Errorf("the error of Apply is %v", applied)
		}
		_, patched := secrets.Patch(ctx, "old", types.MergePatchType, []byte(`{"stringData":{"n":1}}`), metav1.PatchOptions{})
		_, own := secrets.Patch(ctx, "y", types.ApplyPatchType, []byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"y"},"stringData":{"own":["hunter2"]}}`), metav1.PatchOptions{FieldManager: "own"})
		if !strings.Contains(fmt.Sprint(patched), encoded) || !strings.Contains(fmt.Sprint(own), "hunter2") {
			t.Errorf("the responses have no values, so the test shows nothing: %v; %v", patched, own)
		}
		return reconcile.Result{}, errors.Join(applied, patched, own)
	}
	s.register = func(op *operator.Operator) *operator.Controller {
		c := operator.Kind(op, boxVersion.WithResource("boxes"), s.Reconciler)
		operator.Children(c, corev1.SchemeGroupVersion.WithResource("secrets"), applycorev1.ExtractSecret)
		return c
	}
	s.start(operator.Options{})
	s.create("a", "")
	s.until(func(e ended) string {
		if e.err == nil {
			return "no error"
		}
		return ""
	})
	lines := ""
	for _, line := range s.logs.All() {
		if line.Level <= 5 { // client-go logs whole requests above it
			lines += fmt.Sprintln(line)
		}
	}
	for name, text := range map[string]string{"Ready": ready(s.get("a")), "the log": lines} {
		if strings.Contains(text, "hunter2") || strings.Contains(text, encoded) {
			t.Errorf("%s has the password:\n%s", name, text)
		}
		for _, want := range []string{".stringData.config: expected string", "patch: Invalid value: (hidden)", ".stringData.own: expected string"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s has no %q:\n%s", name, want, text)
			}
		}
	}
}
