package ssa_test

import (
	"encoding/json"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
)

// TestServerForeignDuplicates: if another manager's list has a key twice, which no apply can express,
// each ApplyChanged applies, and a Memory ends that. The applies do not change the object.
func TestServerForeignDuplicates(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	deployments := kubernetes.NewForConfigOrDie(testserver.Config(t)).AppsV1().Deployments(namespace)
	const (
		twice = `[{"name":"A","value":"1"},{"name":"A","value":"2"}]`
		spec  = `{"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},"spec":{"containers":[{"image":"i:1","name":"main"`
	)
	foreign, config := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, applyappsv1.Deployment("one", namespace)
	for text, into := range map[string]any{`{"spec":` + spec + `,"env":` + twice + `}]}}}}`: foreign, `{"spec":` + spec + `}]}}}}`: config} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	live, err := deployments.Create(t.Context(), foreign, metav1.CreateOptions{FieldManager: "other"})
	if err != nil {
		t.Fatal(err)
	}
	var memory ssa.Memory[*appsv1.Deployment, *applyappsv1.DeploymentApplyConfiguration]
	for n, want := range []bool{true, true, true, true, false} {
		apply := ssa.ApplyChanged[*appsv1.Deployment, *applyappsv1.DeploymentApplyConfiguration]
		if n >= 3 {
			apply = memory.ApplyChanged
		}
		next, applied, err := apply(t.Context(), manager, deployments.Apply, config, live, applyappsv1.ExtractDeployment)
		if err != nil || applied != want {
			t.Fatalf("call %d: applied = %v, %v, want %v", n, applied, err, want)
		}
		if n > 0 && next.ResourceVersion != live.ResourceVersion {
			t.Fatalf("call %d changed the object: %v, before %v", n, next.ManagedFields, live.ManagedFields)
		}
		live = next
	}
}
